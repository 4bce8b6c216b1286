"""What `--json` prints is what docs/reference/formats.md says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands_of import every_command

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "formats.md"
ROW = re.compile(r"^\| (`.+`) \| (a list|one object).* \| (.+) \|$", re.MULTILINE)
TOLD = {
    command: (shape, keys.split(", "))
    for commands, shape, keys in ROW.findall(PAGE.read_text())
    for command in re.findall(r"`(.+?)`", commands)
}
FLOW = """
from ramify import Sandbox, step, workflow

@step
async def write(sandbox: Sandbox, name: str) -> None:
    (sandbox.path / name).write_text(name)

@step(effect="irreversible")
async def send() -> str:
    return "sent"

@workflow
async def flow() -> str:
    await write("a")
    await write("b")
    return await send()
"""
CALLS = {
    "ls": ["ls"],
    "tree": ["tree"],
    "log": ["log"],
    "show RUN": ["show"],
    "show STATE": ["show", "@~1"],
    "diff": ["diff", "@"],
    "gc": ["gc", "--dry-run"],
    "fsck": ["fsck"],
    "doctor": ["doctor"],
    "models ls": ["models", "ls"],
}


@pytest.mark.parametrize("command", CALLS)
def test_json_output_has_the_documented_keys(command: str, home: Any, ramify: Any) -> None:
    shape, keys = TOLD[command]
    told = ramify(*CALLS[command], "--json").json
    assert isinstance(told, list) == (shape == "a list")
    for one in told if isinstance(told, list) else [told]:
        assert list(one) == keys


def test_json_output_of_acting_commands_has_the_documented_keys(ramify: Any, tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(FLOW)
    flow, workspace = f"{tmp_path / 'flow.py'}:flow", tmp_path / "workspace"
    workspace.mkdir()
    made: dict[str, Any] = {}
    made["run"] = ramify("run", flow, "--sandbox", "copy", "--workspace", workspace, "-q", "--json").json
    first = made["run"]["run"]
    made["explain"] = ramify("explain", "--json").json
    made["fork"] = ramify("fork", f"{first}~1", "--for-real", "--json").json
    made["resume"] = ramify("resume", "-q", "--json").json
    made["merge"] = ramify("merge", first, made["resume"]["run"], "--json").json
    (made["effects"],) = ramify("effects", first, "--json").json
    assert {command: list(told) for command, told in made.items()} == {command: TOLD[command][1] for command in made}


def test_json_output_of_worlds_has_the_documented_keys(ramify: Any, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert ramify("world", "new", tmp_path / "folder", "--name", "one", "--sandbox", "copy").status == 0
    assert ramify("world", "fork", "one", "--name", "two").status == 0
    assert ramify("world", "exec", "two", "echo more > more").status == 0
    (one, *_), (changed,) = ramify("world", "ls", "--json").json, ramify("world", "diff", "one", "two", "--json").json
    assert (list(one), list(changed)) == (TOLD["world ls"][1], TOLD["world diff"][1])


def test_every_command_with_json_is_on_the_page() -> None:
    with_json = {
        name for name, command in every_command().items() if any("--json" in one.opts for one in command.params)
    }
    named = {re.sub(r" (RUN|STATE|--remote)$", "", command) for command in TOLD}
    assert with_json - named == set(), "add their keys to docs/reference/formats.md"
    assert named - with_json == set(), "these commands of docs/reference/formats.md have no --json"
