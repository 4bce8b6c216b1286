"""Python sessions: names persist, output and errors are reported, a fork shares the memory."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import ProcessTier, Snapshot
from ramify.sandboxes.backends.copying import CopyBackend
from ramify.sandboxes.backends.namespaces.backend import NamespaceBackend
from ramify.sandboxes.contract import Repl, World, WorldSpec
from ramify.sandboxes.errors import SandboxError, Unsupported
from ramify.sandboxes.testing import ScriptedBackend

Out = Callable[[World, str], Awaitable[str]]


@pytest.fixture(params=[pytest.param(NamespaceBackend, marks=pytest.mark.linux_ns), CopyBackend])
async def world(
    request: pytest.FixtureRequest, store: SnapshotStore, scratch: Path, base: Snapshot, spec: WorldSpec
) -> AsyncIterator[World]:
    async with request.param(store, scratch) as backend:
        yield await backend.materialise(base, spec)


@pytest.fixture
async def repl(world: World) -> Repl:
    return await world.python()


async def test_names_values_output_and_errors(repl: Repl) -> None:
    assert (await repl.run("x = 20")).value is None
    result = await repl.run("import sys\nprint('out', x)\nprint('err', file=sys.stderr)\nx + 1")
    assert (result.value, result.stdout, result.stderr, result.error) == ("21", "out 20\n", "err\n", None)
    assert (await repl.run("_ * 2")).value == "42"
    assert (await repl.run("def f():\n    return 'ü\\ud800'\nf()")).value == "'ü\\ud800'"
    for code, error in (("1 / 0", "ZeroDivisionError"), ("if", "SyntaxError"), ("raise SystemExit(3)", "SystemExit")):
        failed = await repl.run(code)
        assert error in (failed.error or "")
        assert "session.py" not in (failed.error or "")
        assert not failed.ok
    assert (await repl.run("x")).value == "20"
    assert (await repl.run("")).ok


async def test_a_session_starts_in_the_shells_directory_and_environment(world: World, out: Out) -> None:
    await out(world, "cd package; export SEEN=1")
    repl = await world.python("second")
    result = await repl.run("import os; open('made', 'w').close(); (os.environ['SEEN'], os.listdir('.'))")
    seen, names = ast.literal_eval(result.value or "")
    assert (seen, sorted(names)) == ("1", ["code.py", "inner", "made"])
    assert (world.path / "package" / "made").exists()
    assert await world.background_processes() == 1


async def test_the_same_name_is_the_same_session(world: World, repl: Repl) -> None:
    await repl.run("x = 1")
    again = await world.python()
    assert (await again.run("x")).value == "1"
    assert (await (await world.python("other")).run("x")).error


async def test_a_timeout_interrupts_and_then_kills(repl: Repl, world: World) -> None:
    await repl.run("x = 1")
    result = await repl.run("import time\nprint('begun', flush=True)\nwhile True: time.sleep(0.01)", timeout=2.0)
    assert (result.timed_out, result.lives, result.stdout) == (True, True, "begun\n")
    assert "KeyboardInterrupt" in (result.error or "")
    assert (await repl.run("x")).value == "1"
    deaf = "import time\nwhile True:\n  try: time.sleep(10)\n  except KeyboardInterrupt: pass"
    result = await repl.run(deaf, timeout=1.5)
    assert (result.timed_out, result.lives) == (True, False)
    with pytest.raises(SandboxError, match="no Python session"):
        await repl.run("x")
    assert (await (await world.python()).run("1")).value == "1"


async def test_cancelling_interrupts(repl: Repl) -> None:
    task = asyncio.create_task(repl.run("while True: pass"))
    await asyncio.sleep(0.2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await repl.run("1")).value == "1"


async def test_a_session_that_ends_itself_is_reported(repl: Repl, world: World) -> None:
    result = await repl.run("import os; print('bye', flush=True); os._exit(3)")
    assert (result.lives, result.ok, result.stdout) == (False, False, "bye\n")
    await repl_is_gone(repl)
    second = await world.python("second")
    await second.close()
    await repl_is_gone(second)
    assert await world.background_processes() == 0


async def repl_is_gone(repl: Repl) -> None:
    with pytest.raises(SandboxError, match="no Python session"):
        await repl.run("1")


async def test_a_forked_session_starts_equal_and_is_independent(repl: Repl, world: World) -> None:
    await repl.run("import os; data = bytearray(b'x' * 10_000_000); n = 0")
    children = [await repl.fork(f"child{n}") for n in range(3)]
    for n, child in enumerate(children):
        assert (await child.run(f"n += {n} + 1; data[0] = n; (n, len(data))")).value == f"({n + 1}, 10000000)"
    assert (await repl.run("n, data[0]")).value == "(0, 120)"
    deeper = await children[1].fork("deeper")
    assert (await deeper.run("n")).value == "2"
    pids = {(await session.run("os.getpid()")).value for session in (repl, deeper, *children)}
    assert len(pids) == 5
    assert await world.background_processes() == 5
    with pytest.raises(SandboxError, match="already"):
        await repl.fork("child0")


async def test_invalid_names_and_missing_interpreters_are_refused(world: World) -> None:
    for name in ("", "../x", "a b"):
        with pytest.raises(ValueError, match="not a name"):
            await world.python(name)
    with pytest.raises(SandboxError, match="no-such-python"):
        await world.python(interpreter="no-such-python")
    (world.path / "python").symlink_to("/nowhere/bin/python3")  # a virtual environment whose Python is not visible
    with pytest.raises(SandboxError, match="visible="):
        await world.python(interpreter="./python")


async def test_a_snapshot_without_the_session_says_so(world: World, repl: Repl) -> None:
    await repl.run("import socket; held = socket.socketpair()")
    kept = (await world.seal()).processes
    assert (kept.tier, kept.dropped) == (ProcessTier.DROPPED, 1)
    assert kept.reason
    assert (await repl.run("1")).value == "1"


@pytest.mark.linux_ns
@pytest.mark.criu
async def test_sessions_are_dumped_with_the_world(
    namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec
) -> None:
    dumpable = replace(spec, dumpable=True)
    world = await namespaces.materialise(base, dumpable)
    repl = await world.python("kept")
    await repl.run("x = [1]; file = open('lines', 'w', buffering=1); file.write('one\\n')")
    sealed = await world.seal()
    assert sealed.processes.tier.whole
    forks = [await namespaces.materialise(sealed, dumpable) for _ in range(2)]
    for n, fork in enumerate(forks):
        again = await fork.python("kept")
        assert (await again.run(f"x.append({n}); file.write('two\\n'); x")).value == f"[1, {n}]"
        assert (fork.path / "lines").read_text() == "one\ntwo\n"
        child = await again.fork("child")
        assert (await child.run("x")).value == f"[1, {n}]"
    assert (await repl.run("x")).value == "[1]"
    assert (world.path / "lines").read_text() == "one\n"


async def test_a_scripted_world_has_no_sessions(
    store: SnapshotStore, scratch: Path, base: Snapshot, spec: WorldSpec
) -> None:
    async with ScriptedBackend(store, scratch, {}) as backend:
        world = await backend.materialise(base, spec)
        with pytest.raises(Unsupported, match="scripted"):
            await world.python()
        with pytest.raises(Unsupported, match="scripted"):
            await world.keep_running("sleep 1")
