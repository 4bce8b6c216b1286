"""The position of a call is found, and cached correctly."""

from __future__ import annotations

from ramify.runtime.user_code.call_sites import call_site

CODE = "def where():\n    return {spaces}call_site(0)\n"


def test_equal_code_in_two_places_is_distinguished() -> None:
    """The same instructions at the same line: equal for Python, but in two files and at other columns."""
    sites = []
    for file, spaces in [("one.py", ""), ("two.py", "     ")]:
        names: dict[str, object] = {"call_site": call_site}
        exec(compile(CODE.format(spaces=spaces), f"/nowhere/{file}", "exec"), names)
        where = names["where"]
        assert callable(where)
        sites += [where().stack[0], where().stack[0]]
    assert sites == [("nowhere/one.py", 2, 11)] * 2 + [("nowhere/two.py", 2, 16)] * 2
