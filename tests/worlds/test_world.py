"""`World`: commands, files, snapshots, forks, merges; names that outlive the process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ramify.fork_engine.errors import CheckoutRefused, MergeConflict
from ramify.fork_engine.types import MergeStrategy, Processes, ProcessTier, Snapshot
from ramify.paths import snapshots
from ramify.sandboxes.backends.namespaces.backend import NamespaceBackend
from ramify.sandboxes.contract import KeptReady
from ramify.sandboxes.errors import WorldStartFailed
from ramify.worlds.errors import (
    BadName,
    CommandFailed,
    NameTaken,
    NoCommonAncestor,
    PathRefused,
    WorldClosed,
    WorldError,
    WorldNotFound,
)
from ramify.worlds.home import WorldHome
from ramify.worlds.references import Kind
from ramify.worlds.world import World


async def test_ten_lines_fork_keep_the_best_and_merge(home: WorldHome, repo: Path) -> None:
    async with World.create(repo, home=home) as world:
        await world.run("export GREETING=hi", check=True)
        forks = await world.fork(3)
        for number, fork in enumerate(forks):
            await fork.exec(f"echo {number} > answer", check=True)
        best = forks[1]
        await world.merge(best)
        for fork in forks:
            await fork.close()
        assert (await world.exec("cat answer")).stdout == "1\n"
        assert (await world.run("echo $GREETING")).stdout == "hi\n"
        assert [change.path for change in await world.diff()] == ["answer"]
    assert not (repo / "answer").exists()


async def test_forks_can_be_foreseen(home: WorldHome, sandbox: str, repo: Path) -> None:
    async with World.create(repo, home=home) as world:
        await world.run("kept=1", check=True)
        told = await world.foresee_forks(2)
        assert (told.places, bool(told.why_no_more)) == ((2, False) if sandbox == "namespaces" else (0, True))
        forks = await world.fork(2)
        assert [(await fork.run("echo $kept")).stdout for fork in forks] == ["1\n"] * 2
        for fork in forks:
            await fork.close()
        with pytest.raises(ValueError, match="-1 ways"):
            await world.foresee_forks(-1)


@pytest.mark.linux_ns
@pytest.mark.parametrize("sandbox", ["namespaces"])
async def test_a_state_that_was_forked_twice_is_expected_to_be_forked_again(
    home: WorldHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []

    def foresee(_: NamespaceBackend, state: Snapshot, __: object, forks: int) -> KeptReady:
        told.append((state.id, forks))
        return KeptReady(forks)

    def forget(_: NamespaceBackend, states: object) -> int:
        told.append(states)
        return 0

    monkeypatch.setattr(NamespaceBackend, "foresee", foresee)
    monkeypatch.setattr(NamespaceBackend, "forget", forget)
    async with World.create(home=home) as world:
        state = world.state.id
        for expected in ([], [(state, 2)]):
            for fork in await world.fork(2):
                await fork.close()
            assert told == expected
        await world.write("file", "changed")
        for fork in await world.fork(2):
            await fork.close()
        assert told[1:] == [[state]]


async def test_variables_go_before_those_of_a_snapshot_and_a_name_keeps_them(home: WorldHome) -> None:
    tell, told = "echo $ONE $TWO", {"first second\n"}
    async with World.create(home=home, name="one", env={"ONE": "first", "TWO": "second"}) as world:
        assert {(await world.exec(tell)).stdout, (await world.run(tell)).stdout} == told
        await world.run("export ONE=changed; unset TWO")
        state = await world.snapshot()
        (fork,) = await world.fork(names=["two"])
        await fork.close()
    for name in ("one", "two"):
        async with World.open(name, home=home) as world:
            assert {(await world.exec(tell)).stdout} == told
            assert (await world.run(tell)).stdout == "changed\n", "what the shell did lasts"
    async with World.create(snapshot=state, home=home, env={"ONE": "first", "TWO": "second"}) as world:
        assert {(await world.exec(tell)).stdout, (await world.run(tell)).stdout} == told


async def test_exec_leaves_no_trace_in_the_shell_and_run_does(home: WorldHome, repo: Path) -> None:
    async with World.create(repo, home=home) as world:
        await world.exec("cd src; export LEAK=1")
        assert (await world.exec("pwd; echo ${LEAK:-none}")).stdout.splitlines()[1] == "none"
        await world.run("cd src; export KEPT=1")
        assert (await world.run("ls; echo $KEPT")).stdout.split() == ["main.py", "1"]
        assert (await world.exec("ls")).stdout.split() == ["README", "src"]
        assert (await world.exec(["printf", "%s", "a b"])).stdout == "a b"
        program = ["exit", "3"]  # never a builtin
        assert (await world.exec(program, env={"PATH": "/usr/bin:/bin"})).exit_code == 127
        assert (await world.exec("cat", stdin="in", env={"A": "b"}, cwd="src")).stdout == "in"
        assert (await world.exec("sleep 5", timeout=0.2)).timed_out
        with pytest.raises(CommandFailed, match="exit code 3: told") as caught:
            await world.exec("echo told >&2; exit 3", check=True)
        assert caught.value.result.exit_code == 3  # type: ignore[attr-defined]


async def test_files_are_read_and_written_inside_the_tree_alone(home: WorldHome, repo: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("host")
    async with World.create(repo, home=home) as world:
        await world.write("deep/er/file", "text", mode=0o755)
        await world.write(world.mount_at / "absolute", b"\0\xff")
        assert await world.read("deep/er/file") == b"text"
        assert await world.read("absolute") == b"\0\xff"
        assert (await world.exec("test -x deep/er/file && cat deep/er/file")).stdout == "text"
        await world.exec(f"ln -s {secret} planted; ln -s {tmp_path} folder; mkfifo pipe; ln -s README inside")
        assert await world.read("inside") == b"one\ntwo\nthree\n"
        for path, why in [
            ("planted", "leads out"),
            ("folder/secret", "leads out"),
            ("pipe", "not a regular file"),
            ("missing", "does not exist"),
            ("src", "not a regular file|folder"),
            ("../secret", r"'\.\.'"),
            ("/etc/passwd", "outside the world's tree"),
        ]:
            with pytest.raises(PathRefused, match=why):
                await world.read(path)
        with pytest.raises(PathRefused, match="larger"):
            await world.read("README", most=3)
        with pytest.raises(PathRefused, match="link"):
            await world.write("folder/secret", "overwritten")
        await world.write("planted", "replaced")  # the link itself is replaced
        assert secret.read_text() == "host" and await world.read("planted") == b"replaced"


async def test_folders_are_copied_in_and_out_without_following_links(
    home: WorldHome, repo: Path, tmp_path: Path
) -> None:
    host = tmp_path / "host"
    (host / "sub").mkdir(parents=True)
    (host / "sub" / "a").write_text("a")
    (host / "link").symlink_to("/etc/passwd")
    (host / "sub" / "a").chmod(0o750)
    async with World.create(home=home) as world:
        await world.upload(host, "in")
        await world.upload(host / "sub" / "a", "one/b")
        await world.upload(host / "sub" / "a")  # into the folder, as `download` does
        await world.upload(host / "sub" / "a", "one")
        assert (await world.exec("find . | sort")).stdout.split() == [
            *(".", "./a", "./in", "./in/link", "./in/sub", "./in/sub/a", "./one", "./one/a", "./one/b"),
        ]
        await world.exec("ln -s /etc in/etc; mkfifo in/pipe; mkdir in/empty")
        await world.download("in", tmp_path / "out")
        await world.download("one/b", tmp_path / "b")
        await world.download("one/b", tmp_path / "made" / "here")
        assert (tmp_path / "made" / "here").read_text() == "a"
        out = tmp_path / "out"
        assert sorted(str(path.relative_to(out)) for path in out.rglob("*")) == [
            *("empty", "etc", "link", "sub", "sub/a"),
        ]
        assert str((out / "etc").readlink()) == "/etc" and (out / "sub" / "a").stat().st_mode & 0o777 == 0o750
        assert (tmp_path / "b").read_text() == "a"
        for source, target, why in [
            ("in", out, "not empty"),
            ("one/b", tmp_path / "b", "exists"),
            ("no", tmp_path / "x", "not exist"),
            ("in/etc/passwd", tmp_path / "x", "in/etc: a link"),
            ("one/b", tmp_path / "b" / "x", "/b: File exists"),
        ]:
            with pytest.raises(PathRefused, match=why):
                await world.download(source, target)
        with pytest.raises(PathRefused, match=r"^in/etc: a link"):  # not what is uploaded
            await world.upload(host / "sub" / "a", "in/etc/passwd")


async def test_a_tilde_of_this_machine_is_the_users_home(
    home: WorldHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "given").write_text("1")
    async with World.create(home=home) as world:
        await world.upload("~/given", "taken")
        await world.download("taken", "~/back")
        async with world.expose(8000, unix_socket="~/socket"):
            assert (tmp_path / "socket").is_socket()
    assert (tmp_path / "back").read_text() == "1"


async def test_a_named_world_outlives_its_process(home: WorldHome, repo: Path, tmp_path: Path, sandbox: str) -> None:
    async with World.create(repo, name="mine", home=home) as world:
        await world.exec("echo kept > kept")
        await world.run("export KEPT=1; cd src")
    program = f"""
import asyncio
from ramify.worlds.world import World
async def main():
    async with World.open("mine", home={str(tmp_path / "home")!r}, sandbox={sandbox!r}) as world:
        print((await world.run("cat ../kept; echo $KEPT; pwd")).stdout, end="")
        await world.write("later", "later")
asyncio.run(main())
"""
    told = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True)
    assert told.stdout.splitlines()[:2] == ["kept", "1"], told.stderr
    async with World.open("mine", home=home) as again:
        assert await again.read("later") == b"later"
        with pytest.raises(NameTaken, match="mine"):
            await World.create(repo, name="mine", home=home)
    home.references.delete(Kind.WORLD, "mine")
    with pytest.raises(WorldNotFound, match="mine"):
        await World.open("mine", home=home)


async def test_tags_name_states_to_go_back_to(home: WorldHome, repo: Path) -> None:
    async with World.create(repo, home=home) as world:
        first = await world.snapshot("before")
        await world.exec("rm README; echo x > x")
        second = await world.snapshot()
        await world.restore("before")
        assert (await world.exec("ls")).stdout.split() == ["README", "src"]
        await world.restore(second.id[:12])
        assert (await world.exec("ls")).stdout.split() == ["src", "x"]
        assert [change.path for change in await world.diff("before")] == ["README", "x"]
        with pytest.raises(NameTaken, match="before"):
            await world.snapshot("before")
        for name in ("", "a/b", "../x", ".hidden", "x" * 101):
            with pytest.raises(BadName):
                await world.snapshot(name)
        with pytest.raises(WorldNotFound, match="nothing"):
            await world.restore("nothing")
        assert (await world.snapshot()).id == second.id != first.id
    async with World.create(snapshot="before", home=home) as other:
        assert (await other.exec("ls")).stdout.split() == ["README", "src"]


async def test_merges_find_their_base_and_conflicts_change_nothing(home: WorldHome, repo: Path) -> None:
    async with World.create(repo, home=home) as world:
        (left, right) = await world.fork(2)
        async with left, right:
            await left.exec("sed -i s/one/ONE/ README; echo l > l")
            await right.exec("sed -i s/three/THREE/ README; echo r > r")
            await left.merge(right)
            assert await left.read("README") == b"ONE\ntwo\nTHREE\n"
            await world.exec("sed -i s/one/other/ README")
            with pytest.raises(MergeConflict, match="README"):
                await world.merge(left)
            assert await world.read("README") == b"other\ntwo\nthree\n"
            await world.merge(left, strategy=MergeStrategy.THEIRS)
            assert (await world.exec("cat l r; head -1 README")).stdout == "l\nr\nONE\n"
    async with World.create(home=home) as stranger, World.create(repo, home=home) as world:
        with pytest.raises(NoCommonAncestor, match="base="):
            await world.merge(stranger)


async def test_what_does_not_fit_is_refused(home: WorldHome, repo: Path, tmp_path: Path) -> None:
    with pytest.raises(WorldError, match="one of them"):
        World.create(repo, snapshot="x", home=home)
    with pytest.raises(WorldError, match="leave out sandbox"):
        World.create(repo, home=home, sandbox="copy")
    world = await World.create(repo, home=home)
    with pytest.raises(ValueError, match="2 forks need 2 names"):
        await world.fork(2, names=["a"])
    with pytest.raises(NameTaken):
        await world.fork(2, names=["a", "a"])
    assert home.references.all(Kind.WORLD) == []  # all or none
    with pytest.raises(CheckoutRefused):
        await world.checkout(repo)
    await world.checkout(tmp_path / "out")
    assert (tmp_path / "out" / "README").read_text() == "one\ntwo\nthree\n"
    await world.close()
    await world.close()
    with pytest.raises(WorldClosed):
        await world.exec("true")


async def test_the_home_of_a_world_is_closed_with_its_last_fork(repo: Path, tmp_path: Path, sandbox: str) -> None:
    world = await World.create(repo, home=tmp_path / "home", sandbox=sandbox)
    (fork,) = await world.fork()
    await world.close()
    assert (await fork.exec("cat README")).ok
    await fork.close()
    with pytest.raises(WorldClosed):
        await fork.exec("true")


async def test_a_home_that_is_left_closes_its_worlds(repo: Path, tmp_path: Path, sandbox: str) -> None:
    async with WorldHome(tmp_path / "home", sandbox) as home:
        world, other = await World.create(repo, name="one", home=home), await World.create(home=home)
        await world.write("new", "1")
    assert not world.is_open and not other.is_open
    await world.close()
    async with World.open("one", home=tmp_path / "home", sandbox=sandbox) as again:  # nothing holds it any more
        assert await again.read("new") == b"1"


async def test_a_home_says_that_changes_could_not_be_stored(repo: Path, tmp_path: Path, sandbox: str) -> None:
    with pytest.raises(WorldError, match="the disk is full"):
        async with WorldHome(tmp_path / "home", sandbox) as home:
            world = await World.create(repo, name="one", home=home)

            async def full(tag: str | None = None) -> None:
                raise WorldError("the disk is full")

            world.snapshot = full  # type: ignore[method-assign, assignment]
    assert not home.is_open


async def test_what_waits_for_a_command_is_cancelled_at_once(home: WorldHome) -> None:
    """It waited for the command's end, whatever deadline its caller had."""
    async with World.create(home=home) as world:
        state = await world.snapshot()
        running = asyncio.ensure_future(world.run("touch started; sleep 60"))
        while not (world.path / "started").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for work in (world.snapshot(), world.fork(), world.restore(state)):
            waiting = asyncio.ensure_future(work)
            await asyncio.wait({waiting}, timeout=0.05)
            waiting.cancel()
            await asyncio.wait({waiting})
            assert waiting.cancelled() and not running.done()
        running.cancel()
        await asyncio.wait({running})
        assert (await world.run("ls")).stdout == "started\n"


async def test_a_merge_knows_a_fork_that_was_made_while_a_process_ran(home: WorldHome) -> None:
    """The fork's state is the base of the merge, though the world could not be remounted over it."""
    async with World.create(home=home) as world:
        await world.exec("echo 1 > file")
        async with world.start("cat", stdin=True) as process:
            (fork,) = await world.fork()  # at once: the process may not even have begun its program
            await world.exec("echo 2 > file")
            process.close_stdin()
            await process.wait()
        await fork.exec("echo 2 > other")
        await world.merge(fork)
        assert (await world.exec("cat file other")).stdout == "2\n2\n"
        await fork.close()


async def test_a_merge_keeps_what_both_sides_have_in_a_folder_of_the_home(home: WorldHome, sandbox: str) -> None:
    if sandbox == "copy":
        pytest.skip("a snapshot of the copy backend does not have the home")
    async with World.create(home=home) as world:
        await world.exec("mkdir -p ~/.ramify-test/new && echo 1 > ~/.ramify-test/new/first")
        (fork,) = await world.fork()
        await world.exec("echo 2 > ~/.ramify-test/new/second")
        await fork.exec("echo 3 > ~/.ramify-test/new/third")
        await world.merge(fork)
        assert (await world.exec("cd ~/.ramify-test/new && cat first second third")).stdout == "1\n2\n3\n"
        await fork.close()


async def test_a_fork_waits_for_no_disk_and_a_snapshot_after_it_does(home: WorldHome, repo: Path) -> None:
    def unflushed() -> list[Path]:
        return list(snapshots(home.place).glob("unflushed/*/*"))

    async with World.create(repo, home=home) as world:
        await world.write("new", "1")
        (fork,) = await world.fork()
        assert unflushed()
        await world.snapshot("kept")  # nothing changed since the fork
        assert not unflushed()
        await fork.close()
    async with World.create(repo, home=home, name="named") as world:
        await world.write("new", "2")
        (fork,) = await world.fork()
        assert not unflushed(), "the name stands for the state that was forked"
        await fork.close()


async def test_restoring_processes_where_there_can_be_none_is_refused_with_nothing_changed(
    home: WorldHome, repo: Path
) -> None:
    async with World.create(repo, home=home) as world:
        await world.run("new=1; echo one > file", check=True)
        state = await world.snapshot()
        dumped = replace(state, processes=Processes(ProcessTier.TREE, image="image"))
        with pytest.raises(WorldStartFailed, match=r"dumpable=True|isolated"):
            await world.restore(dumped)
        assert (await world.run("echo $new; cat file")).stdout == "1\none\n"
