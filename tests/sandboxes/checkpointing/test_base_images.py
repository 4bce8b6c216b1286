"""A Python session that is kept again is stored as the difference, but every image is complete by itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import LayerId, Snapshot
from ramify.sandboxes.agent.checkpointing.process_image import BASE_PAGES, PAGES
from ramify.sandboxes.backends.namespaces.backend import NamespaceBackend
from ramify.sandboxes.contract import WorldSpec
from ramify.sandboxes.linux import ptrace

pytestmark = [
    pytest.mark.linux_ns,
    pytest.mark.skipif(bool(ptrace.why_not()), reason=f"sessions are not carried: {ptrace.why_not()}"),
]
HELD = 40_000_000
FILL = f"import random; data = bytearray(random.Random(7).randbytes({HELD})); n = 0"
CHANGE = "n += 1; data[4096 * 999 * n] = 0"
TELL = "import hashlib; n, hashlib.sha256(data).hexdigest()"


def folder(store: SnapshotStore, sealed: Snapshot) -> Path:
    return store.image_dir(sealed.processes.image) / "python"


def written(path: Path) -> int:
    return path.stat().st_blocks * 512


async def test_a_seal_writes_what_changed_and_needs_no_earlier_image(
    namespaces: NamespaceBackend, store: SnapshotStore, base: Snapshot, spec: WorldSpec
) -> None:
    world = await namespaces.materialise(base, spec)
    repl = await world.python()
    await repl.run(FILL)
    seals, told = [await world.seal()], []
    for _ in range(2):
        told.append((await repl.run(f"{CHANGE}; {TELL}")).value)
        seals.append(await world.seal())
    whole, *others = (folder(store, sealed) for sealed in seals)
    assert written(whole / PAGES) > HELD
    assert not (whole / BASE_PAGES).exists()
    for one in others:
        assert (one / BASE_PAGES).samefile(whole / PAGES)
        assert written(one / PAGES) < HELD / 8
    assert store.fsck().problems == ()

    for sealed in seals[:2]:  # only the last image is to be kept
        os.utime(store.image_dir(sealed.processes.image).parent, (1, 1))
    assert store.delete_unreachable([base.id, seals[2].id])[0] == 2
    assert not whole.exists()
    fork = await namespaces.materialise(seals[2], spec)
    again = await fork.python()
    assert (await again.run(TELL)).value == told[1]
    expected = (await again.run(f"{CHANGE}; {TELL}")).value
    sealed = await fork.seal()
    assert (folder(store, sealed) / BASE_PAGES).samefile(others[1] / BASE_PAGES)
    assert (await (await (await namespaces.materialise(sealed, spec)).python()).run(TELL)).value == expected


async def test_freed_and_grown_memory_is_kept_correctly(
    namespaces: NamespaceBackend, store: SnapshotStore, base: Snapshot, spec: WorldSpec
) -> None:
    """Pages that became zero, a heap that grew, holes of a gigabyte."""
    world = await namespaces.materialise(base, spec)
    repl = await world.python()
    await repl.run(
        "import mmap; own = mmap.mmap(-1, 8 << 20, mmap.MAP_PRIVATE); own.write(b'a' * (8 << 20))\n"
        "wide = mmap.mmap(-1, 1 << 30, mmap.MAP_PRIVATE); wide[3 << 28] = 9"
    )
    first = await world.seal()
    assert (folder(store, first) / PAGES).stat().st_size < 1 << 29
    await repl.run(
        "own.madvise(mmap.MADV_DONTNEED, 4 << 20, 1 << 19); own[5 << 20] = 7; wide[1 << 28] = 8\n"
        "grown = [str(n) for n in range(10_000)]"
    )
    sealed = await world.seal()
    assert (folder(store, sealed) / BASE_PAGES).exists()
    fork = await (await namespaces.materialise(sealed, spec)).python()
    asked = "own[4 << 20], own[5 << 20], own[(4 << 20) - 1], wide[3 << 28], wide[1 << 28], wide[7], grown[-1]"
    assert (await fork.run(asked)).value == (await repl.run(asked)).value == "(0, 7, 97, 9, 8, 0, '9999')"


async def test_a_session_that_changed_much_and_a_forked_session(
    namespaces: NamespaceBackend, store: SnapshotStore, base: Snapshot, spec: WorldSpec
) -> None:
    world = await namespaces.materialise(base, spec)
    repl = await world.python()
    await repl.run(FILL)
    first = folder(store, await world.seal())
    child = await repl.fork("child")
    await repl.run(f"data = bytearray(random.Random(8).randbytes({HELD}))")
    sealed = await world.seal()
    assert not (folder(store, sealed) / BASE_PAGES).exists()  # from now on it has its own ground
    assert (folder(store, sealed).parent / "child" / BASE_PAGES).samefile(first / PAGES)
    await repl.run(CHANGE)
    last = await world.seal()
    assert (folder(store, last) / BASE_PAGES).samefile(folder(store, sealed) / PAGES)
    fork = await namespaces.materialise(last, spec)
    for session in (repl, child):
        assert (await (await fork.python(session.name)).run(TELL)).value == (await session.run(TELL)).value


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A folder on another file system than the store."""
    place = Path("/dev/shm", f"ramify-{os.getpid()}")
    if not os.access(place.parent, os.W_OK) or place.parent.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second file system to write to")
    yield place
    place.rmdir()


async def test_across_file_systems_every_image_is_complete(
    elsewhere: Path, store: SnapshotStore, base: Snapshot, spec: WorldSpec
) -> None:
    async with NamespaceBackend(store, elsewhere) as namespaces:
        world = await namespaces.materialise(base, spec)
        repl = await world.python()
        await repl.run("n = 1")
        await world.seal()
        await repl.run("n = 2")
        sealed = await world.seal()
        assert not (folder(store, sealed) / BASE_PAGES).exists()
        assert (await (await (await namespaces.materialise(sealed, spec)).python()).run("n")).value == "2"


async def test_a_damaged_ground_is_found(
    namespaces: NamespaceBackend, store: SnapshotStore, base: Snapshot, spec: WorldSpec
) -> None:
    world = await namespaces.materialise(base, spec)
    repl = await world.python()
    await world.seal()
    await repl.run("n = 1")
    sealed = await world.seal()
    ground = folder(store, sealed) / BASE_PAGES
    times = ground.stat()
    with ground.open("r+b") as file:
        file.write(b"damaged")
    os.utime(ground, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert [LayerId(sealed.processes.image) in str(problem) for problem in store.fsck().problems].count(True) >= 1


async def test_arrays_of_a_library_are_kept(namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec) -> None:
    world = await namespaces.materialise(base, spec)
    repl = await world.python()
    begun = await repl.run("import os; os.environ['OPENBLAS_NUM_THREADS'] = '1'; import numpy")
    if "ModuleNotFoundError" in (begun.error or ""):
        pytest.skip("no numpy for the python3 of a world")
    assert begun.ok, begun.error
    await repl.run("a = numpy.arange(1_000_000, dtype='f8').reshape(1000, 1000)")
    await world.seal()
    await repl.run("a[3] *= 2")
    sealed = await world.seal()
    assert sealed.processes.dropped == 0, sealed.processes.reason
    fork = await (await namespaces.materialise(sealed, spec)).python()
    asked = "float((a @ a.T).trace()), float(numpy.linalg.norm(a[:50, :50])), numpy.concatenate([a, a]).shape"
    assert (await fork.run(asked)).value == (await repl.run(asked)).value
