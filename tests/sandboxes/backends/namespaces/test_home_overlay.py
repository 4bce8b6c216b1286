"""What lies beside the tree: home and tmp are copy-on-write, credentials are hidden, common tools work."""

from __future__ import annotations

import asyncio
import os
import pwd
import re
import shutil
import socket
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import ProcessTier, Snapshot
from ramify.sandboxes.backends.namespaces.backend import NamespaceBackend
from ramify.sandboxes.backends.namespaces.home_overlay import mask_entries, skeleton
from ramify.sandboxes.contract import World, WorldSpec
from ramify.sandboxes.linux import ptrace
from tests.machine import DATA_FOLDERS

pytestmark = pytest.mark.linux_ns

Out = Callable[[World, str], Awaitable[str]]


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's home for the test, not the real one."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        monkeypatch.setenv("HOME", folder)
        yield furnished(Path(folder))


def furnished(home: Path) -> Path:
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    (home / ".ssh" / "id_ed25519").write_text("secret")
    (home / ".config" / "gcloud").mkdir(parents=True)
    (home / ".config" / "gcloud" / "token").write_text("secret")
    (home / ".config" / "editor").write_text("mine")
    (home / "dotfiles").mkdir()
    (home / "dotfiles" / "netrc").write_text("secret")
    (home / ".netrc").symlink_to("dotfiles/netrc")
    (home / "notes").write_text("as they were\n")
    return home


@pytest.fixture(params=["in the home", "elsewhere"])
def scratch(request: pytest.FixtureRequest, home: Path, tmp_path: Path) -> Path:
    return (home if request.param == "in the home" else tmp_path) / "ramify" / "worlds"


@pytest.fixture
def store(scratch: Path) -> SnapshotStore:
    return SnapshotStore(scratch.parent / "store")


@pytest.fixture
async def world(namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec) -> World:
    return await namespaces.materialise(base, spec)


async def test_home_and_tmp_are_part_of_a_snapshot_and_never_reach_the_host(
    world: World,
    namespaces: NamespaceBackend,
    base: Snapshot,
    spec: WorldSpec,
    home: Path,
    names_in_tmp: set[str],
    out: Out,
) -> None:
    assert await out(world, "pwd; cat ~/notes") == f"{spec.mount_at}\nas they were\n"
    await out(
        world,
        "echo changed > ~/notes; rm ~/.config/editor; mkdir -p ~/.cache/x; echo t > /tmp/ramify-was-here; echo w > w",
    )
    one = await world.seal()
    await out(world, "rm /tmp/ramify-was-here; echo again > ~/notes; mkdir ~/.config/editor")
    two = await world.seal()
    assert (await world.seal()).id == two.id
    fork = await namespaces.materialise(one, spec)
    assert await out(fork, "cat ~/notes /tmp/ramify-was-here w; ls -A ~/.config ~/.cache") == (
        f"changed\nt\nw\n{home}/.cache:\nx\n\n{home}/.config:\n"
    )
    other = await namespaces.materialise(two, spec)
    assert await out(other, "cat ~/notes; ls -A ~/.config/editor; cd ~") == "again\n"
    assert set((await out(other, "ls -A /tmp")).split()) == names_in_tmp
    await other.rollback(base)
    assert await out(other, "cat ~/notes ~/.config/editor; test ! -e w") == "as they were\nmine"
    assert (home / "notes").read_text() == "as they were\n"
    assert (home / ".config" / "editor").read_text() == "mine"
    assert not Path("/tmp/ramify-was-here").exists()


async def test_a_home_in_tmp_is_kept_too(
    store: SnapshotStore, scratch: Path, base: Snapshot, spec: WorldSpec, monkeypatch: pytest.MonkeyPatch, out: Out
) -> None:
    if not os.access("/tmp", os.W_OK):
        pytest.skip("/tmp is not this user's to write to")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("HOME", folder)
        async with NamespaceBackend(store, scratch) as backend:
            world = await backend.materialise(base, spec)
            await out(world, "echo changed > ~/notes; echo t > /tmp/ramify-was-here")
            sealed = await world.seal()
            assert (await world.seal()).id == sealed.id
            assert await out(await backend.materialise(sealed, spec), "cat ~/notes") == "changed\n"


async def test_home_and_tmp_can_be_changed_after_a_seal_of_the_tree_alone(
    world: World, namespaces: NamespaceBackend, spec: WorldSpec, out: Out
) -> None:
    """They stay mounted, so overlayfs's work folders must stay too: changing files of the host needs them."""
    for turn in range(2):
        await out(world, f"echo {turn} > tree; cat ~/notes")
        assert not (await world.seal()).outside
        await asyncio.sleep(0.1)  # wait for the clean-up after a seal
    await out(world, "echo more >> ~/notes; rm ~/.config/editor; mv ~/dotfiles ~/moved || cp -r ~/dotfiles ~/moved")
    await out(world, "echo t > /tmp/ramify-was-here")
    fork = await namespaces.materialise(await world.seal(), spec)
    assert await out(fork, "cat ~/notes tree /tmp/ramify-was-here; ls -A ~/.config") == "as they were\nmore\n1\nt\n"
    await out(world, "rm ~/notes && touch ~/new")


async def test_a_renamed_folder_is_completely_in_the_layer(
    namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec, home: Path, out: Out
) -> None:
    """No layer refers to a name below it, whatever the machine's default for overlayfs; also not beside the tree."""
    (home / "projects" / "here").mkdir(parents=True)
    (home / "projects" / "plans").write_text("plans\n")
    spec = replace(spec, mount_at=home / "projects" / "here")
    world = await namespaces.materialise(base, spec)
    shown = await out(world, "cat /proc/self/mountinfo")
    assert not re.search(r"redirect_dir=(on|follow)", shown)
    here = sorted((await out(world, "find . | sort")).splitlines())
    for command, left in (
        ("mv ~/dotfiles ~/moved; mkdir -p ~/projects/beside/deep; echo d > ~/projects/beside/deep/file", "moved"),
        ("mv ~/moved ~/again; mv ~/projects/beside ~/projects/aside; rm ~/projects/plans", "again"),
    ):
        await out(world, command)
        sealed = await world.seal()
        world = await namespaces.materialise(sealed, spec)
        assert (await out(world, "cd ~; ls -d dotfiles moved again 2>/dev/null || true")).split() == [left]
        assert sorted((await out(world, "cd ~/projects/here; find . | sort")).splitlines()) == here
    assert await out(world, "cat ~/projects/aside/deep/file; ls ~/projects") == "d\naside\nhere\n"
    assert sorted(path.name for path in (home / "projects").iterdir()) == ["here", "plans"]


async def test_spent_work_folders_are_removed(world: World, out: Out) -> None:
    def works() -> int:
        return sum(1 for _ in world._folder.glob("work/*"))  # type: ignore[attr-defined]

    await out(world, "true")
    begun = works()
    for turn in range(5):
        await out(world, f"echo {turn} > tree; echo {turn} > ~/file")
        await world.seal()
    await asyncio.wait({world._tidying})  # type: ignore[attr-defined]
    assert works() == begun


async def test_credentials_are_hidden(world: World, out: Out) -> None:
    for place in ("~/.ssh", "~/.config/gcloud", "~/.netrc", "~/dotfiles/netrc"):
        assert (await world.run(f"ls -d {place} || cat {place}")).exit_code != 0
    assert await out(world, "ls -A ~/dotfiles; cat ~/.config/editor; grep -rs secret ~ || true") == "mine"
    await out(world, "mkdir ~/.ssh && echo its own > ~/.ssh/config && cat ~/.ssh/config")


async def test_a_seal_waits_for_nothing_and_loses_nothing_while_home_is_held(
    world: World, home: Path, out: Out
) -> None:
    await out(world, "cd ~; (while :; do date +%N >> ~/log; sleep 0.01; done) >/dev/null 2>&1 &")
    await out(world, "sleep 0.05; echo kept > ~/kept")
    sealed = await world.seal()
    assert sealed.outside
    await out(world, "kill %1; cat ~/kept; pwd")


async def test_a_venv_in_the_workspace_and_pip_from_a_wheel_folder(world: World, tmp_path: Path, out: Out) -> None:
    wheel(world.path / "wheels")
    await out(world, f"{sys.executable} -m venv --without-pip venv")
    assert await out(world, "venv/bin/python -c 'import sys; print(sys.prefix)'") == f"{world._spec.mount_at}/venv\n"  # type: ignore[attr-defined]
    pip = "-m pip --disable-pip-version-check install --quiet --no-index --find-links wheels"
    result = await world.run(f"{sys.executable} {pip} --target lib greeting --root-user-action ignore")
    assert result.ok, result.stderr
    assert await out(world, "PYTHONPATH=lib venv/bin/python -c 'import greeting; print(greeting.WORD)'") == "hello\n"
    sealed = await world.seal()
    await world.rollback(sealed)
    assert await out(world, "PYTHONPATH=lib venv/bin/python -c 'import greeting; print(greeting.WORD)'") == "hello\n"


def wheel(folder: Path) -> None:
    """A wheel, as any tool would make it."""
    folder.mkdir()
    info = "greeting-1.0.dist-info"
    with zipfile.ZipFile(folder / "greeting-1.0-py3-none-any.whl", "w") as made:
        made.writestr("greeting.py", "WORD = 'hello'\n")
        made.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
        made.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        made.writestr(f"{info}/RECORD", "")


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
async def test_git(world: World, out: Out) -> None:
    await out(world, "git init -q . && git config user.name N && git config user.email e@example.org")
    await out(world, "git add -A && git commit -qm one && git checkout -qb side && echo 2 > two && git add two")
    await out(world, "git commit -qm two && git checkout -q - && git merge -q side && git gc -q")
    assert await out(world, "git log --format=%s; git status --short; git fsck 2>&1") == "two\none\n"


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
async def test_a_compiler(world: World, out: Out) -> None:
    (world.path / "main.c").write_text('#include <stdio.h>\nint main(void) { puts("compiled"); return 0; }\n')
    assert await out(world, "gcc -O2 -o main main.c && ./main") == "compiled\n"


async def test_a_dev_server_on_loopback(world: World, out: Out) -> None:
    await out(world, f"{sys.executable} -m http.server --bind 127.0.0.1 8765 >/tmp/log 2>&1 &")
    fetch = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8765/readme.txt').read().decode(), end='')"
    wait = "for i in $(seq 200); do (exec 5<>/dev/tcp/127.0.0.1/8765) 2>/dev/null && break; sleep 0.02; done"
    assert await out(world, f'{wait}; {sys.executable} -c "{fetch}"') == "as it was\n"
    with pytest.raises(ConnectionRefusedError):  # it is the world's own loopback
        socket.create_connection(("127.0.0.1", 8765), timeout=1)


async def test_the_hosts_network_is_available_only_on_request(
    namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec, out: Out
) -> None:
    apart = await namespaces.materialise(base, spec)
    online = await namespaces.materialise(base, replace(spec, network=True))
    host = Path("/proc/self/ns/net").readlink()
    assert await out(online, "readlink /proc/self/ns/net") == f"{host}\n"
    assert await out(apart, "readlink /proc/self/ns/net") != f"{host}\n"


def test_a_mask_keeps_the_folders_above_as_they_are(home: Path) -> None:
    (home / ".config").chmod(0o750)
    pieces, elsewhere = mask_entries(home)
    hidden = {piece.path for piece in pieces if piece.kind == "whiteout"}
    assert {".ssh", ".config/gcloud", ".netrc", "dotfiles/netrc"} <= hidden
    assert {".aws", ".config/gh"} <= hidden  # a login that comes later
    assert not any(path.startswith((".local", ".cargo")) for path in hidden)  # folders that are not there
    (config,) = (piece for piece in pieces if piece.path == ".config")
    assert (config.kind, config.mode, config.mtime_ns) == ("folder", 0o750, (home / ".config").stat().st_mtime_ns)
    assert elsewhere == []


def test_a_later_login_in_a_folder_that_is_a_link_out_of_the_home(home: Path, tmp_path: Path) -> None:
    (tmp_path / "settings").mkdir()
    shutil.rmtree(home / ".config")
    (home / ".config").symlink_to(tmp_path / "settings")
    assert str(tmp_path / "settings/gh") in mask_entries(home)[1]


async def test_a_login_while_worlds_are_open_is_hidden(
    namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec, home: Path, out: Out
) -> None:
    world = await namespaces.materialise(base, spec)
    (home / ".aws").mkdir()
    (home / ".aws/credentials").write_text("key\n")
    (home / ".config/gh").write_text("token\n")
    (home / "later").write_text("seen\n")
    for one in (world, await namespaces.materialise(base, spec)):
        assert await out(one, "cat ~/.aws/credentials ~/.config/gh; cat ~/later") == "seen\n"
    await out(world, "mkdir ~/.aws && echo mine > ~/.aws/credentials")
    fork = await namespaces.materialise(await world.seal(), spec)
    assert await out(fork, "cat ~/.aws/*") == "mine\n"


async def test_credentials_in_the_systems_home_are_hidden_where_home_says_another(
    store: SnapshotStore, scratch: Path, base: Snapshot, spec: WorldSpec, home: Path, tmp_path: Path, out: Out,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """As with `sudo -E`, or HOME set for a service."""
    area = next((one for one in DATA_FOLDERS if os.access(one, os.W_OK)), None)
    if area is None:
        pytest.skip("no folder that worlds see is this user's to write to")
    with tempfile.TemporaryDirectory(dir=area) as systems:
        entry = pwd.getpwuid(os.geteuid())
        mine = pwd.struct_passwd((*entry[:5], systems, entry[6]))
        monkeypatch.setattr(pwd, "getpwuid", lambda uid: mine)
        (Path(systems) / ".ssh").mkdir()
        (Path(systems) / ".ssh/id_rsa").write_text("key\n")
        (Path(systems) / ".netrc").write_text("key\n")
        (Path(systems) / "other").write_text("seen\n")
        async with NamespaceBackend(store, scratch) as backend:
            world = await backend.materialise(base, spec)
            assert await out(world, f"cat {systems}/.ssh/id_rsa {systems}/.netrc; cat {systems}/other") == "seen\n"


def test_a_credential_behind_a_link_out_of_the_home_is_named(home: Path, tmp_path: Path) -> None:
    (tmp_path / "vault").mkdir()
    (home / ".aws").symlink_to(tmp_path / "vault")
    pieces, elsewhere = mask_entries(home)
    assert ".aws" in {piece.path for piece in pieces}
    assert elsewhere == [str(tmp_path / "vault")]


def test_a_skeleton_has_every_mount_point(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    places = ["/tmp/a/b", "/home/me/work", str(tmp_path / "file")]
    pieces = {piece.path: piece.kind for piece in skeleton(places, Path("/home/me"))}
    assert (
        pieces["tmp/a/b"] == pieces["home/work"] == pieces["root/tmp/a/b"] == pieces["root/home/me/work"] == "folder"
    )
    assert pieces[f"root{tmp_path}/file"] == "file"
    assert all(str(Path(path).parent) in {".", *pieces} for path in pieces)


@pytest.mark.skipif(bool(ptrace.why_not()), reason=f"sessions are not carried: {ptrace.why_not()}")
@pytest.mark.parametrize("replaced", [False, True])
async def test_a_session_that_has_mapped_a_library_of_the_home_goes_on_in_a_fork(
    namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec, home: Path, out: Out, replaced: bool
) -> None:
    """The kernel reports the library's path within the file system below the world's home."""
    found = sorted(Path(sysconfig.get_config_var("DESTSHARED")).glob("_bisect.*.so"))
    if not found:
        pytest.skip("this Python's modules are no files of their own")
    library = home / "lib" / found[0].name
    library.parent.mkdir()
    shutil.copy(found[0], library)
    world = await namespaces.materialise(base, spec)
    session = await world.python(interpreter=sys.executable)
    load = f"import importlib.util as u; s = u.spec_from_file_location('_bisect', {str(library)!r})"
    ran = await session.run(
        f"{load}; m = u.module_from_spec(s); s.loader.exec_module(m); m.bisect_right([1, 2, 3], 2)"
    )
    assert ran.value == "2", ran.error
    if replaced:
        await out(world, f"cp {library} other && mv other {library}")
    sealed = await world.seal()
    if replaced:
        assert sealed.tier is ProcessTier.DROPPED and str(library.name) in sealed.processes.reason
        return
    assert sealed.tier is ProcessTier.REPL, sealed.processes.reason
    fork = await namespaces.materialise(sealed, spec)
    again = await (await fork.python()).run("m.bisect_right([1, 2, 3], 3)")
    assert again.value == "3", again.error
