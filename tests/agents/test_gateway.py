"""Claude Code, unchanged, in front of a gateway: what it sends of Anthropic's API, the gateway makes a chat of."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from ramify.serving.gateway.server import LocalGateway
from ramify.serving.testing import ScriptedModel, ScriptedServer
from tests.agents.programs import ClaudeCode

pytestmark = [pytest.mark.agents, pytest.mark.timeout(600)]


async def test_claude_code_is_answered(tmp_path: Path) -> None:
    claude = ClaudeCode()
    if (program := claude.find()) is None:
        pytest.skip("claude is not installed (.ci/run agents)")
    model = ScriptedModel(lambda _: "It is done.")
    async with (
        ScriptedServer(model) as engine,
        LocalGateway(home=tmp_path / "home", upstream=engine.base_url) as gateway,
    ):
        process = await asyncio.create_subprocess_exec(
            str(program),
            *claude.begin("Say that it is done."),
            cwd=tmp_path,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(tmp_path),
                **claude.env(gateway.base_url.removesuffix("/v1")),
            },
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
        said, _ = await process.communicate()
    assert (process.returncode, said.decode().strip()) == (0, "It is done.")
    assert "Say that it is done." in str(model.calls[-1].body["messages"])
