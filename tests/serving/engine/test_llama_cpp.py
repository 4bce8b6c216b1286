"""The embedded engine with real weights, and its errors without them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import httpx
import pytest

from ramify.serving.client import LLMClient
from ramify.serving.engine.llama_cpp import LocalEngine
from ramify.serving.errors import EngineFailed
from ramify.serving.gateway.engines.liveness import work_counters
from ramify.serving.letter_ranking import letter_request, letter_scores
from ramify.serving.types import ChatRequest, user

PYTHON_BUG = (
    "def last(items):\n    return items[len(items)]\n\nThe test last([1, 2]) == 2 fails. Which line repairs it?"
)
OPTIONS = ["return items[0]", "return items[len(items) - 1]", "return len(items)"]


@pytest.mark.model
async def test_chat_stream_and_ranking_work(weights: Path) -> None:
    async with LocalEngine(weights, alias="tiny") as engine, LLMClient(engine.base_url, api_key=engine.key) as client:
        assert await client.models() == ("tiny",)
        request = ChatRequest(user("Say hello."), max_tokens=12)
        whole = await client.chat(request)
        assert whole.text and whole.completion_tokens <= 12 and whole.prompt_tokens > 3
        async with client.stream(request) as stream:
            pieces = [piece async for piece in stream]
        assert len(pieces) > 1
        assert stream.result == whole, "equal requests, equal answers"
        ranking = letter_request(PYTHON_BUG, OPTIONS)
        scores = [letter_scores(await client.chat(ranking), 3) for _ in range(2)]
        together = await asyncio.gather(*[client.chat(r) for r in (request, ranking, request)])
    assert all(-20 < score < 0 for score in scores[0])
    assert len(set(scores[0])) == 3
    assert scores[0] == scores[1] == letter_scores(together[1], 3), "also where others ask at the same time"


@pytest.mark.model
async def test_counters_grow_for_a_silent_answer(weights: Path) -> None:
    async with LocalEngine(weights) as engine, LLMClient(engine.base_url, api_key=engine.key) as client:
        counts = set[tuple[bytes, ...]]()
        shown = {"authorization": f"Bearer {engine.key}"}
        request = httpx.Request("GET", engine.base_url.removesuffix("/v1") + "/metrics", headers=shown)
        call = asyncio.create_task(client.chat(ChatRequest(user("Tell me a story."), max_tokens=200)))
        async with httpx.AsyncClient(trust_env=False) as reader:
            while not call.done():
                counts.add(work_counters((await reader.send(request)).content))
        await call
    assert () not in counts and len(counts) > 2


@pytest.mark.model
async def test_embedded_engine_answers_only_its_gateway(weights: Path) -> None:
    """A page reaches its port as it reaches the gateway's; llama.cpp would even let it read the answer."""
    body = {"prompt": "hi", "max_tokens": 1}
    async with LocalEngine(weights) as engine, httpx.AsyncClient(base_url=engine.base_url, trust_env=False) as http:
        for shown in ({}, {"authorization": "Bearer wrong"}):
            answer = await http.post("/completions", json=body, headers={"origin": "http://evil.test", **shown})
            assert answer.status_code == 401
            assert not answer.headers.get("access-control-allow-origin")
        assert (await http.get(engine.base_url.removesuffix("/v1") + "/metrics")).status_code == 401
        right = {"authorization": f"Bearer {engine.key}"}
        assert (await http.post("/completions", json=body, headers=right)).status_code == 200
        command = Path(f"/proc/{engine.pid}/cmdline").read_text()
        assert engine.key not in command, "everybody on this machine can read it"


@pytest.mark.model
async def test_engine_dies_with_its_parent(weights: Path) -> None:
    code = (
        "import asyncio, sys\nfrom pathlib import Path\nfrom ramify.serving.engine.llama_cpp import LocalEngine\n"
        "async def main():\n"
        "    async with LocalEngine(Path(sys.argv[1])) as engine:\n"
        "        print(engine.pid, flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, str(weights)), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    handle = os.pidfd_open(pid)
    try:
        parent.send_signal(signal.SIGKILL)
        await parent.wait()
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(handle, ended.set)
        await asyncio.wait_for(ended.wait(), 20)
        asyncio.get_running_loop().remove_reader(handle)
    finally:
        os.close(handle)


async def test_missing_weights_error_names_the_path(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="needs the extra ramify[local]")
    with pytest.raises(EngineFailed, match=f"no weights at {tmp_path}/none.gguf: run ramify models pull"):
        async with LocalEngine(tmp_path / "none.gguf"):
            pytest.fail("there is nothing to serve")


async def test_invalid_model_file_error_shows_the_engines_log(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="needs the extra ramify[local]")
    bad, log = tmp_path / "bad.gguf", tmp_path / "engine.log"
    bad.write_bytes(b"nonsense" * 100)
    with pytest.raises(EngineFailed, match=r"ended with status 1 before it was ready; it said last:\n") as caught:
        async with LocalEngine(bad, log=log):
            pytest.fail("nonsense was served")
    assert "model" in str(caught.value)
    assert log.read_text()


async def test_missing_xllamacpp_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EngineFailed, match=r"pip install 'ramify\[local\]'"):
        async with LocalEngine(tmp_path / "any.gguf"):
            pytest.fail("there is no engine")
