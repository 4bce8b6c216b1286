"""Unchanged agent programs in a world that reaches nothing but a model server, whose key the world never sees."""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramify.fork_engine.types import Conflict, MergeStrategy
from ramify.sandboxes import doctor
from ramify.sandboxes.egress.connection_log import Outcome
from ramify.sandboxes.egress.hosts import FixedResolver
from ramify.sandboxes.egress.settings import ADDRESS, Egress
from ramify.sandboxes.process_contract import Process
from ramify.worlds.commands import Terminal
from ramify.worlds.home import WorldHome
from ramify.worlds.world import World
from tests.agents.model_server import PATIENCE, Asked, ModelServer, Pause, Turn
from tests.agents.programs import PROGRAMS, RIGHT, TASK, TESTS, WRONG, Program
from tests.sandboxes.egress.conftest import Authority, make_authority

pytestmark = [pytest.mark.agents, pytest.mark.linux_ns, pytest.mark.timeout(600)]
KEY = "key-of-the-model-server"
LOGINS = (
    *(".claude/.credentials.json", ".claude.json", ".codex/auth.json", ".local/share/opencode/auth.json"),
    *(".aider.conf.yml", ".config/mini-swe-agent/.env"),
)
FORKS = ("east", "west")


@pytest.fixture(params=PROGRAMS, ids=lambda program: program.command)
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Program:
    installed(request.param, tmp_path)
    found: Program = request.param
    return found


def installed(program: Program, scratch: Path) -> None:
    """Skip the test unless worlds can be made and the program is there."""
    able = doctor.namespaces(scratch)
    if not able.available:
        pytest.skip(able.reason)
    if program.find() is None:
        pytest.skip(f"{program.command} is not installed (.ci/run agents)")


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The home of somebody who has logged in with every program. Not below /tmp, which a merge leaves alone."""
    with tempfile.TemporaryDirectory(prefix="ramify-test-agents-", dir=Path.home()) as folder:
        monkeypatch.setenv("HOME", folder)
        for name in LOGINS:
            Path(folder, name).parent.mkdir(parents=True, exist_ok=True)
            Path(folder, name).write_text(f'{{"key": "{KEY}"}}')
        yield Path(folder)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    (folder / "add.py").write_text(f"def add(a, b):\n{WRONG}")
    (folder / "test_add.py").write_text("from add import add\nassert add(2, 3) == 5, add(2, 3)\nprint('passed')\n")
    return folder


class Model:
    """Repairs the file, and rests before its last answer; then writes a note for whoever asks for one."""

    def __init__(self, program: Program, folder: Path) -> None:
        self.program, self.pause = program, Pause()
        self.repair = program.repair(str(folder))
        self.continued: set[str] = set()  # whoever asked for a note in the conversation about the repair

    def __call__(self, asked: Asked) -> Turn:
        if self.program.side_calls and not asked.tools:
            return Turn("A title")
        begun = asked.answers_since(TASK, self.program.made_up)
        for name in FORKS:
            answered = asked.answers_since(note_of(name), self.program.made_up)
            if answered is not None:
                if begun is not None:
                    self.continued.add(name)
                return self.program.note(name)[answered]
        assert begun is not None, f"an unknown conversation: {asked.said}"
        if begun == len(self.repair) - 1:
            self.pause.hold()
        return self.repair[begun]


def note_of(name: str) -> str:
    return f"Now write {name}.txt."


def decide(program: Program) -> object:
    """In a merge, keep our own conversations."""

    def resolve(conflict: Conflict, *_: bytes | None) -> MergeStrategy:
        return MergeStrategy.OURS if conflict.path.startswith(program.memory) else MergeStrategy.FAIL

    return resolve


async def ended(process: Process) -> bytes:
    return await process.stdout.collected() + await process.stderr.collected()


async def test_it_works_and_goes_on_in_forks(
    program: Program, user: Path, repo: Path, authority: Authority, tmp_path: Path
) -> None:
    """It edits, runs the tests and finishes, over an API at a host's name, by HTTPS, with a key that the broker adds.
    A fork in the middle of its last turn goes on with its own conversation, and its work is merged."""
    model = Model(program, repo)
    where = str(program.find())
    async with WorldHome(tmp_path / "home", "namespaces") as home:
        with ModelServer(model, KEY, authority.server) as server:
            host = f"ok.test:{server.port}"
            base = f"{ADDRESS}/-/{host}"
            names = FixedResolver({"ok.test": "127.0.0.1"})
            keys = {host: program.header(KEY)}
            allowed = Egress([host, f"127.0.0.1:{server.port}"], keys, resolver=names, tls=authority.client)
            world = await World.create(repo, egress=allowed, home=home, env=program.env(base))
            for name, text in program.files(base).items():
                await world.exec(f'mkdir -p "$(dirname ~/{name})" && cat > ~/{name}', stdin=text, check=True)

            async with world.start([where, *program.begin(TASK)]) as process:
                process.stdout.collect(1 << 20)
                process.stderr.collect(1 << 20)
                while not await asyncio.to_thread(model.pause.reached.wait, 0.5):
                    assert process.returncode is None, (server.failures, server.refused, await ended(process))
                forks = await world.fork(len(FORKS))
                told = await asyncio.gather(
                    *(
                        fork.exec([where, *program.go_on(note_of(name))], timeout=PATIENCE)
                        for fork, name in zip(forks, FORKS, strict=True)
                    )
                )
                assert [one.exit_code for one in told] == [0, 0], told
                model.pause.end()
                assert await process.wait() == 0, await ended(process)

            assert (server.failures, server.refused) == ([], [])
            assert model.continued == (set(FORKS) if program.continues else set())
            for fork, name in zip(forks, FORKS, strict=True):
                assert (await fork.read(f"{name}.txt")).decode() == f"{name}\n"
                await world.merge(fork, strategy=decide(program))
                await fork.close()
            assert (await world.read("add.py")).decode().endswith(RIGHT)
            assert (await world.exec(TESTS)).stdout == "passed\n"
            assert (await world.exec("cat east.txt west.txt")).stdout == "east\nwest\n"
            assert (await world.exec(f"grep -rlse {KEY} ~ . /tmp /proc/[0-9]*/environ")).stdout == ""
            reached_hosts = {one.host for one in await world.connections() if one.outcome is not Outcome.REFUSED}
            assert reached_hosts == {"ok.test"}
            await world.close()


async def test_a_program_in_a_terminal_of_the_world(user: Path, repo: Path, tmp_path: Path) -> None:
    """Claude Code's own interface: a task is typed, and it works."""
    claude = next(program for program in PROGRAMS if program.command == "claude")
    installed(claude, tmp_path)
    model = Model(claude, repo)
    model.pause.end()
    known = {"hasTrustDialogAccepted": True}
    settings = {"hasCompletedOnboarding": True, "theme": "dark", "bypassPermissionsModeAccepted": True}
    keys = {"approved": ["placeholder"], "rejected": []}
    async with WorldHome(tmp_path / "home", "namespaces") as home:
        with ModelServer(model, KEY) as server:
            allowed = Egress([f"127.0.0.1:{server.port}"], credentials={server.url: claude.header(KEY)})
            async with World.create(repo, egress=allowed, home=home, env=claude.env(server.url)) as world:
                text = json.dumps({**settings, "customApiKeyResponses": keys, "projects": {str(repo): known}})
                await world.exec("cat > ~/.claude.json", stdin=text, check=True)
                words = [str(claude.find()), "--dangerously-skip-permissions"]
                async with asyncio.timeout(PATIENCE), world.pty(words, rows=40, columns=120) as terminal:
                    await shows(terminal, "bypass permissions on")
                    await terminal.write(TASK)
                    await shows(terminal, TASK)
                    await terminal.write("\r")
                    while not model.pause.reached.is_set():
                        assert await terminal.read()
                assert (await world.exec(TESTS)).stdout == "passed\n"


async def shows(terminal: Terminal, words: str) -> None:
    """Read until the words are on the screen, whatever moves the cursor between them."""
    seen = ""
    while "".join(words.split()) not in re.sub(r"\x1b\[[0-9;?<>=]*[A-Za-z]|\s", "", seen):
        shown = await terminal.read()
        assert shown, f"it ended: {seen}"
        seen += shown.decode(errors="replace")
