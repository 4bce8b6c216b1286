import pytest
from text_wrap import indent, shorten, wrap


def test_fits_on_one_line():
    assert wrap("one two", 20) == ["one two"]


def test_breaks_at_spaces():
    assert wrap("aaa bbb ccc ddd", 8) == ["aaa bbb", "ccc ddd"]


def test_exactly_full_line_is_not_cut():
    # the limit itself is allowed
    assert wrap("aaa bbb ccc", 11) == ["aaa bbb ccc"]
    assert wrap("ab cd ef", 5) == ["ab cd", "ef"]


def test_long_word():
    assert wrap("a bcdefgh i", 3) == ["a", "bcd", "efg", "h i"]


def test_blank():
    assert wrap("   ", 5) == []


def test_bad_width():
    with pytest.raises(ValueError):
        wrap("a", 0)


def test_indent():
    assert indent("a\n\nb", "> ") == "> a\n\n> b"


def test_shorten():
    assert shorten("short", 10) == "short"
    assert shorten("hello wide world", 12) == "hello..."
