"""What an answered call tells about its engine's speed: the parts of its time, as far as they can be told apart."""

from __future__ import annotations

from collections.abc import Mapping

from ramify.serving.gateway.dialects import Details
from ramify.serving.gateway.engines.replicas import Replica
from ramify.serving.gateway.engines.service_time import Service, arrived_at_once
from ramify.serving.gateway.records.calls import Call

_QUICK = 1.3  # faster than expected by this factor: the prompt may have come from a cache
_SLACK = 1.1  # an engine's account of its time may exceed the time measured here by this factor


def service_of(
    call: Call, at: Replica, details: Details, now: float, *, tokens: int | None, pieces: int
) -> Service | None:
    """The call's times as evidence for the engine's speed.

    tokens: of the answer; None if nobody counted them. pieces: of the answer that were seen to come.

    None if the call tells nothing: it was preempted, or the length of its answer is unknown.
    """
    if call.entered is None or call.track.preemptions or not tokens:
        return None
    end = now if call.last_token is None else call.last_token
    total_s, beside = end - call.entered, at.beside(call.id, now)
    again = call.cached_as is not None and at.read(call.cached_as, total_s, tokens)
    own = details.times
    if own is not None and own.prompt_s + own.decode_s <= _SLACK * total_s:
        return Service(own.prompt_tokens, own.tokens, None, own.decode_s, beside, total_s, own.prompt_s)
    prompt: int | None = call.prompt_tokens
    first_s = None if call.first_token is None else call.first_token - call.entered
    if details.cached is not None:
        prompt = max(1, call.prompt_tokens - details.cached)
    elif again and call.affinity is not None and _quick(at, call.prompt_tokens, tokens, beside, first_s, total_s):
        prompt = None
    waited = at.waited(call.id)
    if first_s is None or arrived_at_once(first_s, total_s - first_s, tokens, pieces):
        return Service(None if waited else prompt, tokens, None, None, beside, total_s)
    return Service(None if waited else prompt, tokens, first_s, total_s - first_s, beside, total_s)


def _quick(at: Replica, prompt: int, tokens: int, beside: float, first_s: float | None, total_s: float) -> bool:
    """Was it so much faster than expected that its prompt may have come from the engine's cache?"""
    took_s, made = (total_s, tokens) if first_s is None else (first_s, 1)
    return _QUICK * took_s < at.model.expected_s(prompt, made, beside)


def echoes(body: Mapping[str, object]) -> bool:
    """Does the answer begin with the prompt, so that not all of it is generated?"""
    return bool(body.get("echo"))
