"""What every backend with a real shell must do: state, streams, timeouts, processes. (`conftest` selects them.)"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from ramify.fork_engine.errors import MergeConflict
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import ConflictKind, ProcessTier, Snapshot
from ramify.sandboxes.contract import Backend, World, WorldSpec

SHELLS_ONLY = True  # a scripted backend has no shell

Out = Callable[[World, str], Awaitable[str]]


def beat(name: str) -> str:
    return f"while :; do echo >> {name}; sleep 0.01; done"


async def beats(world: World, name: str) -> bool:
    """Whether the heartbeat in file `name` still grows."""
    file = world.path / name
    size = file.stat().st_size
    for _ in range(1500):
        await asyncio.sleep(0.02)
        if file.stat().st_size > size:
            return True
        if _ > 10 and await world.background_processes() == 0:
            return False
    return False


async def until_it_beats(world: World, name: str) -> None:
    file = world.path / name
    for _ in range(1000):
        if file.exists() and file.stat().st_size > 0:
            return
        await asyncio.sleep(0.005)
    pytest.fail(f"{name} never began to beat")


async def until_alone(world: World) -> None:
    for _ in range(1000):
        if await world.background_processes() == 0:
            return
        await asyncio.sleep(0.005)
    pytest.fail("a background process did not end")


async def test_directory_variables_and_functions_last(world: World, out: Out) -> None:
    await out(world, "cd package; export EXPORTED=1; plain=2; f() { echo f$1; }; shopt -s nullglob; set -o pipefail")
    told = await out(world, "pwd; echo $EXPORTED $plain; f x; echo none*; (false | true) || echo pipefail")
    assert told.splitlines()[0].endswith("/package")
    assert told.splitlines()[1:] == ["1 2", "fx", "", "pipefail"]


async def test_env_and_cwd_are_for_one_command(world: World, out: Out) -> None:
    await out(world, "cd package; cd inner; V=shell")
    before = await out(world, "pwd; echo $OLDPWD")
    result = await world.run("pwd; echo $V $W; W=changed; kept=yes", env={"V": "a 'b'\n$c", "W": ""}, cwd="package")
    assert result.stdout.endswith("/package\na 'b' $c\n")
    assert await out(world, "pwd; echo $OLDPWD; echo $V,$W,$kept") == f"{before}shell,,yes\n"
    result = await world.run("echo not reached", cwd="no/such/folder")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no/such/folder" in result.stderr


async def test_stdin(world: World) -> None:
    data = bytes(range(256)) * 1000
    assert (await world.run("cat", stdin=data)).stdout_bytes == data
    assert (await world.run("cat", stdin="text ü")).stdout == "text ü"
    assert (await world.run("cat; echo end")).stdout == "end\n"
    assert (await world.run("true", stdin=data)).ok


async def test_output_of_any_bytes_and_size(world: World) -> None:
    result = await world.run("head -c 5000000 /dev/zero; head -c 5000000 /dev/zero | tr '\\0' '\\377' >&2")
    assert result.stdout_bytes == bytes(5_000_000)
    assert result.stderr_bytes == b"\xff" * 5_000_000
    assert not result.truncated
    assert (await world.run("echo ü; printf '\\xfe'")).stdout == "ü\n�"
    assert (await world.run("printf 'no newline'")).stdout == "no newline"


async def test_output_is_bounded(backend: Backend, base: Snapshot, spec: WorldSpec) -> None:
    world = await backend.materialise(base, replace(spec, max_output=1000))
    result = await world.run("head -c 300000 /dev/zero; echo small >&2")
    assert (result.stdout_bytes, result.stderr, result.truncated) == (bytes(1000), "small\n", True)
    result = await world.run("echo small")
    assert (result.stdout, result.truncated) == ("small\n", False)


async def test_a_syntax_error_is_the_commands_own(world: World, out: Out) -> None:
    for broken in ("if", "echo 'open", "case x in", ")"):
        result = await world.run(broken)
        assert result.exit_code in (1, 2)
        assert "bash:" in result.stderr
        assert "unexpected" in result.stderr
    assert await out(world, "echo well") == "well\n"


async def test_a_command_may_end_with_a_backslash(world: World, out: Out) -> None:
    """As in the middle of a continued line; `bash -c` behaves the same."""
    for command, code, told in (
        ("kept=1; echo x \\\n", 0, "x\n"),
        ("echo $kept; false \\\n", 1, "1\n"),
        ("echo x\\", 0, "x\\\n"),
        ("echo x\\\\", 0, "x\\\n"),
        ("echo x # \\", 0, "x\n"),
        ("\\\n", 0, ""),
    ):
        result = await world.run(command)
        assert (result.exit_code, result.stdout, result.stderr) == (code, told, ""), command
    assert await out(world, "echo $kept") == "1\n"


async def test_a_shell_that_ends_gives_its_code_and_a_new_one_remembers(world: World, out: Out) -> None:
    await out(world, "cd package; export E='x y'; v=1; f() { echo f; }; unset LANG; set -u")
    place = await out(world, "pwd")
    for command, code in (
        ("echo bye; exit 3", 3),
        ("kill -9 $$", 137),
        ("exec false", 1),
        ("set -e; false; true", 1),
    ):
        result = await world.run(command)
        assert result.exit_code == code
        assert await out(world, "pwd; echo $E $v; f; echo ${LANG-unset}; echo $-") == (
            f"{place}x y 1\nf\nunset\nhuBs\n"
        )
    assert (await world.run("echo $nosuch")).exit_code == 1  # `set -u` ends the shell, as bash does


async def test_a_shell_may_export_more_than_a_program_can_be_given(
    backend: Backend, base: Snapshot, spec: WorldSpec, out: Out
) -> None:
    """No program can start until the variable is gone; still, the next shell has it, and so has a fork's."""
    spec = replace(spec, env={**spec.env, "GIVEN": "x" * 150_000})
    world = await backend.materialise(base, spec)
    told = await out(world, 'export LONG="it\'s$(printf %0200000d 1)"; echo ${#GIVEN} ${#LONG}')
    assert told == "150000 200004\n"
    assert "Argument list too long" in (await world.run("cat readme.txt")).stderr
    await world.run("exit")
    fork = await backend.materialise(await world.seal(), spec)
    for one in (world, fork):
        assert await out(one, 'echo ${#GIVEN} ${#LONG} "${LONG:0:4}"') == "150000 200004 it's\n"
        assert await out(one, "export -n GIVEN LONG; cat readme.txt") == "as it was\n"


async def test_a_background_child_holding_the_output_open_does_not_hang(world: World, out: Out) -> None:
    assert await out(world, "sleep 1000 & echo started") == "started\n"
    assert await world.background_processes() == 1
    assert await out(world, "kill %1; wait; echo gone") == "gone\n"
    assert await world.background_processes() == 0


async def test_a_shell_that_is_killed_while_nobody_asks_is_replaced(world: World, out: Out) -> None:
    killer = "until [ -e go ]; do sleep 0.01; done; kill -9 $$; while kill -0 $$; do sleep 0.01; done"
    await out(world, f"cd package; ({killer}) 2>/dev/null &")  # it ends when the shell is dead and reaped
    await out(world, ":")  # it has reported its directory
    (world.path / "package" / "go").touch()
    await until_alone(world)
    assert (await out(world, "pwd")).endswith("/package\n")


async def test_a_background_job_that_prints_all_the_time_blocks_nothing(world: World, out: Out) -> None:
    await out(world, "yes & sleep 0.05")
    await out(world, "echo done > said")  # of what the job prints meanwhile there is more than a result holds
    assert (world.path / "said").read_text() == "done\n"
    await out(world, "kill %1; wait")
    assert await out(world, "echo quiet") == "quiet\n"


async def test_a_timeout_kills_all_that_the_command_started_and_nothing_else(world: World, out: Out) -> None:
    await out(world, f"cd package; export E=1; f() {{ echo f; }}; ({beat('../earlier')}) & cd ..; cd package")
    tree, names = world.path / "package", ("plain", "session", "daemon")
    for patience in (1.0, 8.0, 64.0):
        result = await world.run(
            f"""
            echo begun; echo problem >&2; rm -f plain session daemon
            ({beat("plain")}) &
            setsid bash -c '{beat("session")}' &
            ( ( setsid nohup bash -c 'trap "" TERM HUP INT; {beat("daemon")}' >/dev/null 2>&1 & ) & )
            sleep 1000; touch never
            """,
            timeout=patience,
        )
        if all((tree / name).exists() for name in names):
            break  # else the machine was so busy that not all of them had started
    assert (result.exit_code, result.timed_out) == (124, True)
    assert (result.stdout, result.stderr) == ("begun\n", "problem\n")
    assert await world.background_processes() > 0
    assert await beats(world, "earlier")
    sizes = {name: (tree / name).stat().st_size for name in names}
    await out(world, "sleep 0.1")
    assert sizes == {name: (tree / name).stat().st_size for name in sizes}
    assert not (tree / "never").exists()
    assert (await out(world, "pwd; echo $E; f")).endswith("/package\n1\nf\n")


async def test_a_timeout_ends_a_shell_that_is_busy_itself(world: World, out: Out) -> None:
    result = await world.run("while :; do :; done", timeout=0.1)
    assert (result.exit_code, result.timed_out) == (124, True)
    assert await out(world, "echo well") == "well\n"


async def test_cancelling_kills_what_was_started_before_it_goes_on(world: World, out: Out) -> None:
    task = asyncio.create_task(world.run(f"setsid bash -c '{beat('beat')}' & wait; touch never"))
    await until_it_beats(world, "beat")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await world.background_processes() == 0
    assert not (world.path / "never").exists()
    assert await out(world, "echo well") == "well\n"


async def test_cancelling_a_waiting_run_does_not_affect_the_running_one(world: World) -> None:
    first = asyncio.create_task(world.run("echo > begun; until [ -e go ]; do sleep 0.01; done; echo first"))
    await until_it_beats(world, "begun")
    second = asyncio.create_task(world.run("touch second"))
    await asyncio.sleep(0.05)
    second.cancel()
    (world.path / "go").touch()
    assert (await first).stdout == "first\n"
    with pytest.raises(asyncio.CancelledError):
        await second
    assert not (world.path / "second").exists()


async def test_environment_and_directory_are_part_of_a_snapshot(
    world: World, backend: Backend, base: Snapshot, spec: WorldSpec, out: Out
) -> None:
    await out(world, "export NEW='a\nb ü' PATH=$PATH:/extra; unset LANG; cd package/inner")
    sealed = await world.seal()
    assert sealed.layers == base.layers
    assert dict(sealed.env) == {"NEW": "a\nb ü", "PATH": spec.env["PATH"] + ":/extra"}
    assert (sealed.env_unset, sealed.cwd) == (("LANG",), "package/inner")
    assert (await world.seal()).id == sealed.id
    fork = await backend.materialise(sealed, spec)
    told = await out(fork, 'pwd; echo "$NEW"; echo ${LANG-unset}; echo $PATH; env | grep -c ^PWD=')
    lines = told.splitlines()
    assert lines[0].endswith("/package/inner")
    assert lines[1:] == ["a", "b ü", "unset", spec.env["PATH"] + ":/extra", "1"]
    assert (await fork.seal()).id == sealed.id
    await fork.rollback(base)
    assert await out(fork, "echo ${NEW-none} $LANG; ls") == "none C.UTF-8\nlink\npackage\nreadme.txt\nrun.sh\n"


async def test_the_whole_shell_state_is_part_of_a_snapshot(
    world: World, backend: Backend, base: Snapshot, spec: WorldSpec, out: Out
) -> None:
    await out(
        world,
        """plain='a b'; declare -A map=([k]=$'v\n'); f() { echo "f $1"; }; alias hello='echo hello'
        shopt -s expand_aliases nullglob; set -o pipefail -u; umask 027; ulimit -S -n 99; trap 'echo over' EXIT
        set -- one two; cd package; pushd inner >/dev/null""",
    )
    sealed = await world.seal()
    assert sealed.processes.shell
    assert sealed.layers == base.layers
    told = 'echo $plain "${map[k]}"; f x\nhello; umask; ulimit -n; echo $2; dirs -l +1 >&2; cd .. && cd -'
    told += "; trap -p EXIT; echo $-"
    expected = await world.run(told)
    assert expected.ok
    fork = await backend.materialise(sealed, spec)
    heard = await fork.run(told)
    assert heard.stdout.splitlines()[-3].endswith("/package/inner")
    assert heard.stdout.splitlines()[:-3] == expected.stdout.splitlines()[:-3]
    assert heard.stdout.splitlines()[-2:] == expected.stdout.splitlines()[-2:]
    assert heard.stderr.endswith("/package\n")
    assert (await fork.seal()).processes.shell == (await world.seal()).processes.shell
    await fork.rollback(base)
    assert not (await fork.run("f x || hello")).ok


async def test_secrets_reach_commands_and_no_snapshot(
    backend: Backend, base: Snapshot, spec: WorldSpec, store: SnapshotStore, out: Out
) -> None:
    secretive = replace(spec, secrets={"TOKEN": "hunter2 hunter2"})
    world = await backend.materialise(base, secretive)
    assert await out(world, "echo $TOKEN; env | grep -c TOKEN") == "hunter2 hunter2\n1\n"
    await out(world, 'export COPY="<$TOKEN>" OTHER=1; plain=$TOKEN; f() { :; }; trap "echo $TOKEN" USR1')
    sealed = await world.seal()
    assert dict(sealed.env) == {"OTHER": "1"}
    assert sealed.env_unset == ()
    assert b"hunter2" not in store.blob(sealed.processes.shell)
    fork = await backend.materialise(sealed, spec)
    assert await out(fork, "echo ${TOKEN-none} ${COPY-none} ${plain-none} $OTHER; f") == "none none none 1\n"
    fork = await backend.materialise(sealed, replace(spec, secrets={"TOKEN": "another"}))
    assert await out(fork, "echo $TOKEN") == "another\n"


async def test_a_directory_outside_the_tree_is_part_of_a_snapshot(
    world: World, backend: Backend, base: Snapshot, spec: WorldSpec, out: Out
) -> None:
    await out(world, "cd /usr/lib")
    sealed = await world.seal()
    assert (sealed.cwd, sealed.layers) == ("/usr/lib", base.layers)
    fork = await backend.materialise(sealed, spec)
    assert await out(fork, "pwd") == await out(world, "pwd") == "/usr/lib\n"
    assert await fork.seal() is sealed
    await out(fork, "cd -; cd package")
    assert (await fork.seal()).cwd == "package"


async def test_a_removed_directory_becomes_the_top(world: World, backend: Backend, spec: WorldSpec, out: Out) -> None:
    await out(world, "true")
    sealed = await world.seal()
    for gone in ("was/removed", "/was/removed"):
        fork = await backend.materialise(replace(sealed, cwd=gone), spec)
        assert "readme.txt" in await out(fork, "ls")


async def test_the_states_of_two_shells_are_merged(
    world: World, backend: Backend, store: SnapshotStore, spec: WorldSpec, out: Out
) -> None:
    await out(world, "f() { echo old; }; i=0; umask 027; shopt -s nullglob")
    base = await world.seal()
    one, two = await backend.fork(base, spec, 2)
    await out(one, "f() { echo new; }; for i in 1 2; do :; done; set -o pipefail; echo 1 > one; cd package")
    await out(two, "g() { cat <<< g; }; for i in 3; do :; done; alias hi='echo hi'; shopt -u nullglob; export E=1")
    merged = store.merge(base, await one.seal(), await two.seal())
    assert "variable i" in merged.processes.reason
    child = await backend.materialise(merged, spec)
    told = await out(child, "shopt -s expand_aliases; f; g; umask; echo $i $E; [[ -o pipefail ]] && echo pipes; pwd")
    assert told.splitlines()[:-1] == ["new", "g", "0027", "2 1", "pipes"] and told.endswith("/package\n")
    assert await out(child, "hi; shopt nullglob || cat ../one") == "hi\nnullglob       \toff\n1\n"
    await out(two, "f() { echo another; }")
    with pytest.raises(MergeConflict) as raised:
        store.merge(base, await one.seal(), await two.seal())
    assert [(c.path, c.kind) for c in raised.value.conflicts] == [("function f", ConflictKind.PROCESSES)]


async def test_the_shell_stays_where_it_was_over_a_seal(world: World, out: Out) -> None:
    await out(world, "mkdir new; cd new; cd ../package; f() { echo f; }; touch x")
    before = await out(world, "pwd; echo $OLDPWD")
    await world.seal()
    assert await out(world, "pwd; echo $OLDPWD") == before
    assert await out(world, "f; ls; touch y; cd -; touch z; ls ..") == (
        "f\ncode.py\ninner\nx\n" + before.splitlines()[1] + "\nlink\nnew\npackage\nreadme.txt\nrun.sh\n"
    )
    await world.seal()
    assert await out(world, "ls") == "z\n"


async def test_a_seal_records_living_processes_and_keeps_them_running(
    world: World, backend: Backend, spec: WorldSpec, out: Out
) -> None:
    await out(world, f"({beat('beat')}) & echo one > one")
    await until_it_beats(world, "beat")
    first = await world.seal()
    assert first.tier is ProcessTier.DROPPED
    assert await beats(world, "beat")
    await out(world, "rm one; rm -r package; echo two > two")
    second = await world.seal()
    assert second.tier is ProcessTier.DROPPED
    await out(world, "kill %1; wait; echo three > three; rm two")
    await until_alone(world)
    third = await world.seal()
    assert third.tier is ProcessTier.NONE
    seen = []
    for snapshot in (first, second, third):
        fork = await backend.materialise(snapshot, spec)
        seen.append(set((await out(fork, "ls")).split()))
        assert await fork.background_processes() == 0
    rest = {"beat", "link", "readme.txt", "run.sh"}
    assert seen == [rest | {"one", "package"}, rest | {"two"}, rest | {"three"}]
    assert set((await out(world, "ls")).split()) == rest | {"three"}


async def test_a_seal_is_exact_while_processes_write(
    world: World, backend: Backend, spec: WorldSpec, out: Out
) -> None:
    # each writer appends to two files in turn, so in no instant does the first lag behind, or lead by two;
    # the third program is one that waits: with none, a new world's first process can be kept from two cores for long
    writer = "for ((i = 0; ; i++)); do echo $i >> a{n}; echo $i >> b{n}; sleep .001; done"
    await out(
        world, "; ".join(f"({writer.replace('{n}', str(n))}) & until [ -s b{n} ]; do :; done" for n in range(3))
    )
    for _ in range(4):
        fork = await backend.materialise(await world.seal(), spec)
        for n in range(3):
            a, b = [(fork.path / f"{name}{n}").read_bytes().count(b"\n") for name in "ab"]
            assert a - b in (0, 1)
        await fork.close()


async def test_a_seal_that_is_not_flushed_can_be_forked(
    world: World, backend: Backend, spec: WorldSpec, store: SnapshotStore, out: Out
) -> None:
    await out(world, "echo x > new; kept=1")
    sealed = await world.seal(flush=False)
    fork = await backend.materialise(sealed, spec)
    assert await out(fork, "cat new; echo $kept") == "x\n1\n"
    store.flush()
    assert store.get(sealed.id) == sealed


async def test_rollback_ends_processes(world: World, base: Snapshot, out: Out) -> None:
    await out(world, "sleep 1000 & export E=1; cd package")
    await world.rollback(base)
    assert await world.background_processes() == 0
    assert "readme.txt" in await out(world, "ls; echo ${E-unset}")


async def test_many_worlds_at_once(backend: Backend, base: Snapshot, spec: WorldSpec, out: Out) -> None:
    worlds = await asyncio.gather(*(backend.materialise(base, spec) for _ in range(16)))
    told = await asyncio.gather(*(out(world, f"echo {n} > n; cat n") for n, world in enumerate(worlds)))
    assert told == [f"{n}\n" for n in range(16)]
    await asyncio.gather(*(world.close() for world in worlds))
