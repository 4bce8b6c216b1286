"""Hints of other serving systems: what is read of them, what engines get, and that bad ones change nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.serving.protocol.agent_hints import (
    AgentHints,
    HintDialect,
    read_hints,
    session_headers,
    with_hints,
    without_hints,
    written,
)
from ramify.serving.protocol.tags import SLOTags

JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.just(10**400) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("body", "headers", "hints"),
    [
        ({}, {}, AgentHints()),
        ({}, {"x-dynamo-session-id": "s"}, AgentHints("s")),
        ({}, {"x-dynamo-session-id": "s", "x-dynamo-session-final": "true"}, AgentHints("s", 0.0, final=True)),
        ({}, {"x-dynamo-session-id": "s", "x-dynamo-parent-session-id": "p"}, AgentHints("s", parent="p")),
        ({"nvext": {"agent_context": {"parent_session_id": "p"}}}, {}, AgentHints(parent="p")),
        ({"agent_hint": {"session_id": "s", "cache_control": {"ttl": 10**400}}}, {}, AgentHints("s", 3600.0)),
        ({"nvext": {"agent_context": {"session_id": "s"}, "agent_hints": {"priority": 9}}}, {}, AgentHints("s")),
        ({"agent_hint": {"session_id": "s", "cache_control": {"ttl": 300}}}, {}, AgentHints("s", 300.0)),
        (
            {"agent_hint": {"session_id": "s", "context_management": {"edits": [{"type": "evict"}]}}},
            {},
            AgentHints("s", 0.0),
        ),
        ({"agent_hint": {"session_id": "x" * 999, "cache_control": {"ttl": -1}}}, {}, AgentHints()),
        ({"agent_hint": {"session_id": 7, "cache_control": {"ttl": True}}, "nvext": 3}, {}, AgentHints()),
    ],
)
def test_what_is_read(body: dict[str, Any], headers: dict[str, str], hints: AgentHints) -> None:
    assert read_hints(body, headers) == hints


@given(JSON, JSON, JSON, JSON)
def test_no_hint_is_an_error(a: object, b: object, c: object, d: object) -> None:
    hints = read_hints(
        {
            "agent_hint": {"session_id": a, "cache_control": b, "context_management": c} if a else d,
            "nvext": {"agent_context": c, "agent_hints": d} if b else a,
        },
        {"x-dynamo-session-id": str(d)},
    )
    with_hints(SLOTags(), hints)


def test_a_session_is_a_workflow_whose_calls_keep_their_class() -> None:
    hints = AgentHints("s", 60.0)
    assert with_hints(SLOTags(), hints) == SLOTags(
        slo_class="best_effort", compound_id="session s", compound_ttl_s=60.0
    )
    assert with_hints(SLOTags(slo_deadline_s=3.0), hints).slo_class == "deadline"
    assert with_hints(SLOTags(slo_tbt_s=3.0), hints).slo_class == "latency"
    assert with_hints(SLOTags(slo_think_s=3.0), hints).slo_class == "latency"
    assert with_hints(SLOTags(compound_id="run"), hints) == SLOTags(compound_id="run"), "our tags come first"


BODY = {"agent_hint": {"session_id": "s"}, "nvext": {"agent_hints": {"osl": 5}, "ignore_eos": True}, "n": 1}


def test_engines_get_the_hints_that_they_read() -> None:
    assert without_hints(BODY, None) == {"nvext": {"ignore_eos": True}, "n": 1}
    assert without_hints(BODY, HintDialect.DYNAMO) == {"nvext": BODY["nvext"], "n": 1}
    assert without_hints(BODY, HintDialect.VLLM) == {**BODY, "nvext": {"ignore_eos": True}}
    assert without_hints({"nvext": {"agent_hints": {}}}, None) == {}


def test_tags_are_told_in_the_engines_words() -> None:
    tags = SLOTags(compound_id="run", compound_branch="b", compound_last=1)
    assert written({}, HintDialect.DYNAMO, tags, 41.7) == {"nvext": {"agent_hints": {"osl": 42}}}
    assert written(BODY, HintDialect.DYNAMO, tags, 41.7)["nvext"] == BODY["nvext"], "the client knows better"
    said = {"session_id": "run:b", "parent_session_id": "run", "cache_control": {"type": "ephemeral", "ttl": 0.0}}
    assert written({}, HintDialect.VLLM, tags, None) == {"agent_hint": said}
    assert written(BODY, HintDialect.VLLM, tags, None)["agent_hint"] == {**said, "session_id": "s"}
    assert session_headers(HintDialect.DYNAMO, tags) == {
        "x-dynamo-session-id": "run:b",
        "x-dynamo-parent-session-id": "run",
    }
    assert session_headers(HintDialect.VLLM, tags) == session_headers(None, tags) == {}
