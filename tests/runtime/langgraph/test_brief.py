"""What a node's result is called in a line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, RemoveMessage, ToolMessage
from langgraph.types import Command, Send
from pydantic import BaseModel

from ramify.runtime.langgraph.brief import brief, line_of, messages_in, text_of

CALLS = [{"name": "search", "args": {"query": "x", "most": 3}, "id": "1"}]


@dataclass
class Found:
    path: str
    lines: list[int]


class Plan(BaseModel):
    steps: list[str]


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
    ],
)
def test_a_result_in_a_line(value: Any, said: str) -> None:
    assert brief(value) == said


def test_of_a_large_one_only_the_beginning_is_looked_at() -> None:
    said = brief({"text": "word " * 1_000_000, "more": [0] * 1_000_000})
    assert len(said) == 80 and said.endswith("…")


def test_what_is_left_of_a_message_in_the_database_reads_as_the_message() -> None:
    message = AIMessage("Look:\nthere", tool_calls=CALLS)
    assert line_of(message.model_dump()) == line_of(message) == 'ai: Look: there calls search(query="x", most=3)'
    assert text_of(message) == 'Look:\nthere\ncalls search(query="x", most=3)'
    assert text_of(AIMessage([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": "b"}])) == "a"


def test_messages_are_lists_of_nothing_else() -> None:
    assert messages_in([]) == messages_in([HumanMessage("x"), "y"]) == messages_in("x") == ()
