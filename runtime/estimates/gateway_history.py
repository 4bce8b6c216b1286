"""Estimates from a gateway, for workflows of which no runs are recorded on this machine.

A gateway sees the model calls of all machines, but no other operations. So it knows the stages of a workflow and when
each is due, and nothing else that the compiler asks for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx

from ramify.compiler.estimates import CallEstimate, Estimates
from ramify.compiler.plan import OpId, StagePlan
from ramify.serving.errors import LLMRejected, LLMTimeout, LLMUnavailable
from ramify.serving.protocol import wire

_PATIENCE_S = 10.0  # for the whole answer
_MOST_BYTES = 256 * 1024  # several times the size of the longest valid answer
_MOST_STAGES = 256  # the limit of the tags that carry stages
_MOST = 1e9  # the largest number that a tag can carry
_NOWHERE = OpId("")  # a gateway does not know the operations that make the calls


@dataclass(frozen=True, slots=True)
class GatewayEstimates:
    """The recorded estimates, with the gateway's stages (`learnt`) if no stages were recorded."""

    recorded: Estimates
    learnt: tuple[StagePlan, ...]

    def valid_for_code(self, workflow: str, steps: Mapping[str, str]) -> Estimates:
        return GatewayEstimates(self.recorded.valid_for_code(workflow, steps), self.learnt)

    def step_s(self, step: str) -> float | None:
        return self.recorded.step_s(step)

    def rerun_s(self, step: str) -> float | None:
        return self.recorded.rerun_s(step)

    def calls(self, op: OpId) -> CallEstimate | None:
        return self.recorded.calls(op)

    def stages(self) -> tuple[StagePlan, ...]:
        return self.recorded.stages() or self.learnt

    def width(self, fork: OpId) -> int | None:
        return self.recorded.width(fork)

    def seal_s(self) -> float | None:
        return self.recorded.seal_s()

    def wrote(self, step: str) -> Mapping[str, tuple[str, ...]]:
        return self.recorded.wrote(step)

    def begins_without(self, path: str) -> bool:
        return self.recorded.begins_without(path)


def gateway_stages(
    workflow: str, gateway: str, *, key: str | None = None, transport: httpx.AsyncBaseTransport | None = None
) -> tuple[StagePlan, ...]:
    """Return the stages that the gateway at that base URL expects of the workflow; empty if it knows none.

    Raises `LLMUnavailable` if the gateway cannot be reached, `LLMTimeout` if it takes too long, `LLMRejected` if it
    is no gateway or requires a key, and `ValueError` if the URL is invalid.
    """
    root = wire.api_root(gateway)
    shown, key = wire.redacted(root), (key or "").strip()
    asked = _asked(root + wire.HISTORY_PATH, workflow, key, transport, trust_env=not wire.is_loopback(root))
    try:
        with ThreadPoolExecutor(1) as beside:  # a thread with its own event loop: one may be running here
            answer = beside.submit(asyncio.run, asked).result()
    except httpx.InvalidURL as error:
        raise ValueError(f"{shown!r} is not a base URL: {error}") from error
    except TimeoutError as error:
        raise LLMTimeout(f"{shown} did not give its whole answer within {_PATIENCE_S:g} s") from error
    except httpx.HTTPError as error:
        raise LLMUnavailable(f"no gateway answers at {shown}: {error or type(error).__name__}") from error
    if len(answer.content) > _MOST_BYTES:
        said = f"{shown} is not a gateway: its answer is longer than {_MOST_BYTES} bytes, which no history is"
        raise LLMRejected(said, status=answer.status_code)
    if answer.status_code >= 500:
        said = f"the gateway at {shown} cannot give its history now ({answer.status_code}): try again"
        raise LLMUnavailable(said)
    if answer.status_code != 200:
        raise LLMRejected(
            f"{shown} answered {answer.status_code} when it was asked for the history of {workflow!r}: give the "
            "address of a gateway (ramify serve), and its key in RAMIFY_API_KEY where it wants one",
            status=answer.status_code,
        )
    try:
        stages = wire.parse_object(answer.content)["stages"]
        if not isinstance(stages, list) or len(stages) > _MOST_STAGES:
            raise TypeError("no list of stages")
        return tuple(_stage(stage) for stage in stages)
    except (wire.Malformed, KeyError, TypeError, ValueError, OverflowError) as error:
        said = f"{shown} is not a gateway: its answer is not a history"
        raise LLMRejected(said, status=answer.status_code) from error


async def _asked(
    url: str, workflow: str, key: str, transport: httpx.AsyncBaseTransport | None, *, trust_env: bool
) -> httpx.Response:
    """Return the answer; stop reading when it is too long. Raises `TimeoutError` and httpx's errors."""
    headers = {"accept-encoding": "identity"} | ({"authorization": f"Bearer {key}"} if key else {})
    async with (
        asyncio.timeout(_PATIENCE_S),
        httpx.AsyncClient(transport=transport, timeout=None, headers=headers, trust_env=trust_env) as client,
        client.stream("GET", url, params={"app_id": workflow}) as response,
    ):
        kept = bytearray()
        async for part in response.aiter_bytes():
            kept += part
            if len(kept) > _MOST_BYTES:
                break
    return httpx.Response(response.status_code, content=bytes(kept))


def _stage(said: Mapping[str, float]) -> StagePlan:
    numbers = [float(said[name]) for name in ("calls", "prefill", "output", "tools_s", "seconds", "share")]
    if not all(0 <= number <= _MOST for number in numbers):
        raise ValueError("a number that no tag can hold")
    calls, prefill, output, tools_s, seconds, share = numbers
    return StagePlan(_NOWHERE, round(calls), prefill, output, tools_s, seconds, share)
