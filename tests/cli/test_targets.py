from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify import workflow
from ramify.cli.targets import arguments, load, load_workflow, plain
from ramify.inspect.values import parse_value
from ramify.runtime.errors import TargetBroken, TargetNotFound


@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3), ('["a"]', ["a"]), ("null", None), ("hello", "hello"), ('"3"', "3"), ("{x", "{x"), ("", "")],
)
def test_argument_is_json_if_it_parses(text: str, value: object) -> None:
    assert parse_value(text) == value


@workflow
async def counted(word: str, words: list[str], most: int | None = None, *rest: int) -> int:
    return len(words)


def test_str_parameter_takes_text() -> None:
    assert arguments(counted, ["42", '["a"]', "null", "x"], {}) == (("42", ["a"], None, "x"), {})
    assert arguments(counted, ['"42"'], {"words": "[1]", "other": "x"}) == (("42",), {"words": [1], "other": "x"})


@pytest.mark.parametrize("given", [["a", '["b",]'], ["a", "[]", "many"]])
def test_json_that_is_misspelt_is_wrong_usage(given: list[str]) -> None:
    with pytest.raises(click.UsageError, match=r"is not JSON, and must be (list\[str\]|int \| None)"):
        arguments(counted, given, {})


class Colour(Enum):
    RED = ("r", 1)


@dataclass
class Report:
    path: Path
    colours: set[str]
    more: dict[int, Any]


def test_a_result_as_plain_values() -> None:
    report = Report(Path("/x"), {"b", "a"}, {1: (b"\0", Colour.RED)})
    assert plain(report) == {"path": "/x", "colours": ["a", "b"], "more": {"1": ["AA==", ["r", 1]]}}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(JSON)
def test_json_stays_as_it_is(value: object) -> None:
    assert plain(value) == value
    json.dumps(plain({"v": value}))


def test_a_file_that_raises_is_the_users(tmp_path: Path) -> None:
    (tmp_path / "broken_target.py").write_text("import json\njson.loads('{')\n")
    with pytest.raises(TargetBroken, match=r"broken_target\.py could not be loaded: Expecting") as raised:
        load(f"{tmp_path}/broken_target.py:go")
    assert isinstance(raised.value.__cause__, json.JSONDecodeError)


def test_objects_that_are_not_workflows(tmp_path: Path) -> None:
    (tmp_path / "plain_target.py").write_text("def go(): ...\n")
    with pytest.raises(TargetNotFound, match="a function, not a workflow: put @workflow on it"):
        load_workflow(f"{tmp_path}/plain_target.py:go")


def test_a_compiled_graph_is_invoked_in_python(tmp_path: Path) -> None:
    (tmp_path / "graph_target.py").write_text(
        "import ramify\n"
        "from langgraph.graph import START, StateGraph\n"
        "app = ramify.compile(StateGraph(dict).add_node('n', lambda state: {}).add_edge(START, 'n'))\n"
    )
    with pytest.raises(TargetNotFound, match="a WorldGraph, not a workflow: call its invoke in Python"):
        load_workflow(f"{tmp_path}/graph_target.py:app")
