"""What an answered call tells of its engine's speed: the parts of its time, so far as they can be told apart."""

from __future__ import annotations

from collections.abc import Mapping

from ramify.serving.gateway.calls import Call
from ramify.serving.gateway.dialects import Details
from ramify.serving.gateway.estimates import Service, came_whole
from ramify.serving.gateway.replicas import Replica

_SLACK = 1.1  # by which an engine's account of its time may exceed what passed here


def service_of(
    call: Call, at: Replica, details: Details, now: float, *, tokens: int | None, pieces: int, cached: bool
) -> Service | None:
    """`tokens`: of the answer, None where nobody counted them. `pieces`: of it that were seen to come. `cached`: its
    prompt may have been in the engine's cache. None where the call tells nothing: it was put back, or its answer's
    length is not known."""
    if call.entered is None or call.track.preemptions or not tokens:
        return None
    end = now if call.last_token is None else call.last_token
    total_s, beside = end - call.entered, at.beside(call.id, now)
    own = details.times
    if own is not None and own.prompt_s + own.decode_s <= _SLACK * total_s:
        return Service(own.prompt_tokens, own.tokens, None, own.decode_s, beside, total_s, own.prompt_s)
    prompt: int | None = call.prompt_tokens
    if details.cached is not None:
        prompt = max(1, call.prompt_tokens - details.cached)
    elif cached:
        prompt = None
    first_s = None if call.first_token is None else call.first_token - call.entered
    waited = at.waited(call.id)
    if first_s is None or came_whole(first_s, total_s - first_s, tokens, pieces):
        return Service(None if waited else prompt, tokens, None, None, beside, total_s)
    return Service(None if waited else prompt, tokens, first_s, total_s - first_s, beside, total_s)


def echoes(body: Mapping[str, object]) -> bool:
    """Does its answer begin with its prompt, so that not all that comes is generated?"""
    return bool(body.get("echo"))
