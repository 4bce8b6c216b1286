from notes.tags import tagged, tags


def test_tags_once_each():
    assert tags("#a b #c, #a") == ["a", "c"]


def test_tagged_needs_all():
    notes = {"x": "#a #b", "y": "#a", "z": "#b #a"}
    assert tagged(notes, "a", "b") == ["x", "z"]
    assert tagged(notes, "a") == ["x", "y", "z"]
