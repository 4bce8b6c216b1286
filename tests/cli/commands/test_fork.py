"""`fork` and `merge`: what would have happened otherwise, from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

FLOW = """
from ramify import Sandbox, step, workflow

@step
async def write(sandbox: Sandbox, name: str) -> str:
    (sandbox.path / name).write_text(name)
    return name

@step
async def listing(sandbox: Sandbox) -> list[str]:
    return sorted(path.name for path in sandbox.path.iterdir())

@workflow
async def flow() -> list[str]:
    await write("a")
    await write("b")
    return await listing()
"""


@pytest.fixture
def ran(ramify: Any, tmp_path: Path) -> str:
    """A run that is done; its id."""
    (tmp_path / "flow.py").write_text(FLOW)
    (tmp_path / "workspace").mkdir()
    arguments = ("--sandbox", "copy", "--workspace", tmp_path / "workspace", "--json", "--quiet")
    said = ramify("run", f"{tmp_path / 'flow.py'}:flow", *arguments)
    assert said.status == 0, said.err
    return str(said.json["run"])


def test_a_fork_with_edited_files_is_resumed_and_merged_back(ran: str, ramify: Any, tmp_path: Path) -> None:
    edited = tmp_path / "what-if"
    assert ramify("checkout", f"{ran}~1", edited).status == 0
    (edited / "mine").write_text("mine")
    fork = ramify("fork", f"{ran}~1", "--files", edited, "--json").json
    assert (fork["status"], fork["name"]) == ("forked", "flow")
    assert [run["status"] for run in ramify("ls", "--json").json] == ["forked", "done"]
    assert ramify("resume", "--quiet", "--json").json["result"] == ["a", "b", "mine"]
    said = ramify("merge", ran, fork["run"])
    assert (said.status, len(said.out.split())) == (0, 1), said.err
    assert ramify("checkout", said.out.strip(), tmp_path / "merged").status == 0
    assert sorted(path.name for path in (tmp_path / "merged").iterdir()) == ["a", "b", "mine"]
    assert "forked from" in ramify("log", said.out.strip()).out.splitlines()[0]


def test_conflicts_are_reported_and_resolved_by_a_strategy(ran: str, ramify: Any, tmp_path: Path) -> None:
    forks = []
    for text in ("one", "two"):
        folder = tmp_path / text
        ramify("checkout", f"{ran}~1", folder)
        (folder / "same").write_text(text)
        forks.append(ramify("fork", f"{ran}~1", "--files", folder).out.strip())
    said = ramify("merge", *forks)
    assert said.status == 1
    assert "same" in said.err
    assert ramify("merge", *forks, "--strategy", "ours").status == 0


def test_fork_of_a_lost_state_reports_it_and_recomputes_it(ran: str, ramify: Any, tmp_path: Path) -> None:
    lost = ramify("show", f"{ran}~1", "--json").json["snapshot"]
    (tmp_path / "home" / "store" / "snapshots" / f"{lost}.json").unlink()
    said = ramify("fork", f"{ran}~1")
    assert said.status == 0
    assert f"{lost} is not in the store" in said.err and "a resume runs again the steps that made it" in said.err
    assert ramify("resume", "--quiet", "--json").json["result"] == ["a", "b"]
    assert "is not in the store" not in ramify("fork", ran).err


def test_a_fork_needs_a_checkpoint(ran: str, ramify: Any, tmp_path: Path) -> None:
    snapshot = ramify("show", f"{ran}~1", "--json").json["snapshot"]
    said = ramify("fork", snapshot[:12])
    assert (said.status, said.out) == (1, "")
    assert f"ramify --home {tmp_path / 'home'} log" in said.err
    assert ramify("fork", "@", "--files", tmp_path / "missing").status == 2
