"""The page's colours can be read, in the light and in the dark: WCAG 2.2's contrast of 4.5 to 1 for text."""

from __future__ import annotations

import re

import pytest

from ramify.browse.web.app import STATIC

CSS = (STATIC / "style.css").read_text()
LIGHT, DARK = (
    dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6})\b", block))
    for block in re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)
)
GROUNDS = ("ground", "raised", "sunk", "accent-ground")
PAIRS = [
    *((text, on) for text in ("ink", "soft", "faint", "accent") for on in GROUNDS),
    ("good", "good-ground"), ("bad", "bad-ground"), ("bad", "ground"), ("good", "sunk"), ("bad", "sunk"),
]  # fmt: skip


def luminance(colour: str) -> float:
    """WCAG 2.2, "relative luminance"."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize(("text", "ground"), PAIRS)
def test_text_has_enough_contrast(theme: dict[str, str], text: str, ground: str) -> None:
    low, high = sorted((luminance(theme[text]), luminance(theme[ground])))
    assert (high + 0.05) / (low + 0.05) >= 4.5
