"""Objects of one process or event loop raise an error if they are used in another; nothing waits for ever."""

from __future__ import annotations

import asyncio
import contextvars
import json
import subprocess
import sys
from pathlib import Path

import pytest
import used_elsewhere_app as app

import ramify
from ramify import Runtime
from ramify.runtime.errors import RunError, RuntimeClosed


def test_a_forked_child_gets_errors_for_objects_of_its_parent(tmp_path: Path) -> None:
    """Each use raises an error that says what to do, instead of waiting for a thread or loop that does not exist
    there. A Runtime of the child's own works."""
    command = [sys.executable, app.__file__, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    told = dict(json.loads(line) for line in done.stdout.splitlines())
    own = told.pop("a Runtime of its own")
    assert own == "gave 5"
    assert told.pop("closing it") == "gave None"
    assert set(told) == set(app.USES) - {"a Runtime of its own", "closing it"}, done.stderr
    for use, said in told.items():
        assert said.startswith("UsedAfterFork: "), (use, said)
        assert "which was forked from" in said
        assert "Open a new one in the child" in said
    assert "parent: gave 5" in done.stderr  # the parent is not affected


def test_a_context_that_outlives_its_runtime_is_an_error(home: Path) -> None:
    copied: list[contextvars.Context] = []

    async def main() -> None:
        async with Runtime(home=home, sandbox="copy"):
            copied.append(contextvars.copy_context())

    asyncio.run(main())
    with pytest.raises(RuntimeClosed, match="was closed"):
        copied[0].run(app.add.invoke, 2, 3)


def test_a_loop_that_ended_before_its_runtime_was_closed(home: Path) -> None:
    copied: list[contextvars.Context] = []
    left: list[Runtime] = []

    async def main() -> None:
        left.append(await Runtime(home=home, sandbox="copy").__aenter__())
        copied.append(contextvars.copy_context())

    asyncio.run(main())
    with pytest.raises(RuntimeClosed, match="the event loop that opened it has ended"):
        copied[0].run(app.add.invoke, 2, 3)
    asyncio.run(left[0].__aexit__(None, None, None))


async def test_a_closed_runtime_is_an_error(home: Path) -> None:
    async with Runtime(home=home, sandbox="copy") as runtime:
        assert await runtime.run(app.add, 2, 3) == 5
        run = runtime.last_run_id
    assert run is not None
    for use in (runtime.run(app.add, 2, 3), runtime.resume(run), runtime.fork("x"), runtime.merge("x", "y")):
        with pytest.raises(RuntimeClosed, match="Open a new one"):
            await use


async def test_a_runtime_that_was_never_opened_is_an_error(home: Path) -> None:
    with pytest.raises(RunError, match="open the Runtime before you use it"):
        await Runtime(home=home, sandbox="copy").run(app.add, 2, 3)


async def test_a_runtime_on_another_loop(runtime: Runtime) -> None:
    """A workflow that is called under it runs on the runtime's loop; its own methods say where they can be used."""
    assert await asyncio.to_thread(app.add.invoke, 2, 3) == 5

    async def there() -> None:
        await runtime.run(app.add, 2, 3)

    with pytest.raises(RunError, match="opened on another event loop"):
        await asyncio.to_thread(lambda: asyncio.run(there()))


def test_errors_have_one_name() -> None:
    from ramify.runtime import errors as of_runs
    from ramify.sandboxes import errors as of_worlds
    from ramify.serving import errors as of_models

    assert issubclass(of_runs.UsedAfterFork, of_runs.RunError)
    assert issubclass(of_worlds.UsedAfterFork, of_worlds.SandboxError)
    assert issubclass(of_models.UsedAfterFork, of_models.LLMError)
    assert ramify.__version__
