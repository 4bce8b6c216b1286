"""What the pages tell a reader to do is done, and what they show is what comes of it."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import shlex
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

from ramify.cli.main import run_command_line
from ramify.runtime.langgraph.app.world_app import WorldApp
from ramify.runtime.langgraph.checkpointer import Saver
from ramify.sandboxes.linux import processes

# The checks' own module: pytest imports this file by its path.
sys.path.insert(0, str(Path(__file__).parent))
from blocks import PAGES, ROOT, Block, agrees, blocks, commands

WHY = {
    "claude": "needs Claude Code and a key of its API (tests/agents run it against a scripted server)",
    "gpu": "needs a GPU and vLLM",
    "docker": "needs a Docker Engine (its tests: -m docker)",
    "postgres": "needs a PostgreSQL server (its tests: make test-postgres)",
    "model": "needs the weights (ramify models pull)",
    "mini-swe-agent": "needs mini-swe-agent (its tests: tests/integrations)",
    "nemo-gym": "needs nemo-gym (its tests: tests/integrations)",
    "openai-agents": "needs openai-agents (its tests: tests/integrations)",
    "swe-rex": "needs swe-rex (its tests: tests/integrations)",
    "openenv": "needs openenv (its tests: tests/integrations)",
    "verifiers": "needs verifiers (its tests: tests/integrations)",
    "deepagents": "needs deepagents (its tests: tests/integrations)",
    "ray": "needs a Ray cluster (its tests: tests/fleet)",
    "dbos": "needs DBOS (its test: tests/docs/test_queues.py)",
    "procrastinate": "needs procrastinate and a PostgreSQL server",
    "namespaces": "needs worlds in namespaces, where pages are run on copies",
    "network": "installs packages",
    "terminal": "needs a terminal",
}
NEEDY = [(page, block) for page in PAGES for block in blocks(page) if block.needs]


class Shell:
    """One bash for a page, in a folder of its own. Plain `ramify` commands are run in this process: faster."""

    def __init__(self, folder: Path, env: dict[str, str], capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd
        pipe = subprocess.PIPE
        self._bash = subprocess.Popen(
            ["bash", "--norc"], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, cwd=folder, env=env, text=True
        )

    def run(self, command: str) -> tuple[int, str]:
        """Its exit status and what it printed to stdout; what goes to stderr is progress."""
        if command.startswith("ramify ") and not set(command) & set("$|&;<>*\\"):
            self._capfd.readouterr()
            status = run_command_line(shlex.split(command, comments=True)[1:])
            return status, self._capfd.readouterr().out
        assert self._bash.stdin and self._bash.stdout
        end = uuid.uuid4().hex
        self._bash.stdin.write(f"{command}\necho; echo {end} $?\n")
        self._bash.stdin.flush()
        lines: list[str] = []
        for line in self._bash.stdout:
            if line.startswith(end):
                return int(line.split()[1]), "".join(lines)
            lines.append(line)
        raise AssertionError(f"the shell ended in: {command}")

    def close(self) -> None:
        assert self._bash.stdin and self._bash.stdout
        self._bash.stdin.close()
        self._bash.wait()
        self._bash.stdout.close()


def python(block: Block, page: Path, names: dict[str, object]) -> None:
    """From a file, since workflows are read from theirs. `await` at the top is what a reader would have around it."""
    file = Path(f"{page.stem}.{block.line}.py")
    file.write_text("\n" * block.line + block.text)
    code = compile(file.read_text(), str(file.resolve()), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if code.co_flags & inspect.CO_COROUTINE:
        asyncio.run(eval(code, names))
    else:
        exec(code, names)


def helpers() -> set[tuple[int, int]]:
    """The processes that hold this process's open worlds."""
    found = set()
    for one in processes.descendants(os.getpid()):
        with suppress(OSError):  # it has ended since
            if b"fork-server" in Path(f"/proc/{one.pid}/cmdline").read_bytes():
                found.add(one.key)
    return found


@pytest.mark.timeout(600)  # a machine that has much else to do
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page(
    page: Path,
    tmp_path: Path,
    model_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    own_modules: None,
    warm_programs: Path,
) -> None:
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("RAMIFY_")},
        "PATH": f"{warm_programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "RAMIFY_HOME": str(tmp_path / "home"),
        "RAMIFY_SANDBOX": "copy",
        "RAMIFY_BASE_URL": model_url,
        "COLUMNS": "160",
    }
    for name in ("RAMIFY_HOME", "RAMIFY_SANDBOX", "RAMIFY_BASE_URL", "COLUMNS"):
        monkeypatch.setenv(name, env[name])
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    shell = Shell(work, env, capfd)
    names: dict[str, object] = {"__name__": "page"}
    before = helpers()
    try:
        for block in blocks(page):
            if block.needs is not None:
                continue
            if block.title is not None:
                target = work / block.title
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(block.text)
            elif block.language == "python":
                python(block, page, names)
            elif block.language == "console":
                for command in commands(block):
                    status, printed = shell.run(command.text)
                    where = f"{page.name}:{block.line}: $ {command.text}"
                    assert status == 0, f"{where}\nexit status {status}\n{printed}"
                    if command.output:
                        assert agrees(command.output, printed), f"{where}\n{printed}"
    finally:
        shell.close()
        for value in (one for kind in (WorldApp, Saver) for one in names.values() if isinstance(one, kind)):
            value.close()
    assert helpers() <= before, "the page leaves worlds open, as its readers would"


@pytest.mark.parametrize(("page", "block"), NEEDY, ids=lambda part: getattr(part, "name", None))
def test_what_cannot_be_run_everywhere(page: Path, block: Block) -> None:
    assert block.needs is not None
    pytest.skip(f"{page.name}:{block.line}: {WHY[block.needs]}")
