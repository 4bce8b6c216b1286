"""Summaries of values in one line."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass, field
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, RemoveMessage, ToolMessage
from langgraph.types import Command, Send
from pydantic import BaseModel, Field, SecretStr

from ramify.runtime.langgraph.value_summary import brief, line_of, messages_in, text_of

CALLS = [{"name": "search", "args": {"query": "x", "most": 3}, "id": "1"}]


@dataclass
class Found:
    path: str
    lines: list[int]


class Plan(BaseModel):
    steps: list[str]


@dataclass
class Login:
    user: str
    key: str = field(default="hush", repr=False)


class Account(BaseModel):
    user: str = "ada"
    key: str = Field("hush", repr=False)
    token: SecretStr = SecretStr("hush")


@dataclass
class Veiled:
    key: str = "hush"

    def __repr__(self) -> str:
        return "Veiled(***)"


class Guarded(BaseModel):
    key: str = "hush"

    def __str__(self) -> str:
        return "a key"


class Torn(dict[str, int]):
    def items(self) -> Any:
        raise RuntimeError("no")


class Opaque:
    pass


class Broken:
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, ""),
        ("first\nsecond", "first second"),
        (3, "3"),
        ({"log": ["write", "think"], "n": 2, "done": True}, 'log: ["write", "think"], n: 2, done: true'),
        ({"error": "", "edit": 'return "a"'}, 'error: "", edit: return "a"'),
        ({"messages": [AIMessage("It is done.")]}, "messages: ai: It is done."),
        ({"messages": [HumanMessage("hi"), AIMessage("ho")]}, "messages: 2 messages, last ai: ho"),
        ({"messages": AIMessage("", tool_calls=CALLS)}, 'messages: ai calls search(query="x", most=3)'),
        ([ToolMessage("3 found", tool_call_id="1", name="search")], "tool search: 3 found"),
        (AIMessageChunk("par"), "ai: par"),
        ([RemoveMessage(id="7")], "remove"),
        ([{"role": "user", "content": "hi"}], "user: hi"),
        (Command(update={"n": 1}, goto=["a", Send("b", {})]), "n: 1; goes to a, b"),
        (Command(goto="a"), "goes to a"),
        ([Command(update={"n": 1})], "n: 1"),
        ([Command(update={"n": 1}), {"m": 2}], "[(n: 1), {m: 2}]"),
        (Found("a.py", [1, 2]), "path: a.py, lines: [1, 2]"),
        (Plan(steps=["x"]), 'steps: ["x"]'),
        ({"found": [Found("a.py", [])]}, 'found: [{path: "a.py", lines: []}]'),
        (list(range(9)), "[0, 1, 2, 3, 4, 5, … 9 in all]"),
        ({"deep": {"a": {"b": {"c": 1}}}}, "deep: {a: {b: {c: 1}}}"),
        ({"deeper": [[[[1]]]]}, "deeper: [[[[…]]]]"),
        ({"x": Opaque(), "y": Broken()}, "x: Opaque, y: Broken"),
        (Torn(a=1), "Torn"),
        ({"n": 10**5000}, "dict"),  # Python refuses to convert it to text
        ({"role": "assistant", "content": None, "tool_calls": 3}, "assistant"),
        ({"role": "user", "content": b"\xff"}, "role: user, content: b'\\xff'"),
        ({"role": "user", "content": [{"type": "text", "text": None}]}, "user"),
    ],
)
def test_a_result_in_a_line(value: Any, said: str) -> None:
    assert brief(value) == said


def test_fields_that_a_class_hides_are_left_out() -> None:
    """It may be secret, and the line is shown in the terminal, in build logs and in the journal."""
    assert brief(Login("ada")) == "user: ada"
    assert brief({"of": [Login("ada"), Veiled()]}) == 'of: [{user: "ada"}, Veiled(***)]'
    assert brief(Account()) == "user: ada, token: **********"
    assert brief({"of": Guarded()}) == "of: a key"


@pytest.mark.parametrize("content", ["word " * 4_000_000, [{"type": "text", "text": "word " * 4_000_000}]])
def test_only_the_beginning_of_a_long_message_is_read(content: Any) -> None:
    value = {"messages": [HumanMessage(content)]}
    tracemalloc.start()
    try:
        said = brief(value)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000  # the words alone would take a hundred times as much
    finally:
        tracemalloc.stop()
    assert len(said) < 100 and said.endswith("…")


def test_only_the_beginning_of_a_large_value_is_read() -> None:
    said = brief({"text": "word " * 1_000_000, "more": [0] * 1_000_000})
    assert len(said) == 80 and said.endswith("…")


def test_a_stored_message_is_summarised_as_the_message() -> None:
    message = AIMessage("Look:\nthere", tool_calls=CALLS)
    assert line_of(message.model_dump()) == line_of(message) == 'ai: Look: there calls search(query="x", most=3)'
    assert text_of(message) == 'Look:\nthere\ncalls search(query="x", most=3)'
    assert text_of(AIMessage([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": "b"}])) == "a"


def test_a_list_with_other_values_is_no_list_of_messages() -> None:
    assert messages_in([]) == messages_in([HumanMessage("x"), "y"]) == messages_in("x") == ()
