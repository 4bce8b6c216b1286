"""What every backend that starts processes must do: streams, input, parallel commands, users, ends."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from ramify.fork_engine.store import SnapshotStore
from ramify.sandboxes.contract import Backend, Limits, World, WorldSpec
from ramify.sandboxes.errors import CommandRefused, ForbiddenUser, InputClosed, UnknownUser, WorldDied
from ramify.sandboxes.process_contract import Command, Output, Process, ProcessStarter, TerminalSize

SHELLS_ONLY = True

PATIENCE_S = 60.0


@pytest.fixture
def starter(world: World) -> ProcessStarter:
    assert isinstance(world, ProcessStarter)
    return world


async def everything(output: Output) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        return b"".join([data async for data in output])


async def run(starter: ProcessStarter, command: Command) -> tuple[int, bytes, bytes]:
    process = await starter.start(command)
    try:
        out, err = await asyncio.gather(everything(process.stdout), everything(process.stderr))
        return await process.wait(), out, err
    finally:
        await process.close()


async def test_streams_exit_code_folder_and_variables(starter: ProcessStarter, world: World) -> None:
    script = Command("echo out; echo err >&2; pwd; echo $GIVEN; exit 3", env={"GIVEN": "x y"}, cwd="package")
    code, out, err = await run(starter, script)
    assert (code, err) == (3, b"err\n")
    assert out.split(b"\n")[0] == b"out" and out.endswith(b"/package\nx y\n")
    words = ("printf", "<%s>", "a b", "$HOME", "", "new\nline", "ü")
    assert await run(starter, Command(words=words)) == (0, "<a b><$HOME><><new\nline><ü>".encode(), b"")
    assert await run(starter, Command("")) == (0, b"", b"")
    assert (await run(starter, Command("kill -9 $$")))[0] == 128 + signal.SIGKILL


async def test_programs_that_cannot_be_run_have_the_exit_codes_of_a_shell(starter: ProcessStarter) -> None:
    assert await run(starter, Command(words=("no-such-program",))) == (
        127,
        b"",
        b"no-such-program: command not found\n",
    )
    code, _, err = await run(starter, Command(words=("./readme.txt",)))
    assert (code, err) == (126, b"./readme.txt: Permission denied\n")
    assert (await run(starter, Command(words=("./run.sh",))))[1] == b"ran\n"
    await run(starter, Command("echo 'echo plain $1' > plain; chmod +x plain"))
    assert (await run(starter, Command(words=("./plain", "x"))))[1] == b"plain x\n"  # no first line: as a shell does


async def test_what_cannot_be_started_is_refused(starter: ProcessStarter) -> None:
    with pytest.raises(CommandRefused, match="not a folder"):
        await starter.start(Command("pwd", cwd="nowhere"))
    with pytest.raises(CommandRefused, match="not a folder"):
        await starter.start(Command("pwd", cwd="readme.txt"))
    for bad in (
        {"script": None},
        {"script": "a\0b"},
        {"script": "a\ud800b"},  # half of a pair: the agent would fail at it
        {"script": "x", "cwd": "\ud800"},
        {"script": "x", "env": {"A=": ""}},
        {"script": "x", "env": {"A": "\ud800"}},
        {"words": ("a",), "script": "b"},
    ):
        with pytest.raises(ValueError, match=r"command|NUL|surrogate|variable"):
            Command(**bad)  # type: ignore[arg-type]
    assert (await run(starter, Command("echo well")))[1] == b"well\n"
    not_utf8 = Command(words=("printf", "%s", "\udcff"))
    assert (await run(starter, not_utf8))[1] == b"\xff"


async def test_what_a_shell_exported_reaches_no_process_and_back(starter: ProcessStarter, world: World) -> None:
    await world.run("export LEAK=1; cd package")
    assert (await run(starter, Command("echo ${LEAK:-none}; ls")))[1].startswith(b"none\nlink\n")
    await run(starter, Command("cd package; export OTHER=1"))
    assert (await world.run("echo $LEAK ${OTHER:-none}; ls")).stdout == "1 none\ncode.py\ninner\n"


async def test_input_is_fed_while_output_is_read(starter: ProcessStarter) -> None:
    process = await starter.start(Command("while read line; do echo got $line; done; echo end", stdin=True))
    await process.write_stdin("one\n")
    assert await process.stdout.read() == b"got one\n"
    await process.write_stdin(b"two\n")
    assert await process.stdout.read() == b"got two\n"
    process.close_stdin()
    assert await everything(process.stdout) == b"end\n" and await process.wait() == 0
    with pytest.raises(InputClosed):
        await process.write_stdin("late")
    await process.close()
    assert (await run(starter, Command("cat; echo end")))[1] == b"end\n"  # without an input it reads an end


async def test_a_process_that_stops_reading_is_told_by_name(starter: ProcessStarter) -> None:
    process = await starter.start(Command("exec <&-; sleep 60", stdin=True))
    with pytest.raises(InputClosed):
        async with asyncio.timeout(PATIENCE_S):
            while True:
                await process.write_stdin(b"x" * (1 << 16))
    await process.close()


async def test_much_output_passes_in_little_memory(starter: ProcessStarter) -> None:
    """A slow reader stops the writer: of 256 MiB, next to nothing is held."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    process = await starter.start(Command("head -c 268435456 /dev/zero"))
    size, slow = 0, 0
    async for data in process.stdout:
        size += len(data)
        slow += 1
        if slow % 500 == 0:
            await asyncio.sleep(0.005)
    assert size == 1 << 28 and await process.wait() == 0
    await process.close()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB


async def test_nobody_reads_and_the_writer_waits(starter: ProcessStarter, world: World) -> None:
    process = await starter.start(Command("head -c 4000000 /dev/zero; touch written; sleep 60"))
    await asyncio.sleep(0.2)
    assert not (world.path / "written").exists()
    read = 0
    while read < 4000000:
        read += len(await process.stdout.read())
    await process.close()


async def test_commands_run_beside_each_other_and_beside_the_shell(starter: ProcessStarter, world: World) -> None:
    """Each waits for what the other does: they would never end one after the other."""
    long = asyncio.ensure_future(world.run("until [ -e a ]; do sleep 0.01; done; touch b"))
    one = asyncio.ensure_future(run(starter, Command("until [ -e b ]; do sleep 0.01; done; touch c")))
    two = asyncio.ensure_future(run(starter, Command("touch a; until [ -e c ]; do sleep 0.01; done")))
    async with asyncio.timeout(PATIENCE_S):
        results = await asyncio.gather(long, one, two)
    assert results[0].ok and results[1][0] == results[2][0] == 0


async def until_true(seen: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not seen():  # noqa: ASYNC110  # the world tells nobody
            await asyncio.sleep(0.01)


async def gone(world: World) -> None:
    for _ in range(6000):
        if await world.background_processes() == 0:
            return
        await asyncio.sleep(0.01)
    pytest.fail("a process is left")


async def test_killing_leaves_nothing_that_the_command_started(starter: ProcessStarter, world: World) -> None:
    """Not even what left its session and was given away by its parent."""
    text = "(setsid bash -c 'sleep 1000 & sleep 1000' &) ; sleep 1000 & touch begun; wait"
    process = await starter.start(Command(text))
    await until_true(lambda: (world.path / "begun").exists())
    while await world.background_processes() < 4:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await process.kill()
    assert await world.background_processes() == 0
    assert process.returncode == await process.wait() == 128 + signal.SIGKILL
    await process.close()


async def test_a_cancelled_start_or_wait_leaves_nothing(starter: ProcessStarter, world: World) -> None:
    async def whole() -> None:
        process = await starter.start(Command("sleep 1000"))
        try:
            await process.wait()
        finally:
            await process.close()

    for wait_s in (0.0, 0.001, 0.005, 0.1):
        task = asyncio.ensure_future(whole())
        await asyncio.sleep(wait_s)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await gone(world)


async def test_a_timeout_of_the_shell_spares_other_commands(starter: ProcessStarter, world: World) -> None:
    process = await starter.start(Command("read line; echo $line", stdin=True))
    assert (await world.run("sleep 1000", timeout=0.1)).timed_out
    await process.write_stdin("spared\n")
    assert await everything(process.stdout) == b"spared\n"
    await process.close()


async def test_signals_reach_the_group_or_the_process_alone(starter: ProcessStarter) -> None:
    process = await starter.start(Command("trap 'echo int; exit 7' INT; echo ready; while :; do sleep 0.01; done"))
    assert await process.stdout.read() == b"ready\n"
    process.send_signal(signal.SIGINT)
    assert await everything(process.stdout) == b"int\n" and await process.wait() == 7
    process.send_signal(signal.SIGINT)  # it has ended
    with pytest.raises(ValueError, match="signal"):
        process.send_signal(0)
    await process.close()


async def test_background_processes_live_on_and_hold_no_stream(starter: ProcessStarter, world: World) -> None:
    script = "(while :; do echo noise; sleep 0.01; echo x >> beat; done) & echo done"
    code, out, _ = await run(starter, Command(script))
    assert code == 0 and b"done\n" in out
    beat = world.path / "beat"
    await until_true(lambda: beat.exists())
    size = beat.stat().st_size
    await until_true(lambda: beat.stat().st_size > size + 100)  # its output is dropped, and that does not end it
    assert await world.background_processes() > 0


async def test_a_seal_stops_a_process_and_keeps_what_it_wrote(
    starter: ProcessStarter, world: World, backend: Backend, spec: WorldSpec
) -> None:
    process = await starter.start(Command("echo first > f; echo ready; read line; echo second > f", stdin=True))
    assert await process.stdout.read() == b"ready\n"
    sealed = await world.seal()
    assert sealed.processes.dropped >= 1
    fork = await backend.materialise(sealed, spec)
    assert (await fork.run("cat f")).stdout == "first\n"
    await process.write_stdin("go\n")
    assert await process.wait() == 0
    await process.close()
    assert (await world.run("cat f")).stdout == "second\n"
    after = await world.seal()
    assert after.processes.dropped == 0


async def test_a_rollback_or_the_end_of_the_world_ends_processes_by_name(
    starter: ProcessStarter, world: World
) -> None:
    first = await starter.start(Command("sleep 1000"))
    await world.rollback(world.snapshot)
    with pytest.raises(WorldDied):
        await first.wait()
    await first.close()
    second = await starter.start(Command("sleep 1000", stdin=True))
    await world.close()
    with pytest.raises(WorldDied):
        await second.wait()
    assert await everything(second.stdout) == b""
    await second.close()
    with pytest.raises(WorldDied):
        await starter.start(Command("true"))


async def test_a_limit_that_ends_a_process_is_named(backend: Backend, store: SnapshotStore, workspace: Path) -> None:
    spec = WorldSpec(workspace, env={"PATH": os.environ["PATH"]}, limits=Limits(file_bytes=1 << 20))
    world = await backend.materialise(store.import_tree(workspace).snapshot, spec)
    assert isinstance(world, ProcessStarter)
    process = await world.start(Command("exec head -c 4000000 /dev/zero > big"))
    assert await process.wait() == 128 + signal.SIGXFSZ
    assert process.limit.value == "file_bytes"
    await process.close()


async def test_secrets_are_given_and_not_sealed(backend: Backend, store: SnapshotStore, workspace: Path) -> None:
    spec = WorldSpec(workspace, env={"PATH": os.environ["PATH"]}, secrets={"TOKEN": "tell-nobody"})
    world = await backend.materialise(store.import_tree(workspace).snapshot, spec)
    assert isinstance(world, ProcessStarter)
    assert (await run(world, Command("echo $TOKEN")))[1] == b"tell-nobody\n"
    sealed = await world.seal()
    assert "tell-nobody" not in repr(sealed)


async def test_users_are_those_of_the_world(starter: ProcessStarter, world: World) -> None:
    with pytest.raises(UnknownUser, match=r"no user 'nobody-at-all'.*useradd"):
        await starter.start(Command("id", user="nobody-at-all"))
    with pytest.raises(UnknownUser, match="no group 'none-at-all'"):
        await starter.start(Command("id", user=f"{os.geteuid()}:none-at-all"))
    me = await run(starter, Command("id -u", user=str(os.geteuid()) + f":{os.getegid()}"))
    assert me == (0, f"{os.geteuid()}\n".encode(), b"")
    if os.geteuid() != 0:
        with pytest.raises(ForbiddenUser, match="an ordinary user of the machine"):
            await starter.start(Command("id", user="root"))
        return
    code, out, _ = await run(starter, Command("id -un; echo $HOME $USER; echo again > /dev/stdout", user="nobody"))
    assert (code, out.split()) == (0, [b"nobody", b"/nonexistent", b"nobody", b"again"])
    assert (await run(starter, Command("touch mine", user="nobody")))[0] == 1  # the tree is not its own
    assert (await run(starter, Command("id -u; id -g", user="1234:5678")))[1] == b"1234\n5678\n"
    assert (await run(starter, Command("cat /proc/self/status | grep CapEff", user="nobody")))[1].split()[
        1
    ] == b"0" * 16
    assert await world.background_processes() == 0


async def test_a_terminal_has_a_size_and_controls_its_process(starter: ProcessStarter) -> None:
    process = await starter.start(
        Command("bash --norc --noprofile --noediting -i", env={"PS1": "$ "}, terminal=TerminalSize(30, 100))
    )
    await process.write_stdin("stty size; tty; echo $TERM; PS1='> '\n")
    seen = await until(process, b"\n> ")
    assert b"30 100" in seen and b"/dev/pts/" in seen and b"xterm" in seen
    process.resize(TerminalSize(40, 120))
    await process.write_stdin("stty size\n")
    assert b"40 120" in await until(process, b"\n> ")
    await process.write_stdin("sleep 1000\n")
    await asyncio.sleep(0.2)
    await process.write_stdin(b"\x03")  # Ctrl-C ends it, and not the shell
    await process.write_stdin("echo code=$?\n")
    await until(process, b"code=130")
    await process.write_stdin(b"\x04")  # Ctrl-D
    async with asyncio.timeout(PATIENCE_S):
        assert await process.wait() == 0
    await everything(process.stdout)
    await process.close()
    with pytest.raises(ValueError, match="rows"):
        TerminalSize(0, 80)


async def until(process: Process, text: bytes) -> bytes:
    """What the terminal shows until it has shown `text`."""
    seen = b""
    async with asyncio.timeout(PATIENCE_S):
        while text not in seen:
            data = await process.stdout.read()
            if not data:
                break
            seen += data
    return seen


async def test_many_at_once(starter: ProcessStarter, world: World) -> None:
    results = await asyncio.gather(*(run(starter, Command(f"echo {n}; cat", stdin=False)) for n in range(40)))
    assert [out for _, out, _ in results] == [f"{n}\n".encode() for n in range(40)]
    assert await world.background_processes() == 0
