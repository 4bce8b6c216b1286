"""The names of the tools whose results a call brings, in the three shapes of requests."""

from __future__ import annotations

import pytest

from ramify.serving.gateway.formats.tool_results import tool_results


def call(id: str, name: str) -> dict[str, object]:
    return {"role": "assistant", "tool_calls": [{"id": id, "function": {"name": name}}]}


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ([call("a", "old"), {"role": "tool", "tool_call_id": "a"}], {"a": "old"}),
        # results before the model's last answer were brought by an earlier call
        (
            [
                call("a", "old"),
                {"role": "tool", "tool_call_id": "a"},
                call("b", "new"),
                {"role": "tool", "tool_call_id": "b"},
            ],
            {"b": "new"},
        ),
        ([call("a", "old"), {"role": "tool", "tool_call_id": "a"}, {"role": "user", "content": "hi"}], {}),
        ([{"role": "tool", "tool_call_id": "lost"}], {}),
        ([{"role": "tool", "tool_call_id": "x", "name": "named"}], {"x": "named"}),
        ([{"role": "function", "name": "legacy"}], {"legacy 0": "legacy"}),
        (
            [
                {"type": "function_call", "call_id": "c", "name": "search"},
                {"type": "function_call_output", "call_id": "c"},
            ],
            {"c": "search"},
        ),
        ("a prompt", {}),
        ([1, None, {"tool_calls": 3}, {"tool_calls": [None, {"function": 1}]}, {"role": "tool"}], {}),
        ([{"role": "tool", "tool_call_id": ["x"], "name": {"a": 1}}], {}),
        ([{"role": []}], {}),
        ([{"role": "tool", "tool_call_id": "x", "name": "n" * 999}], {"x": "n" * 64}),
    ],
)
def test_results_are_named(said: object, names: dict[str, str]) -> None:
    assert tool_results(said) == names


def test_results_are_bounded() -> None:
    many = [{"role": "tool", "tool_call_id": str(at), "name": "t"} for at in range(999)]
    assert len(tool_results(many)) == 64
    long = {"role": "tool", "tool_call_id": "i" * 99_999, "name": "t"}
    assert tool_results([long]) == {"i" * 256: "t"}, "an id is kept as long as its workflow lasts"
    legacy = {"role": "function", "name": "n" * 99_999}
    assert [len(key) for key in tool_results([legacy])] == [256]
