"""Every promise of the pages on attacks has a test, and every attack that is tested is on them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / "reference" / name for name in ("attacks.md", "attacks-on-services.md")]


def text() -> str:
    return "".join(page.read_text() for page in PAGES)


def named_tests(*files: str) -> set[str]:
    tests = "\n".join(path.read_text() for pattern in files for path in (ROOT / "tests").glob(pattern))
    return set(re.findall(r"^(?:async )?def (test_\w+)", tests, re.MULTILINE))


def test_every_row_names_tests_that_are_there() -> None:
    rows = [line for line in text().splitlines() if line.startswith("| ")]
    tables = [row for row in rows if not row.startswith(("| attempt", "| backend", "| `"))]
    assert len(tables) > 35
    everything = named_tests("**/test_*.py")
    for row in tables:
        named = re.findall(r"`(test_\w+)`", row.split("|")[-2])
        assert named, f"no test in the row {row}"
        assert set(named) <= everything, row


def test_every_attack_has_its_row() -> None:
    named = set(re.findall(r"`(test_\w+)`", text()))
    assert named_tests("sandboxes/attacks/test_*.py") <= named
