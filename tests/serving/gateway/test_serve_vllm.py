"""`ramify serve --engine vllm` with the official client: the tags arrive in vLLM's scheduler."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import openai
import pytest

from ramify.serving.engine.vllm import PYTHON_VARIABLE

ASK: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_one_command_serves_every_endpoint_and_tags_reach_the_scheduler(weights: Path, tmp_path: Path) -> None:
    if os.environ.get(PYTHON_VARIABLE) is None and importlib.util.find_spec("vllm") is None:
        pytest.skip(f"vLLM is not installed here, and {PYTHON_VARIABLE} names no interpreter that has it")
    (tmp_path / "models").symlink_to(weights.parent)
    moves = tmp_path / "moves.jsonl"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ramify.cli.main", "--home", str(tmp_path), "serve", "--engine", "vllm"),
        *("--port", "0", "--trace", str(moves), "--engine-log", str(tmp_path / "engine.log")),
        *("--vllm-arg=--enable-auto-tool-choice", "--vllm-arg=--tool-call-parser=hermes"),
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        line = (await asyncio.wait_for(process.stderr.readline(), 400)).decode()
        assert line.startswith("serving vLLM at http://127.0.0.1:"), line
        url = line.split()[-1]
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) as client:
            await drive(client)
        arrived = [json.loads(text) for text in moves.read_text().splitlines() if '"arrive"' in text]
        stages = {e["extra_args"].get("compound_stage"): e["extra_args"] for e in arrived}
        assert stages.keys() >= {0, 1, 2}, "chat, completions and responses"
        for tags in (stages[0], stages[1], stages[2]):
            assert tags["compound_id"] == "run" and 0 < tags["slo_deadline_s"] < 100
        process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def drive(client: openai.AsyncOpenAI) -> None:
    def tagged(stage: int) -> dict[str, object]:
        return {"deadline": 100, "vllm_xargs": {"compound_id": "run", "compound_stage": stage}}

    stream = await client.chat.completions.create(
        model="default", messages=ASK, max_tokens=24, temperature=0, stream=True, extra_body=tagged(0)
    )
    chunks = [chunk async for chunk in stream]
    pieces = [text for c in chunks if c.choices and (text := c.choices[0].delta.content)]
    assert len(pieces) > 1, "streamed; what so small a model says differs from processor to processor"
    assert chunks[-1].model_extra is not None and chunks[-1].model_extra["ramify"]["met"] is True
    text = await client.completions.create(
        model="default", prompt="The capital of France is", max_tokens=4, temperature=0, extra_body=tagged(1)
    )
    assert "Paris" in text.choices[0].text
    response = await client.responses.create(
        model="default", input="Say hello.", max_output_tokens=16, extra_body=tagged(2)
    )
    assert response.output_text
    city = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}}, "required": ["name"]}
    shaped: Any = {"type": "json_schema", "json_schema": {"name": "city", "schema": city}}
    chat = await client.chat.completions.create(
        model="default", messages=ASK, max_tokens=40, temperature=0, response_format=shaped
    )
    assert json.loads(chat.choices[0].message.content or "").keys() >= {"name"}
    tool: Any = {"type": "function", "function": {"name": "look_up", "parameters": city}}
    named: Any = {"type": "function", "function": {"name": "look_up"}}
    chat = await client.chat.completions.create(
        model="default", messages=ASK, max_tokens=120, temperature=0, tools=[tool], tool_choice=named
    )
    calls: Any = chat.choices[0].message.tool_calls
    assert [call.function.name for call in calls] == ["look_up"]
    parts = await client.chat.completions.create(
        model="default", messages=ASK, max_tokens=120, temperature=0, tools=[tool], tool_choice=named, stream=True
    )
    deltas = [c.choices[0].delta.tool_calls or [] async for c in parts if c.choices]
    functions = [call.function for delta in deltas for call in delta if call.function]
    assert [f.name for f in functions if f.name] == ["look_up"]
    assert "".join(f.arguments or "" for f in functions), "as vLLM says them: it holds streamed ones to no schema"
    parts = await client.chat.completions.create(
        model="default", messages=ASK, max_tokens=40, temperature=0, response_format=shaped, stream=True
    )
    pieces = [c.choices[0].delta.content or "" async for c in parts if c.choices]
    assert len(pieces) > 2 and json.loads("".join(pieces)).keys() >= {"name"}
    with pytest.raises(openai.UnprocessableEntityError, match="deadline"):
        await client.chat.completions.create(model="default", messages=ASK, extra_body={"deadline": 0.001})
