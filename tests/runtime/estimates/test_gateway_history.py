"""A plan for a workflow that never ran here uses the stages that a gateway has learned."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import pytest

from ramify.compiler.estimates import UNMEASURED
from ramify.compiler.plan import OpId, StagePlan
from ramify.runtime.estimates import gateway_history
from ramify.runtime.estimates.gateway_history import GatewayEstimates, gateway_stages
from ramify.runtime.estimates.recorded_runs import RecordedEstimates
from ramify.serving.errors import LLMRejected, LLMTimeout, LLMUnavailable

STAGE = {"calls": 2.0, "prefill": 100.0, "output": 20.0, "tools_s": 1.5, "seconds": 3.0, "share": 1.0}
ODD = (1e999, float("nan"), 10**400, 1e10, -1)  # numbers that no tag can hold
LEARNT = StagePlan(OpId(""), 2, 100.0, 20.0, 1.5, 3.0, 1.0)


def gateway(status: int = 200, body: object = None) -> httpx.MockTransport:
    said: Any = {"app_id": "w", "stages": [STAGE]} if body is None else body
    return httpx.MockTransport(lambda _: httpx.Response(status, content=json.dumps(said)))


def test_the_stages_of_a_gateway_are_read() -> None:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(200, json={"app_id": "w", "stages": [STAGE]})

    assert gateway_stages("my flow", "http://g", key="k", transport=httpx.MockTransport(answer)) == (LEARNT,)
    assert str(asked[0].url) == "http://g/v1/ramify/history?app_id=my+flow"
    assert asked[0].headers["authorization"] == "Bearer k"


@pytest.mark.parametrize(
    ("status", "body"),
    [
        *[(status, {}) for status in (404, 401)],
        *[(200, body) for body in ([], {"data": []}, {"stages": 3}, {"stages": [{"calls": 1}]})],
        *[(200, {"stages": [STAGE | {name: odd}]}) for name in STAGE for odd in ODD],
        (200, {"stages": [STAGE] * 257}),
    ],
)
def test_other_answers_are_refused(status: int, body: object) -> None:
    with pytest.raises(LLMRejected, match="gateway"):
        gateway_stages("w", "http://g", transport=gateway(status, body))


@pytest.mark.parametrize("url", ["http://a:abc", "http://a\u2025b", "nonsense"])
def test_an_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="is not a base URL"):
        gateway_stages("w", url)


def test_a_key_is_never_shown() -> None:
    """A key with a line break is no valid header, and httpx would show it in its error."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(LLMUnavailable, match="no gateway answers") as caught:
        gateway_stages("w", f"http://127.0.0.1:{port}", key=" sk-1\n")
    assert "sk-1" not in str(caught.value)
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"stages": []})

    gateway_stages("w", "http://g", key=" sk-1\n", transport=httpx.MockTransport(answer))
    assert seen[0].headers["authorization"] == "Bearer sk-1"


def test_a_gateway_that_fails_is_reported_as_unavailable() -> None:
    with pytest.raises(LLMUnavailable, match=r"http://g/v1 cannot give its history now \(503\): try again"):
        gateway_stages("w", "http://g", transport=gateway(503, {}))


def test_an_unreachable_gateway_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(LLMUnavailable, match=f"no gateway answers at http://127.0.0.1:{port}"):
        gateway_stages("w", f"http://127.0.0.1:{port}")


class Endless(httpx.AsyncByteStream):
    def __init__(self, part: bytes, every_s: float) -> None:
        self.given, self.closed = 0, False
        self._part, self._every_s = part, every_s

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            await asyncio.sleep(self._every_s)
            self.given += len(self._part)
            yield self._part

    async def aclose(self) -> None:
        self.closed = True

    def transport(self) -> httpx.MockTransport:
        return httpx.MockTransport(lambda _: httpx.Response(200, stream=self))


def test_an_endless_answer_is_refused() -> None:
    endless = Endless(b"[" * 65536, 0)
    with pytest.raises(LLMRejected, match=r"http://g/v1 is not a gateway: .* longer than 262144 bytes"):
        gateway_stages("w", "http://g", transport=endless.transport())
    assert endless.given <= 262144 + 65536 and endless.closed


@pytest.mark.parametrize("status", [200, 500])
def test_a_slow_answer_times_out(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_history, "_PATIENCE_S", 0.1)
    drips = Endless(b" ", 0.001)
    way = httpx.MockTransport(lambda _: httpx.Response(status, stream=drips))
    with pytest.raises(LLMTimeout, match=r"http://g/v1 did not give its whole answer within 0\.1 s"):
        gateway_stages("w", "http://g", transport=way)
    assert drips.closed


async def test_it_works_while_an_event_loop_runs() -> None:
    assert gateway_stages("w", "http://g", transport=gateway()) == (LEARNT,)


def test_local_recordings_take_precedence() -> None:
    own = (StagePlan(OpId("a"), 1, 1.0, 1.0, 0.0, 1.0, 1.0),)

    class Recorded(RecordedEstimates):
        def stages(self) -> tuple[StagePlan, ...]:
            return own

    def stages(of: Any) -> Sequence[StagePlan]:
        return GatewayEstimates(of, (LEARNT,)).valid_for_code("w", {}).stages()

    assert stages(Recorded(())) == (LEARNT,), (
        "the recorded code is another by now: RecordedEstimates has nothing of this one"
    )
    assert GatewayEstimates(Recorded(()), (LEARNT,)).stages() == own
    assert stages(UNMEASURED) == (LEARNT,)
