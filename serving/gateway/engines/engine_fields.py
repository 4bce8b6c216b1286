"""Fields of a request that reach beyond its own call, inside the engine that gets it.

Most fields of a body say something about their own call and pass as they are. `_FIELDS` and `_NAMES` list those that
do not: vLLM's, SGLang's, llama.cpp's and Dynamo's. A client must not overtake others, read KV that it did not write,
choose the engine or the rank, or name a call as another's. So a field of `_FIELDS` is refused, unless the operator
allows it (`--allow-field`); a field of `_NAMES` passes with the client's own name in front of its value.

The keys of `vllm_xargs` are Ramify's tags. Others are for whatever runs inside an engine, of which the gateway knows
nothing, so they are refused in the same way.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum

from ramify.serving.gateway.errors import ApiError, bad_request
from ramify.serving.protocol.tags import is_known_tag

XARGS = "vllm_xargs"


class Reach(StrEnum):
    """What a field decides beyond its own call: the reason of a refusal."""

    ORDER = "it would put this call before those of others; a deadline or goodput_weight says how urgent a call is"
    CONTEXT = "it names KV in the engine that other calls may have written or will read"
    PLACE = "it chooses the engine, rank or slot that works on the call, which the gateway does"
    ID = "the gateway names each call: send the header x-request-id"
    OUTSIDE = "the engine would send data to an address that the client names"
    CODE = "the engine would run code that the client sends, where it works on the calls of others"
    UNKNOWN = "no such tag, and the gateway does not know what it does inside the engine"


_FIELDS: Mapping[str, Reach] = {
    "priority": Reach.ORDER,
    "nvext.agent_hints.priority": Reach.ORDER,
    "nvext.agent_hints.strict_priority": Reach.ORDER,
    "nvext.agent_hints.latency_sensitivity": Reach.ORDER,
    "kv_transfer_params": Reach.CONTEXT,
    "ec_transfer_params": Reach.CONTEXT,
    "session_params": Reach.CONTEXT,
    "bootstrap_host": Reach.CONTEXT,
    "bootstrap_port": Reach.CONTEXT,
    "bootstrap_room": Reach.CONTEXT,
    "bootstrap_pair_key": Reach.CONTEXT,
    "data_parallel_rank": Reach.PLACE,
    "routed_dp_rank": Reach.PLACE,
    "disagg_prefill_dp_rank": Reach.PLACE,
    "routing_key": Reach.PLACE,
    "id_slot": Reach.PLACE,
    "slot_id": Reach.PLACE,
    "nvext.backend_instance_id": Reach.PLACE,
    "nvext.prefill_worker_id": Reach.PLACE,
    "nvext.decode_worker_id": Reach.PLACE,
    "nvext.dp_rank": Reach.PLACE,
    "nvext.prefill_dp_rank": Reach.PLACE,
    "nvext.routing_constraints": Reach.PLACE,
    "nvext.router": Reach.PLACE,
    "nvext.metadata_upload": Reach.OUTSIDE,
    "custom_logit_processor": Reach.CODE,
    "request_id": Reach.ID,
    "rid": Reach.ID,
}
# Beside null: values by which clients say "the default". Engines get the call without them, because SGLang puts a
# call with the priority 0 before those without one.
_SAY_NOTHING: Mapping[str, tuple[object, ...]] = {"priority": (0,), "id_slot": (-1,), "slot_id": (-1,)}
_HINTS = "nvext.agent_hints."  # advice: what is not allowed is left out, and nothing is refused
_VLLM = frozenset({"kv_transfer_params", "ec_transfer_params"})  # of _FIELDS, those that a vLLM which we start reads

# A call finds what was written under the same name.
_NAMES = (
    "cache_salt",
    "extra_key",
    "session_id",
    "conversation_id",
    "agent_hint.session_id",
    "agent_hint.parent_session_id",
    "nvext.cache_salt",
    "nvext.agent_context.session_id",
    "nvext.agent_context.parent_session_id",
    "nvext.session_control.session_id",
)
_MESSAGES = ("messages", "input")  # whose parts have names, too
_PARTS = ("content", "output")  # where a message, or an item of a response's input, has them


def check_allowed(names: Collection[str]) -> None:
    """Check the names that an operator allows. Raises ValueError, with those that there are."""
    can = {name for name, reach in _FIELDS.items() if reach is not Reach.ID}
    for name in names:
        xarg = name.removeprefix(f"{XARGS}.")
        if name not in can and (xarg == name or not xarg or is_known_tag(xarg)):
            known = ", ".join(sorted(can))
            raise ValueError(f"{name!r} is no field that needs to be allowed: they are {XARGS}.NAME, {known}")


def hints_of_dynamo(name: str) -> bool:
    """Is it a field that only engines with hints of Dynamo get?"""
    return name.startswith(_HINTS)


def read_by_our_vllm(name: str) -> bool:
    """Does vLLM read this field, with our scheduler inside? That orders calls by the policy, not by priority."""
    return name in _VLLM or name.startswith(f"{XARGS}.")


def check_fields(asked: Mapping[str, object], allowed: Collection[str], *, reads_any: bool = True) -> None:
    """Raises ApiError for a field of a client's request that it may not send.

    reads_any: False before an engine that reads none of them, allowed or not.
    """
    for name, reach in _FIELDS.items():
        value = _at(asked, name)
        if value is None or value in _SAY_NOTHING.get(name, ()) or name.startswith(_HINTS):
            continue
        if name not in allowed:
            raise _refused(name, reach, reads_any)
    xargs = asked.get(XARGS)
    for key in xargs if isinstance(xargs, Mapping) else ():
        name = f"{XARGS}.{key}"
        if not is_known_tag(key) and (not reads_any or name not in allowed):
            raise _refused(name, Reach.UNKNOWN, reads_any)


def without_unallowed(body: Mapping[str, object], allowed: Collection[str]) -> dict[str, object]:
    """The body without what `check_fields` lets pass and no engine shall read: hints that would put a call before
    others, and values that stand for the default."""
    plain = dict(body)
    for name in _FIELDS.keys() - allowed:
        value = _at(plain, name)
        if value is not None and (name.startswith(_HINTS) or value in _SAY_NOTHING.get(name, ())):
            plain = _with(plain, name.split("."), None)
    return plain


def apart(body: Mapping[str, object], client: str) -> dict[str, object]:
    """The body with the client's name before the names that it gives to what an engine keeps. `client`: empty where
    there are not several."""
    named = dict(body)
    for name in _NAMES if client else ():
        if isinstance(value := _at(named, name), list):  # SGLang: one for each of several prompts
            named = _with(named, name.split("."), [None if one is None else f"{client}/{one}" for one in value])
        elif value is not None:  # also a number, which some engines take
            named = _with(named, name.split("."), f"{client}/{value}")
    for name in _MESSAGES if client else ():
        if isinstance(messages := named.get(name), list):
            named[name] = [_media_apart(message, client) for message in messages]
    return named


def _media_apart(message: object, client: str, deep: int = 2) -> object:
    """A message, or an item of a response's input, with the client's name before the names of its images and other
    media. vLLM keeps those under the `uuid` of a part, and reads them from there if the part holds nothing else."""
    if not isinstance(message, Mapping) or not deep:
        return message
    changed: dict[str, object] = {}
    if message.get("uuid") is not None:
        changed["uuid"] = f"{client}/{message['uuid']}"
    for name in _PARTS:
        if isinstance(parts := message.get(name), list):
            changed[name] = [_media_apart(part, client, deep - 1) for part in parts]
    return {**message, **changed}


def _refused(name: str, reach: Reach, reads_any: bool) -> ApiError:
    if not reads_any:
        return bad_request(name, f"{name}: the embedded engine does not support it: leave it out")
    how = "" if reach is Reach.ID else f". Leave it out, or ask who runs the gateway for --allow-field {name}"
    return bad_request(name, f"{name}: {reach}{how}")


def _at(body: Mapping[str, object], name: str) -> object:
    """The value at a dotted name; None if there is none."""
    value: object = body
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _with(body: Mapping[str, object], path: list[str], value: object) -> dict[str, object]:
    """The body with another value at a path that is there; None removes it."""
    name, *rest = path
    if rest:
        inner = body[name]
        assert isinstance(inner, Mapping)
        return {**body, name: _with(inner, rest, value)}
    return {key: value if key == name else old for key, old in body.items() if key != name or value is not None}
