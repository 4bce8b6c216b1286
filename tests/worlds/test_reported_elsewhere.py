"""Bugs that people reported of other sandboxes and container tools, rebuilt on worlds. `REPORTS` has their ids."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ramify.fork_engine.errors import SnapshotCorrupt
from ramify.sandboxes.linux import processes
from ramify.worlds.blocking import SyncWorld
from ramify.worlds.home import WorldHome
from ramify.worlds.world import World
from tests.machine import why_no_namespaces

pytestmark = pytest.mark.linux_ns
PATIENCE = 60.0


@dataclass(frozen=True)
class Place:
    """Where a report is rebuilt. `folder` is empty."""

    home: WorldHome
    folder: Path

    def outside(self, program: str) -> subprocess.Popen[str]:
        """Start a program in another process, which may open worlds in a home of its own. Variable `home` has its
        path."""
        home = self.folder / "other-home"
        text = f"import asyncio, os, signal, sys\nfrom ramify import World\nhome = {str(home)!r}\n{program}"
        env = {**os.environ, "RAMIFY_SANDBOX": "namespaces"}
        return subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True, env=env)


async def output(program: subprocess.Popen[str]) -> str:
    told, _ = await asyncio.to_thread(program.communicate, timeout=PATIENCE)
    return told


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def processes_where(file: str, holds: Callable[[bytes], bool]) -> set[int]:
    """The processes of this machine of which a file of /proc/PID has a property."""
    found = set()
    for path in Path("/proc").glob(f"[0-9]*/{file}"):
        with contextlib.suppress(OSError):
            if holds(path.read_bytes()):
                found.add(int(path.parent.name))
    return found


async def remade_folder_hides_the_old_one(at: Place) -> None:
    """A folder that was removed and made again showed its old files from the layer below."""
    async with World.create(home=at.home) as world:
        make = 'for d in . ~; do mkdir -p "$d/re-made/inner" && echo foo > "$d/re-made/inner/foo"; done'
        await world.exec(make, check=True)
        (before,) = await world.fork()
        await before.exec('for d in . ~; do rm -r "$d/re-made" && mkdir "$d/re-made" && touch "$d/re-made/bar"; done')
        (after,) = await before.fork()
        assert (await after.exec("ls -R re-made; ls ~/re-made")).stdout == "re-made:\nbar\nbar\n"
        await world.merge(before)
        assert (await world.exec("ls -R re-made; ls ~/re-made")).stdout == "re-made:\nbar\nbar\n"
        for fork in (before, after):
            await fork.close()


async def deletions_are_kept(at: Place) -> None:
    """What a container deleted came back from its committed image."""
    (at.folder / "repo/sub").mkdir(parents=True)
    for name in ("file", "sub/one", "sub/two"):
        (at.folder / "repo" / name).write_text("1")
    async with World.create(at.folder / "repo", home=at.home) as world:
        await world.exec("rm file sub/one && chmod 700 sub")
        state = await world.snapshot()
    async with World.create(snapshot=state, home=at.home) as world:
        assert (await world.exec("find . -type f")).stdout == "./sub/two\n"
        await world.checkout(at.folder / "out")
    assert [path.name for path in (at.folder / "out").rglob("*")] == ["sub", "two"]


async def later_layers_merge_into_folders(at: Place) -> None:
    """A folder that a later layer only touched hid what the layers below have in it."""
    async with World.create(home=at.home) as world:
        await world.exec("mkdir -p ~/conf.d && echo 1 > ~/conf.d/base", check=True)
        forks = await world.fork(2)
        for fork, name in zip(forks, ("one", "two"), strict=True):
            await fork.exec(f"echo {name} > ~/conf.d/{name}")
            await world.merge(fork)
            await fork.close()
        assert (await world.exec("cd ~/conf.d && cat base one two")).stdout == "1\none\ntwo\n"


async def an_owner_that_ignores_sigchld(at: Place) -> None:
    """A sandbox never ended if the process that started it ignored SIGCHLD. What it blocks is inherited, too."""
    program = """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
async def main():
    async with World.create(home=home) as world:
        print((await world.exec("sleep .1 & wait; false; echo $?")).stdout, end="")
        print((await world.run("(exit 3)")).exit_code)
        print((await world.exec("timeout .1 sleep 1234")).exit_code)
asyncio.run(main())
"""
    assert await output(at.outside(program)) == "1\n3\n124\n"


async def a_killed_owner_leaves_nothing(at: Place) -> None:
    """A sandbox outlived its owner if the owner was killed while the sandbox started."""
    mark = f"mark-{uuid.uuid4().hex}"
    program = f"""
async def main():
    async with World.create(home=home) as world:
        print("made", flush=True)
        async with world.start(["bash", "-c", "exec -a {mark} sleep 1234"]) as process:
            print("started", flush=True)
            await process.wait()
asyncio.run(main())
"""
    for line in ("made", "started"):
        owner = at.outside(program)
        assert owner.stdout is not None
        while await asyncio.to_thread(owner.stdout.readline) != f"{line}\n":
            assert owner.poll() is None
        owner.kill()
        await output(owner)
        await until(lambda: not processes_where("cmdline", lambda text: mark.encode() in text))


async def the_thread_that_made_it_may_end(at: Place) -> None:
    """A sandbox was killed when the thread that had started it ended, by PR_SET_PDEATHSIG."""
    made: list[SyncWorld] = []

    def make() -> None:
        made.append(SyncWorld.create(home=at.folder / "other-home", sandbox="namespaces"))
        made[0].exec("echo 1 > file")

    thread = threading.Thread(target=make)
    thread.start()
    await asyncio.to_thread(thread.join)
    world = made[0]
    assert (await asyncio.to_thread(world.exec, "cat file")).stdout == "1\n"
    await asyncio.to_thread(world.close)


async def no_zombies(at: Place) -> None:
    """Each run of a sandbox left a zombie with its caller."""
    async with World.create(home=at.home) as world:
        await world.exec("true")
    before = set(processes.children(os.getpid()))
    for _ in range(3):
        async with World.create(home=at.home) as world:
            await world.exec("(sleep 60 &) ; true")
            none = "until ! cat /proc/[0-9]*/stat | grep -q ' Z '; do sleep .01; done"
            assert (await world.exec(none, timeout=PATIENCE)).ok
    await until(lambda: not (set(processes.children(os.getpid())) - before) & processes_where("stat", is_zombie))


def is_zombie(stat: bytes) -> bool:
    return stat.rpartition(b")")[2].split()[0] == b"Z"


async def a_timeout_ends_the_command(at: Place) -> None:
    """A command that timed out ran on in the sandbox. What it had printed was lost, and the session with it."""
    async with World.create(home=at.home) as world:
        await world.run("cd /tmp && export KEPT=1")
        for run in (world.exec, world.run):
            for patience in (1.5, 15.0):
                result = await run("echo before; setsid sleep 4321 & (sleep 4321); echo never", timeout=patience)
                if result.stdout:
                    break  # else the machine was so busy that the command had not begun
            assert (result.timed_out, result.exit_code, result.stdout) == (True, 124, "before\n")
            assert (await world.exec("grep -l 432[1] /proc/[0-9]*/cmdline")).stdout == ""
        assert (await world.run("echo $KEPT; pwd")).stdout == "1\n/tmp\n"


async def heredocs_in_sessions(at: Place) -> None:
    """A heredoc in a session never returned."""
    async with World.create(home=at.home) as world:
        for shell in (world.run, world.shell("other").run, world.exec):
            result = await shell("cat > text <<'EOF'\nhello $HOME `date` 'x\nEOF\ncat text; (exit 7)")
            assert (result.stdout, result.exit_code) == ("hello $HOME `date` 'x\n", 7)


async def two_outputs(at: Place) -> None:
    """Standard error was mixed into standard output."""
    async with World.create(home=at.home) as world:
        for run in (world.exec, world.run, world.shell("other").run):
            result = await run("echo out; echo err >&2; (exit 5)")
            assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 5)


async def folders_of_lower_layers_can_be_moved(at: Place) -> None:
    """`mv` of a folder from a lower layer failed with "Invalid cross-device link"."""
    (at.folder / "repo/old/sub").mkdir(parents=True)
    (at.folder / "repo/old/sub/file").write_text("1\n")
    os.link(at.folder / "repo/old/sub/file", at.folder / "repo/old/linked")
    async with World.create(at.folder / "repo", home=at.home) as world:
        moved = await world.exec("mv old new && ls && cat new/sub/file && mv new/sub . && mv sub new/back")
        assert (moved.exit_code, moved.stdout) == (0, "new\n1\n"), moved.stderr
        (fork,) = await world.fork()
        assert (
            await fork.exec("find . -type f | sort; cat new/back/file")
        ).stdout == "./new/back/file\n./new/linked\n1\n"
        await fork.close()


async def output_that_is_no_text(at: Place) -> None:
    """Output that is not UTF-8 ended the session with a decoding error."""
    async with World.create(home=at.home) as world:
        for run in (world.exec, world.run, world.shell("other").run):
            result = await run(r"printf '\x96\x00\xff\r\n\x1b[31m'; head -c 65536 /dev/urandom >&2; (exit 4)")
            assert (result.stdout_bytes, result.exit_code) == (b"\x96\x00\xff\r\n\x1b[31m", 4)
            assert len(result.stderr_bytes) == 65536 and isinstance(result.stderr, str)
            assert (await run("echo usable")).stdout == "usable\n"


async def git_waits_for_nobody(at: Place) -> None:
    """`git` opened a pager or an editor, waited for a key, and the session was lost."""
    async with World.create(home=at.home) as world:
        who = {f"GIT_{role}_{part}": "a@b" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
        made = "git init -q . && seq 999 > f && git add f && git commit -qm one && seq 9 > f"
        assert (await world.run(made, env=who)).ok
        for command in ("git log -p", "git diff", "git branch -a", "git cherry-pick --edit HEAD", "git commit -a"):
            result = await world.run(command, env=who, timeout=PATIENCE)
            assert not result.timed_out, command
        assert (await world.run("git log --format=%s")).stdout == "one\n"


async def broken_scripts(at: Place) -> None:
    """A command that bash cannot parse, or that ends the shell, left the session without an answer."""
    async with World.create(home=at.home) as world:
        for run in (world.run, world.shell("other").run, world.exec):
            for broken in ("echo 'open", "cat <<EOF\nnever closed", "if true; then", "echo $(", ")", "for"):
                result = await run(broken, timeout=PATIENCE)
                assert not result.timed_out and (result.exit_code or result.stderr or result.stdout), broken
            assert (await run("set -e; false", timeout=PATIENCE)).exit_code == 1
            assert (await run("cd /tmp && false")).exit_code == 1
            assert (await run("exec 1>&- 2>&-", timeout=PATIENCE)).timed_out is False
            assert (await run("exit 9", timeout=PATIENCE)).exit_code == 9
            assert (await run("echo usable")).stdout == "usable\n"


async def startup_files_are_not_read(at: Place) -> None:
    """A .bashrc that ends or prints in shells without a terminal swallowed or changed what commands printed."""
    async with World.create(home=at.home) as world:
        said = "cat > ~/.bashrc && cp ~/.bashrc ~/.profile && cp ~/.bashrc ~/.bash_profile"
        await world.exec(said, stdin="echo noise\ncase $- in *i*) ;; *) exit;; esac\n", check=True)
        (fork,) = await world.fork()
        for run in (world.exec, world.run, fork.run, fork.shell("other").run):
            assert (await run("echo said")).stdout == "said\n"
        await fork.close()


async def daemons_outlive_their_command(at: Place) -> None:
    """What a command left in the background was killed when the command ended, or kept its caller waiting."""
    async with World.create(home=at.home) as world:
        for number, run in enumerate((world.exec, world.run, world.shell("other").run)):
            result = await run(f"nohup sleep 600{number} & echo $!", timeout=PATIENCE)
            assert result.ok and not result.timed_out
            program = f"/proc/{result.stdout.strip()}/cmdline"  # that of bash, then of `nohup`, before it is `sleep`
            runs = await world.exec(
                f"until grep -q ^sleep {program}; do sleep 0.01; done; cat {program}", timeout=PATIENCE
            )
            assert runs.stdout.split("\0")[:2] == ["sleep", f"600{number}"]


async def sessions_work_in_the_next_generations(at: Place) -> None:
    """After a second checkpoint and restore, a process could not write to its output any more."""
    async with World.create(home=at.home) as world:
        session = await world.python()
        await session.run("count = 1")
        worlds = [world]
        for number in range(2, 5):
            (fork,) = await worlds[-1].fork()
            worlds.append(fork)
            session = await fork.python()
            assert (await session.run("count += 1; print(count)")).stdout == f"{number}\n"
            await fork.run(f"export GENERATION={number}; echo out; echo err >&2")
            assert (await fork.run("echo $GENERATION")).stdout == f"{number}\n"
        for fork in worlds[1:]:
            await fork.close()


async def one_state_many_times(at: Place) -> None:
    """A checkpoint could not be restored twice at once, as the process ids were taken, nor again after a failure."""
    async with World.create(home=at.home) as world:
        session = await world.python()
        await session.run("last = 0; data = bytearray(1 << 20)")
        state = await world.snapshot()
        await world.restore(state)
        live = [await World.create(snapshot=state, home=at.home) for _ in range(3)]
        for number, one in enumerate((world, *live)):
            session = await one.python()
            told = await session.run(f"print(last, len(data)); last = {number}; data += bytes(last)")
            assert told.stdout == f"0 {1 << 20}\n"
        for number, one in enumerate((world, *live)):
            assert (await (await one.python()).run("print(last, len(data))")).stdout == (
                f"{number} {(1 << 20) + number}\n"
            )
        for one in live:
            await one.close()


async def a_closed_terminal_leaves_nothing(at: Place) -> None:
    """After Ctrl-C, or the end of the terminal, programs with a session of their own ran on."""
    async with World.create(home=at.home) as world:
        async with world.pty() as terminal:
            await terminal.write("setsid sleep 7654 & (trap '' INT HUP TERM; sleep 7654) & sleep 7654\n")
            async with asyncio.timeout(PATIENCE):
                while (
                    await world.exec("grep -c ^7654 <(cat /proc/[0-9]*/cmdline | tr '\\0' '\\n')")
                ).stdout != "3\n":
                    await terminal.read()
            await terminal.write("\x03")
        assert (await world.exec("grep -c ^7654 <(cat /proc/[0-9]*/cmdline | tr '\\0' '\\n')")).stdout == "0\n"


async def odd_trees_are_removed(at: Place) -> None:
    """The storage of a container could not be removed: "directory not empty", "permission denied"."""
    odd = r"""mkdir -p a/b/c && touch a/b/c/f && printf x > "$(printf '\n\377 name')" && mkfifo a/p && ln -s / a/root
d=deep; for i in $(seq 60); do d="$d/$(printf 'x%.0s' $(seq 60))"; done; mkdir -p "$d" && chmod -R a-w deep
chmod 000 a/b/c a/b; chmod 500 ~; mkdir -m 000 /tmp/closed"""
    async with World.create(home=at.home) as world:
        assert (await world.exec(odd)).ok
        forks = await world.fork(2)
        for fork in forks:
            await fork.exec("chmod 700 a/b && rm -rf deep 2>/dev/null")
            await fork.close()
    left = [path for path in (at.folder.parent / "home/worlds").rglob("*") if path.name in ("a", "deep", "closed")]
    assert left == []


async def a_torn_record(at: Place) -> None:
    """A power cut during a commit left an empty file, after which nothing could be listed or removed."""
    async with World.create(home=at.home) as world:
        await world.write("file", "1")
        torn = await world.snapshot("torn")
        await world.write("file", "2")
        await world.snapshot("whole")
    (record,) = (path for path in at.folder.parent.rglob(f"*{torn.id}*") if path.is_file())
    record.write_bytes(b"")
    with pytest.raises(SnapshotCorrupt, match=torn.id[:12]):
        await World.create(snapshot="torn", home=at.home)
    async with World.create(snapshot="whole", home=at.home) as world:
        assert await world.read("file") == b"2"


PODMAN = "podman-container-tools"
REPORTS: tuple[tuple[str, Callable[[Place], Awaitable[None]]], ...] = (
    (f"{PODMAN}/podman#3021, containers/fuse-overlayfs#138, moby/moby#42662", remade_folder_hides_the_old_one),
    (f"{PODMAN}/buildah#1709, {PODMAN}/container-libs#1170", deletions_are_kept),
    (f"{PODMAN}/podman#12347", later_layers_merge_into_folders),
    (f"{PODMAN}/podman#13123, moby/moby#25409, rust-lang/rustup#1239", folders_of_lower_layers_can_be_moved),
    (f"{PODMAN}/podman#23023", odd_trees_are_removed),
    (f"{PODMAN}/podman#12337, {PODMAN}/container-libs#169", a_torn_record),
    (f"{PODMAN}/podman#11911, containers/crun#756", sessions_work_in_the_next_generations),
    ("containers/bubblewrap#705", an_owner_that_ignores_sigchld),
    ("containers/bubblewrap#633, containers/bubblewrap#700", a_killed_owner_leaves_nothing),
    ("containers/bubblewrap#692", the_thread_that_made_it_may_end),
    ("containers/bubblewrap#697", no_zombies),
    ("containers/bubblewrap#726", a_closed_terminal_leaves_nothing),
    (
        "checkpoint-restore/criu#1980, checkpoint-restore/criu#2190, checkpoint-restore/criu#121",
        one_state_many_times,
    ),
    ("e2b-dev/E2B#500, OpenHands/OpenHands#5927, SWE-agent/SWE-ReX#151", a_timeout_ends_the_command),
    ("daytonaio/daytona#4230, SWE-agent/SWE-ReX#5, cloudflare/sandbox-sdk#139", heredocs_in_sessions),
    ("daytonaio/daytona#2067", two_outputs),
    ("gofixpoint/amika#341, rivet-dev/sandbox-agent#152", daemons_outlive_their_command),  # of Daytona, of E2B
    ("SWE-agent/SWE-ReX#157, SWE-agent/SWE-agent#697, SWE-agent/mini-swe-agent#154", output_that_is_no_text),
    ("OpenHands/OpenHands#10189", git_waits_for_nobody),
    ("OpenHands/OpenHands#4058, gofixpoint/amika#342, anthropics/claude-code#30720", broken_scripts),
    ("anthropics/claude-code#19663", startup_files_are_not_read),
)


@pytest.mark.parametrize(("reports", "check"), REPORTS, ids=[ids.split(", ")[0] for ids, _ in REPORTS])
async def test_it_does_not_happen_here(
    reports: str, check: Callable[[Place], Awaitable[None]], tmp_path: Path
) -> None:
    if why := why_no_namespaces():
        pytest.skip(why)
    folder = tmp_path / "place"
    folder.mkdir()
    async with WorldHome(tmp_path / "home", "namespaces") as home:
        await check(Place(home, folder))
