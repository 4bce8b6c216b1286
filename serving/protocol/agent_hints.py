"""Hints about agents that other serving systems define, read as tags of ours and written from them.

- NVIDIA Dynamo (1.x): the body's `nvext.agent_hints` (`osl`: the tokens to expect), `nvext.agent_context`, and
  the headers `x-dynamo-session-id`, `x-dynamo-parent-session-id` and `x-dynamo-session-final`.
- vLLM's proposal (RFC 52113): the body's `agent_hint` with `session_id`, `cache_control` (`ttl` in seconds) and
  `context_management` (`edits` of the type `evict`).

A hint is advice: what cannot be read is ignored, and no hint gives a call precedence. A session is a workflow whose
calls continue each other's context.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from ramify.serving.protocol.tags import SLOTags

SESSION_HEADER = "x-dynamo-session-id"
PARENT_HEADER = "x-dynamo-parent-session-id"
FINAL_HEADER = "x-dynamo-session-final"
_LONGEST = 200  # characters of a session's id; our prefix and the client's name still fit
_MOST_TTL_S = 3600.0  # as in vLLM's proposal
_NVEXT_HINTS = ("agent_hints", "agent_context")

Json = Mapping[str, object]


class HintDialect(StrEnum):
    """Whose hints an engine reads."""

    DYNAMO = "dynamo"
    VLLM = "vllm"


@dataclass(frozen=True, slots=True)
class AgentHints:
    """What a request says about the agent that sends it; None: nothing."""

    session: str | None = None
    ttl_s: float | None = None  # the context may be needed again for so long after the answer; 0: it is not
    parent: str | None = None  # the session of the agent that started this one
    final: bool = False  # sent only to say that the session is over (Dynamo)


_NONE = AgentHints()


def read_hints(body: Json, headers: Mapping[str, str]) -> AgentHints:
    """Read the hints of a request. Never raises."""
    theirs, nvext = _object(body.get("agent_hint")), _object(body.get("nvext"))
    context = _object(nvext.get("agent_context"))
    said = (headers.get(SESSION_HEADER), theirs.get("session_id"), context.get("session_id"))
    session = next((str(one) for one in said if _is_name(one)), None)
    parents = (headers.get(PARENT_HEADER), context.get("parent_session_id"))
    parent = next((str(one) for one in parents if _is_name(one)), None)
    final = headers.get(FINAL_HEADER, "").lower() == "true"
    return AgentHints(session, 0.0 if final or _evicts(theirs) else _ttl(theirs), parent, final)


def with_hints(tags: SLOTags, hints: AgentHints) -> SLOTags:
    """Add a session to the tags of a call that names no workflow. Its class and its limits stay what they were."""
    if hints.session is None or tags.compound_id is not None:
        return tags
    kind = tags.slo_class or _class_without_workflow(tags)
    return replace(tags, slo_class=kind, compound_id=_name(hints.session), compound_ttl_s=hints.ttl_s)


def is_hint(name: str, value: object) -> bool:
    """True for a field of a request's body that says nothing but hints."""
    return not without_hints({name: value}, None)


def without_hints(body: Json, but: HintDialect | None) -> dict[str, object]:
    """Return the body without hints, but for those of the dialect that the engine reads."""
    plain = dict(body)
    if but is not HintDialect.VLLM:
        plain.pop("agent_hint", None)
    nvext = plain.get("nvext")
    if but is not HintDialect.DYNAMO and isinstance(nvext, Mapping):
        plain["nvext"] = {name: value for name, value in nvext.items() if name not in _NVEXT_HINTS}
        if not plain["nvext"]:
            del plain["nvext"]
    return plain


def written(body: Json, dialect: HintDialect, tags: SLOTags, expected_tokens: float | None) -> dict[str, object]:
    """Return the body with the hints that follow from the tags. What the client said itself stays."""
    out = dict(body)
    if dialect is HintDialect.DYNAMO:
        nvext = _object(body.get("nvext"))
        hints = {**({} if expected_tokens is None else {"osl": max(1, round(expected_tokens))})}
        if merged := {**hints, **_object(nvext.get("agent_hints"))}:
            out["nvext"] = {**nvext, "agent_hints": merged}
        return out
    if tags.compound_id is not None:
        ours: dict[str, object] = {"session_id": _session(tags), "parent_session_id": _parent(tags)}
        ttl_s = 0.0 if tags.compound_last == 1 else tags.compound_ttl_s
        if ttl_s is not None:
            ours["cache_control"] = {"type": "ephemeral", "ttl": min(ttl_s, _MOST_TTL_S)}
        said = {name: value for name, value in ours.items() if value is not None}
        out["agent_hint"] = {**said, **_object(body.get("agent_hint"))}
    return out


def session_headers(dialect: HintDialect | None, tags: SLOTags, hints: AgentHints = _NONE) -> dict[str, str]:
    """Return the headers that name the call's session to the engine. `hints`: what the client said itself."""
    if dialect is not HintDialect.DYNAMO or tags.compound_id is None:
        return {}
    parent, final = _parent(tags), None
    if hints.session is not None and tags.compound_id.endswith(_name(hints.session)):
        owner = tags.compound_id.removesuffix(_name(hints.session))
        parent = parent or (None if hints.parent is None else owner + _name(hints.parent))
        final = "true" if hints.final else None
    named = {SESSION_HEADER: _session(tags), PARENT_HEADER: parent, FINAL_HEADER: final}
    return {name: value for name, value in named.items() if value is not None and value.isascii()}


def _name(session: str) -> str:
    """The workflow that a session of others is here."""
    return f"session {session}"


def _session(tags: SLOTags) -> str:
    assert tags.compound_id is not None
    return tags.compound_id if tags.compound_branch is None else f"{tags.compound_id}:{tags.compound_branch}"


def _parent(tags: SLOTags) -> str | None:
    return None if tags.compound_branch is None else tags.compound_id


def _class_without_workflow(tags: SLOTags) -> str:
    if tags.slo_think_s is not None:
        return "latency"
    if tags.slo_deadline_s is not None or tags.compound_deadline_at is not None:
        return "deadline"
    return "best_effort" if tags.slo_ttft_s is None and tags.slo_tbt_s is None else "latency"


def _ttl(hint: Json) -> float | None:
    said = _object(hint.get("cache_control")).get("ttl")
    if isinstance(said, bool) or not isinstance(said, int | float) or not said >= 0:  # NaN, too
        return None
    return float(min(said, _MOST_TTL_S))  # a whole number may be too large for a float


def _evicts(hint: Json) -> bool:
    edits = _object(hint.get("context_management")).get("edits")
    return isinstance(edits, list) and any(_object(one).get("type") == "evict" for one in edits)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _LONGEST and value.isprintable()


def _object(value: object) -> Json:
    return value if isinstance(value, Mapping) else {}
