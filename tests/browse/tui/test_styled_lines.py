from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ramify.browse.tui.activity_tabs import command_lines
from ramify.browse.tui.styled_lines import json_lines, line, wrapped
from ramify.sandboxes.contract import RunResult

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet="ab é\\\"'$", max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(alphabet="abé", max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)


def read_back(text: str, width: int) -> Any:
    return json.loads("".join(one.text[2:] for one in json_lines(text, width)))


def squeezed(text: str) -> str:
    return "".join(text.split())


@given(JSON)
def test_json_layout_preserves_values(value: object) -> None:
    text = json.dumps(value)
    assert read_back(text, 1000) == value
    narrow = "".join(one.text for one in json_lines(text, 60))  # cut anywhere: white space is not told from indents
    assert squeezed(narrow) == squeezed(json.dumps(value, ensure_ascii=False))
    if len(text) < 200:
        assert len([*json_lines(text, 1000)]) == 1


@given(st.text(alphabet="ab cd\n", max_size=300), st.integers(25, 60))
def test_wrapping_keeps_every_word_within_the_view(text: str, width: int) -> None:
    shown = [one.text for one in wrapped(text, width, indent="  ")]
    assert all(len(one) <= width for one in shown)
    assert "".join("".join(shown).split()) == "".join(text.split())


def test_lines_have_no_control_characters_and_a_bounded_length() -> None:
    assert line("a\x1b[2J\tb\u202e").text == "a\N{REPLACEMENT CHARACTER}[2J   b\N{REPLACEMENT CHARACTER}"
    assert len(line("x" * 100_000).text) < 4_100


def test_command_is_shown_with_output_and_status() -> None:
    result = RunResult("make\ntest", 124, b"one\ntwo\n", b"bad\n", 1.0, timed_out=True, truncated=True)
    shown = [one.text for one in command_lines(result)]
    assert shown == ["$ make", "  test", "one", "two", "bad", "exit 124, timed out, output cut"]
