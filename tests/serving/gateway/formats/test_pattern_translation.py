"""Patterns for llama.cpp: what matches the translation matches the pattern, and stands in a JSON string as it is."""

from __future__ import annotations

import itertools
import json
import re

import pytest

from ramify.serving.gateway.formats.pattern_translation import UnsupportedPattern, translated

EXAMPLES = {
    r"^\d{3}-\w+$": ["123-a_Z"],
    r"^[A-Z]{2}\d+?$": ["AB12"],
    r"b+c": ["bc", "a bbc d"],
    r"^(foo|ba[rz])?\s.{2,4}$": [" ab", "baz é00"],
    r"^a|b$|c": ["ax", "xb", "xcx"],
    r'^[^a-m"]{3}$': ["xyz", "é0("],
    r"^x\.y\/z[\]\-a]$": ["x.y/z]", "x.y/z-"],
    r"^(?:[0-9a-f]{2}:){2}[0-9a-f]{2}$": ["0a:ff:10"],
    r"^[\w.+-]+@[\w-]+\.[a-z]{2,3}$": ["a.b@c-d.org"],
    r"^(?<year>\d{4})é\x41\u00e9$": ["1999éAé"],
    r"^(a|)b{2,}$": ["bb", "abbb"],
    r"^\D\W\S[^\d]$": ["a.bc"],
    r"": ["", "any text"],
    r"^$": [""],
}
ALPHABET = 'ab0_Z .-\n"\\é\u3000\ufeff'
SHORT = ["".join(one) for size in range(4) for one in itertools.product(ALPHABET, repeat=size)]


@pytest.mark.parametrize(("pattern", "examples"), list(EXAMPLES.items()))
def test_every_match_of_the_translation_is_a_match(pattern: str, examples: list[str]) -> None:
    ours = re.compile(translated(pattern))
    theirs = re.compile(pattern.replace("(?<year>", "(?P<year>"))
    assert all(ours.fullmatch(text) for text in examples)
    for text in [text for text in SHORT if ours.fullmatch(text)]:
        assert theirs.search(text), text
        assert json.loads(f'"{text}"') == text


@pytest.mark.parametrize(
    ("pattern", "part"),
    [
        (r"^(?=a)b$", "(?="),
        (r"^(?!a)b$", "(?!"),
        (r"^(?<=a)b$", "(?<="),
        (r"^(a)\1$", r"\1"),
        (r"\bword\b", r"\b"),
        (r"^\p{L}$", r"\p"),
        (r'^"$', "escape"),
        (r"^\\$", "escape"),
        (r"^\n$", "escape"),
        (r"^a(b$)", "$ in a group"),
        (r"a^b", "^ after"),
        (r"a$b", "$ before"),
        (r"*a", "* after nothing"),
        (r"a**", "* after nothing"),
        (r"a{,3}", "{"),
        (r"(a", "without an end"),
        (r"a)", "without a ("),
        (r"[a", "its end"),
        (r"a\\"[:2], "its end"),
        (r"[z-a]", "range"),
        (r"[+-\d]", "range"),  # not the range from + to 9
        (r"\u1_00", r"\u1_00"),
    ],
)
def test_what_has_no_translation_is_named(pattern: str, part: str) -> None:
    with pytest.raises(UnsupportedPattern, match=re.escape(part)):
        translated(pattern)
