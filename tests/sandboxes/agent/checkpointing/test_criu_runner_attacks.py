"""CRIU restores open files by path, with rights that the processes did not have. Planted links must not mislead it,
not even a link through descriptors that the agent or CRIU hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot
from ramify.sandboxes.backends.namespaces.backend import NamespaceBackend
from ramify.sandboxes.contract import World, WorldSpec
from ramify.sandboxes.errors import WorldStartFailed

Out = Callable[[World, str], Awaitable[str]]
pytestmark = [pytest.mark.linux_ns, pytest.mark.criu]

FOLDER = """
os.makedirs("gone/inner"); os.chdir("gone/inner")
os.rmdir(f"{top}/gone/inner"); os.rmdir(f"{top}/gone")
def look():
    seen, at = [], "."
    for _ in range(12):
        at += "/.."
        try: seen += os.listdir(at)
        except OSError: pass
    return seen
"""
FILE = """
os.mkdir("gone"); kept = os.open("gone/planted", os.O_CREAT | os.O_RDWR); os.write(kept, b"x" * 99)
os.unlink("gone/planted"); os.rmdir("gone")
def look():
    os.pwrite(kept, b"y", 0)
    return [f"on device {os.fstat(kept).st_dev}"]
"""
SOCKET = """
os.mkdir("gone"); server = socket.socket(socket.AF_UNIX); server.bind(f"{top}/gone/planted"); server.listen()
os.rename("gone", "aside")
def look():
    return [server.getsockname()]
"""
PROGRAM = """
import os, socket, threading, time
top = os.getcwd()
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()  # so that CRIU has to dump it
{opens}
os.symlink("{target}", f"{{top}}/gone")
while True:
    with open(f"{{top}}/telling", "w") as file: file.write("\\n".join(look()))
    os.rename(f"{{top}}/telling", f"{{top}}/told")
    time.sleep(0.01)
"""


def held(world: World) -> set[str]:
    """The agent's descriptors of folders, as commands could name them."""
    place = Path(f"/proc/{world._link.pid}/fd")  # type: ignore[attr-defined]
    return {f"/proc/1/fd/{held.name}" for held in place.iterdir() if held.is_dir()}


async def told(world: World) -> list[str]:
    (world.path / "told").unlink(missing_ok=True)
    for _ in range(6000):
        if (world.path / "told").exists():
            return (world.path / "told").read_text().split("\n")
        await asyncio.sleep(0.01)
    pytest.fail("the program says nothing")


def lies(*places: Path) -> list[tuple[str, bool]]:
    """What exists, without what a snapshot adds to the store."""
    return sorted((path.name, path.is_socket()) for place in places for path in place.iterdir())


@pytest.mark.parametrize("opens", [FOLDER, FILE, SOCKET], ids=["folder", "file", "socket"])
async def test_planted_links_do_not_mislead_criu(
    opens: str,
    namespaces: NamespaceBackend,
    base: Snapshot,
    spec: WorldSpec,
    store: SnapshotStore,
    scratch: Path,
    out: Out,
) -> None:
    dumpable = replace(spec, dumpable=True)
    for place in (store.root, scratch, scratch.parent):
        (place / "canary").touch()
    first = await namespaces.materialise(base, dumpable)
    await out(first, "true")
    folders = held(first)
    assert len(folders) >= 2, "the store and the world's own"
    numbers = range(10, 18) if opens == FOLDER else ()  # some of CRIU's own: the images are among them
    own = {f"/proc/self/{place}" for place in ("cwd", *(f"fd/{number}" for number in numbers))}
    for target in sorted(folders | {f"{folder}/.." for folder in folders}) + sorted(own):
        world = await namespaces.materialise(base, dumpable)
        (world.path / "program.py").write_text(PROGRAM.format(opens=opens, target=target))
        await out(world, "python3 program.py 2>/dev/null &")
        await told(world)
        sealed = await world.seal()
        await world.close()
        if not sealed.processes.tier.whole:
            continue
        before = lies(store.root, scratch, scratch.parent)
        try:
            fork = await namespaces.materialise(sealed, dumpable)
        except WorldStartFailed:
            assert lies(store.root, scratch, scratch.parent) == before
            continue
        seen = await told(fork)
        assert target.startswith("/proc/self/"), (target, seen)  # nothing that the agent holds
        assert not {"canary", "layers", "upper"} & {*seen}, (target, seen)
        assert lies(store.root, scratch, scratch.parent) == before
        await fork.close()
