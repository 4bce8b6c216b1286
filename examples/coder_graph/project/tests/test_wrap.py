from notes.wrap import shorten, wrap


def test_shorten_leaves_what_fits():
    assert shorten("abcd", 4) == "abcd"
    assert shorten("abcdef", 5) == "ab..."


def test_wrap_fills_lines():
    assert wrap("aa bb cc", 5) == ["aa bb", "cc"]
    assert wrap("aaa bb", 5) == ["aaa", "bb"]
    assert wrap("one", 10) == ["one"]
    assert wrap("", 10) == []
