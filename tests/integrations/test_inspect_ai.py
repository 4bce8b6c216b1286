"""Inspect's own self-check of sandboxes, and an evaluation that it runs, on worlds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

pytest.importorskip("inspect_ai", reason="needs inspect-ai: pip install 'ramify[inspect-ai]'")

from inspect_ai.util._sandbox import self_check
from inspect_ai.util._sandbox.environment import SandboxUnavailableError, SandboxUserUnsupportedError

from ramify.integrations.inspect_ai import WorldConfig, WorldSandboxEnvironment

CHECKS = {name: getattr(self_check, name) for name in dir(self_check) if name.startswith("test_")}

ROOT_ONLY = {"test_read_file_not_allowed": "root reads every file", "test_exec_as_user": "a world has one user"}


@pytest.fixture
async def environment(repo: Path, sandbox: str, tmp_path: Path) -> AsyncIterator[WorldSandboxEnvironment]:
    config = WorldConfig(folder=str(repo), sandbox=sandbox, home=str(tmp_path / "home"))
    made = await WorldSandboxEnvironment.sample_init("task", config, {})
    yield made["default"].as_type(WorldSandboxEnvironment)
    await WorldSandboxEnvironment.sample_cleanup("task", config, made, interrupted=False)


@pytest.mark.parametrize("check", sorted(CHECKS.keys() - ROOT_ONLY.keys()))
async def test_inspects_self_check(check: str, environment: WorldSandboxEnvironment) -> None:
    await CHECKS[check](environment)


async def test_what_a_model_writes_and_no_world_can_do(environment: WorldSandboxEnvironment) -> None:
    told = await environment.exec(["echo", "a\0b"])
    assert (told.success, told.returncode) == (False, 126) and "NUL" in told.stderr
    with pytest.raises(FileNotFoundError, match="/nowhere"):
        await environment.exec(["true"], cwd="/nowhere")
    with pytest.raises(SandboxUserUnsupportedError):
        await environment.exec(["true"], user="nobody-of-this-name")
    await environment.close()
    for closed in (environment.exec(["true"]), environment.read_file("main.py"), environment.write_file("a", "")):
        with pytest.raises(SandboxUnavailableError):
            await closed
