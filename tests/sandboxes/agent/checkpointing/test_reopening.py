"""What a restored process has to open again: what it may not is found at the seal, not by the fork."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from ramify.fork_engine.types import ProcessTier, Snapshot
from ramify.sandboxes.backends.namespaces.backend import NamespaceBackend
from ramify.sandboxes.contract import World, WorldSpec
from ramify.sandboxes.linux import ptrace

Out = Callable[[World, str], Awaitable[str]]
Until = Callable[[World, str], Awaitable[None]]
pytestmark = [
    pytest.mark.linux_ns,
    pytest.mark.criu,
    pytest.mark.skipif(ptrace.why_not() != "", reason=ptrace.why_not()),
]
PROGRAM = """
import mmap, os, time
os.mkdir("inner")
file = open("inner/held", "w+b")
file.write(bytes(4096))
file.flush()
{what}
open("ready", "w").close()
while not os.path.exists("go"):
    time.sleep(0.01)
with open("done.tmp", "w") as done:
    print({tell}, file=done)
os.rename("done.tmp", "done")
time.sleep(1000)
"""


@pytest.mark.parametrize(
    ("what", "tell", "why"),
    [
        ('os.chmod("inner/held", 0)', "file.seek(0), file.read(1)", "inner/held"),
        ('os.chmod("inner/held", 0o444)', 'file.write(b"x")', "inner/held"),
        ('os.chmod("inner", 0)', "file.seek(0), file.read(1)", "inner/held"),
        (
            'mapped = mmap.mmap(file.fileno(), 4096); file.close(); os.chmod("inner/held", 0o444)',
            "mapped[0]",
            "inner/held",
        ),
        ('maps = open("/proc/self/maps")', '"python" in maps.read()', "state of a process"),
    ],
)
async def test_a_file_that_cannot_be_opened_again_is_left_to_criu(
    namespaces: NamespaceBackend,
    base: Snapshot,
    dumpable: WorldSpec,
    out: Out,
    until: Until,
    what: str,
    tell: str,
    why: str,
) -> None:
    world = await namespaces.materialise(base, dumpable)
    (world.path / "program.py").write_text(PROGRAM.format(what=what, tell=tell))
    await out(world, "python3 program.py &")
    await until(world, "[ -e ready ]")
    sealed = await world.seal(flush=False)
    assert sealed.tier is ProcessTier.CRIU, sealed.processes.reason
    assert why in sealed.processes.reason
    fork = await namespaces.materialise(sealed, dumpable)
    told = []
    for live in (world, fork):
        await out(live, "touch go")
        await until(live, "[ -e done ]")
        told.append(await out(live, "cat done"))
    assert told[0] == told[1]
