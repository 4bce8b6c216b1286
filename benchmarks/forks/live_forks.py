"""Rows for benchmarks/fork.py: forks of worlds with shells, processes and Python sessions.

A fork ends when its tree is mounted and its processes are restored. A fork of a shell starts with its first command
and ends with that command's answer; one with a Python session ends with the session's answer. Medians of 20 or more,
with `--quick` of 5 where one round takes a second. Peers run in the same run.

Rows "a turn apart" wait for `TURN_S` between two rounds, as an agent waits for its model: what is prepared for the
next fork or rollback is prepared then. The rows "back to back" beside them do not wait.
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks.forks import lower_bounds as floors
from benchmarks.forks.checkpoint_turns import turn_rows
from benchmarks.forks.rounds import QUICK_BUDGET_S, Pace, Row, in_budget, missing, no_docker, row
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import ProcessTier, Snapshot
from ramify.sandboxes.backends.namespaces.backend import NamespaceBackend
from ramify.sandboxes.contract import World, WorldSpec
from ramify.sandboxes.host import criu

ROUNDS, QUICK_SLOW = 20, 5
TURN_S = 0.3
FORESEEN_S = 0.04  # before a fork, for each branch: 0.8 s for 20

Peer = tuple[str, list[float] | None]  # what it is, or why it cannot be measured; its times

PROGRAM = """
import os, time
held = os.urandom(50 << 20)
open("ready", "w").close()
while True: time.sleep(0.05)
"""
PRIVATE_MB = "cat /proc/[0-9]*/smaps_rollup 2>/dev/null | awk '/^Private/ { n += $2 } END { print n / 1024 }'"
DATA = "data = {n: bytes([n % 256]) * 1024 for n in range(200_000)}"  # 200 MB in 200,000 objects
PICKLE = "import pickle; open('data.pickle', 'wb').write(pickle.dumps(data, 5)); None"
RELOAD = "import pickle; data = pickle.load(open('data.pickle', 'rb')); None"


def rows(quick: bool, scratch: Path | None = None) -> list[Row]:
    """`quick`: 1,000 files instead of 10,000, 20 forks instead of a hundred, ten rounds of Docker's peers."""
    return asyncio.run(_rows(quick, scratch))


async def _rows(quick: bool, scratch: Path | None) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="ramify-live-", dir=scratch, ignore_cleanup_errors=True) as folder:
        root = Path(folder)
        workspace = root / "workspace"
        for number in range(1_000 if quick else 10_000):
            place = workspace / f"d{number // 100}" / f"f{number % 100}"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(os.urandom(1024 if quick else 100_000))
        store = SnapshotStore(root / "ramify" / "store")
        base = store.import_tree(workspace).snapshot
        spec = WorldSpec(mount_at=workspace, env={"PATH": os.environ["PATH"]})
        async with NamespaceBackend(store, root / "ramify" / "worlds") as backend:
            docker = _docker_peers(Pace(10, QUICK_BUDGET_S) if quick else Pace(ROUNDS))
            bench = Bench(backend, store, base, spec, docker, root)
            floor = _floor()
            made = [
                *await bench.commands(),
                *await bench.checkpoints(),
                *await bench.shells(20 if quick else 100, QUICK_SLOW if quick else ROUNDS),
                *await bench.sessions(QUICK_SLOW if quick else ROUNDS),
                *await bench.live(20 if quick else 100, QUICK_SLOW if quick else ROUNDS),
            ]
            return [{**row, "floor": floor} if "first command" in str(row["name"]) else row for row in made]


class Bench:
    def __init__(
        self,
        backend: NamespaceBackend,
        store: SnapshotStore,
        base: Snapshot,
        spec: WorldSpec,
        docker: dict[str, Peer],
        scratch: Path,
    ) -> None:
        self._backend, self._store, self._base, self._spec = backend, store, base, spec
        self._docker = docker
        self._lower, self._scratch = (
            store.lower_dirs(base)[0],
            scratch,
        )  # the base's layer, and a folder for measurements without Ramify

    async def commands(self) -> list[Row]:
        world = await self._backend.materialise(self._base, self._spec)
        await world.run("true")
        builtin = await _times(lambda: world.run(":"), 200)
        program = await _times(lambda: world.run("/bin/true"), 200)
        plain = [_spawn("/bin/true") for _ in range(200)]
        alone = statistics.median(plain)
        over = [took - alone for took in program]
        await world.close()
        one = row("one command in a live shell, over fork and exec", over, 1, "fork and exec alone", plain)
        return [
            {**one, "floor": floors.command(alone)},
            row("a builtin in a live shell", builtin, None, *self._docker["exec"]),
        ]

    async def checkpoints(self) -> list[Row]:
        world = await self._backend.materialise(self._base, self._spec)
        await world.run("kept=1; f() { :; }")
        sealed: list[float] = []
        for turn in range(20):
            await world.run(f"for n in {{0..99}}; do echo {turn} > d$((n % 10))/f$n; done")
            sealed += await _times(lambda: world.seal(flush=False), 1)
        clean = await _times(world.seal, 50)
        base = world.snapshot
        first = await _times(lambda: self._rolled_back(world, base), 20)
        apart = await _times(lambda: self._rolled_back(world, base), 20, apart_s=TURN_S)
        await world.close()
        name = "checkpoint after 100 changed files, shell kept, not yet flushed"
        return [
            {
                **row(name, sealed, 15, "docker commit: benchmarks/forks/store_operations.py"),
                "floor": floors.checkpoint(self._lower, self._scratch),
            },
            row("checkpoint where nothing changed", clean, 0.5),
            row(
                "rollback of a world with a shell, files only, to its first command, a turn apart",
                apart,
                5,
                *self._docker["restart"],
            ),
            row("rollback of a world with a shell, files only, to its first command, back to back", first, None),
        ]

    async def _rolled_back(self, world: World, to: Snapshot) -> None:
        await world.rollback(to)
        await world.run(":")

    async def shells(self, n: int, rounds: int) -> list[Row]:
        """Time forks of a world whose shell has a state, each until its first command ends."""
        world = await self._backend.materialise(self._base, self._spec)
        await world.run("kept=1; f() { echo $kept; }; cd d1")
        snapshot = await world.seal()

        async def fork() -> None:
            forks = await self._backend.fork(snapshot, self._spec, n)
            told = await asyncio.gather(*(child.run("f") for child in forks))
            assert {result.stdout for result in told} == {"1\n"}
            closing.extend(forks)

        took: list[float] = []
        foreseen: list[float] = []
        for number in range(2 * rounds):
            closing: list[World] = []
            if number % 2:  # as a run does whose plan makes the fork after a model call
                self._backend.foresee(snapshot, self._spec, n)
                await asyncio.sleep(n * FORESEEN_S)
            (foreseen if number % 2 else took).extend(await _times(fork, 1))
            await asyncio.gather(*(child.close() for child in closing))
        await world.close()
        name = f"{n} live forks of a shell, all to their first command"
        return [row(name, took, 300 * n / 100), row(f"{name}, foreseen by a plan", foreseen, 300 * n / 100)]

    async def sessions(self, slow: int) -> list[Row]:
        """`slow`: rounds of measurements that take a second each."""
        world = await self._backend.materialise(self._base, self._spec)
        repl = await world.python()
        assert (await repl.run(DATA)).ok
        names = iter(f"child{number}" for number in range(1000))
        forked: list[float] = []
        for _ in range(20):
            began = time.perf_counter()
            child = await repl.fork(next(names))
            forked.append((time.perf_counter() - began) * 1000)
            assert (await child.run("len(data)")).value == "200000"
            await child.close()
        other = await world.python("other")

        async def reload() -> None:
            assert (await repl.run(PICKLE)).ok
            assert (await other.run(RELOAD)).ok

        reloaded = await _times(reload, slow)
        await other.close()
        sealed = await _times(world.seal, slow)
        mounted, carried = await self._carried(await world.seal(), rounds=20)
        await world.close()
        peer = ("pickle and reload", reloaded)
        floor = {"floor": floors.session(self._lower, self._scratch, DATA)}
        name = "fork of a world with a Python session of 200 MB, to its first answer"
        return [
            {**row("fork of a Python session of 200 MB, in its world", forked, 20, *peer), **floor},
            {**row(name, carried, 20, *peer), **floor},
            row("the same, to its mounted tree", mounted, None),
            row("checkpoint of the same: its pages written, hashed and flushed", sealed, None, *peer),
        ]

    async def _carried(self, snapshot: Snapshot, rounds: int) -> tuple[list[float], list[float]]:
        """Time a fork until its tree is mounted, and until its restored session answers."""
        assert snapshot.tier is ProcessTier.REPL, snapshot.processes.reason
        mounted, answered = [], []
        for _ in range(rounds):
            began = time.perf_counter()
            child = await self._backend.materialise(snapshot, self._spec)
            mounted.append((time.perf_counter() - began) * 1000)
            repl = await child.python()
            assert (await repl.run("len(data)")).value == "200000"
            answered.append((time.perf_counter() - began) * 1000)
            await child.close()
        return mounted, answered

    async def live(self, n: int, rounds: int) -> list[Row]:
        """A world with bash, a Python program of 50 MB and a job; `n` children at once. `rounds`: turns measured."""
        spec = replace(self._spec, dumpable=True)
        names = ("live fork", "rollback of a live world", "time that a checkpoint of a live world adds to a turn")
        if why := criu.why_not(spec):
            return [missing(name, why) for name in names]
        world = await self._backend.materialise(self._base, spec)
        (world.path / "program.py").write_text(PROGRAM)
        await world.run("sleep 1000 & python3 program.py & until [ -e ready ]; do sleep 0.02; done; rm ready")
        dumped = await _times(world.seal, 20)
        snapshot = await world.seal()
        if not snapshot.tier.whole:
            return [missing(name, snapshot.processes.reason) for name in names]
        turns = await turn_rows(world, self._store, TURN_S, rounds)
        forked = {apart_s: await self._live_forks(snapshot, spec, apart_s) for apart_s in (0.0, TURN_S)}
        packed = await _times(lambda: self._rolled_back(world, snapshot), 20)
        rolled = await _times(lambda: self._rolled_back(world, snapshot), 20, apart_s=TURN_S)
        children: list[World] = []

        async def fork() -> None:
            children.extend(await self._backend.fork(snapshot, spec, n))

        together = await _times(fork, 1)
        private = [float((await child.run(PRIVATE_MB)).stdout) for child in children]
        await asyncio.gather(*(child.close() for child in children))
        foreseen: list[float] = []
        for _ in range(3):
            children.clear()
            self._backend.foresee(snapshot, spec, n)
            await asyncio.sleep(n * FORESEEN_S * 2)
            foreseen += await _times(fork, 1)
            assert all([(await child.run("[ $(jobs | wc -l) = 2 ]")).ok for child in children])
            await asyncio.gather(*(child.close() for child in children))
        await world.close()
        peer, restart = self._docker["checkpoint"], self._docker["restart"]
        mounted, answered = forked[TURN_S]
        live = row(
            "live fork (bash, 50 MB Python, a job), a child of a warm snapshot, a turn apart", mounted, 10, *peer
        )
        after = statistics.median(all_ - tree for all_, tree in zip(answered, mounted, strict=True))
        floor = {"floor": floors.restore(PROGRAM, self._scratch)}
        name = f"rollback of a live world (the same, tier {snapshot.tier.value}), to its first command"
        return [
            {**live, "first_run": round(after, 3), **floor},
            {**row("the same, back to back", forked[0.0][0], None, *peer), **floor},
            row(f"{n} live forks of the same at once", together, 300 * n / 100),
            row(f"{n} live forks of the same at once, foreseen by a plan", foreseen, 300 * n / 100),
            row("memory of such a child: its private pages", private, None, unit="MB"),
            row("checkpoint of the same: the one dump, hashed and flushed", dumped, None, *peer),
            *turns,
            row(f"{name}, a turn apart", rolled, 8, *restart),
            row(f"{name}, back to back", packed, None, *restart),
        ]

    async def _live_forks(
        self, snapshot: Snapshot, spec: WorldSpec, apart_s: float
    ) -> tuple[list[float], list[float]]:
        """Time forks until their processes run, and until the shell answers."""
        mounted, answered = [], []
        for _ in range(20):
            await asyncio.sleep(apart_s)
            began = time.perf_counter()
            child = await self._backend.materialise(snapshot, spec)
            mounted.append((time.perf_counter() - began) * 1000)
            assert (await child.run("[ $(jobs | wc -l) = 2 ]")).ok
            answered.append((time.perf_counter() - began) * 1000)
            await child.close()
        return mounted, answered


async def _times(work: Callable[[], Awaitable[object]], rounds: int, apart_s: float = 0.0) -> list[float]:
    took = []
    for _ in range(rounds):
        await asyncio.sleep(apart_s)
        began = time.perf_counter()
        await work()
        took.append((time.perf_counter() - began) * 1000)
    return took


def _spawn(*words: str) -> float:
    began = time.perf_counter()
    os.waitpid(os.posix_spawn(words[0], words, {}), 0)
    return (time.perf_counter() - began) * 1000


def _floor() -> str:
    """Time what always starts anew: a shell, and a shell in new namespaces."""
    bash = ["/bin/bash", "--norc", "--noprofile", "-c", ":"]
    apart = [
        "/usr/bin/unshare",
        "--user",
        "--map-root-user",
        *("--mount", "--pid", "--net", "--ipc", "--uts", "--fork"),
        *bash,
    ]
    alone, isolated = (statistics.median(_spawn(*words) for _ in range(20)) for words in (bash, apart))
    return f"{alone:.1f} ms: bash started and ended; {isolated:.1f} ms: in new namespaces"


def _docker_peers(pace: Pace) -> dict[str, Peer]:
    """Time `docker exec`, `restart` and `checkpoint` of a container with this machine's bash and core utilities."""
    names = ("exec", "restart", "checkpoint")
    why = no_docker()
    if why:
        return {name: (f"docker {name}: {why}", None) for name in names}
    with _container() as container:
        peers: dict[str, Peer] = {}
        for name, arguments in (("exec", (container, "/bin/true")), ("restart", ("--time", "0", container))):
            words = ("docker", name, *arguments)
            peers[name] = (f"docker {name}", in_budget(lambda _, words=words: _spent(*words)[0], *pace))
        words = ("docker", "checkpoint", "create", "--leave-running", container)
        _, refused = _spent(*words, "first")
        peers["checkpoint"] = (f"docker checkpoint: {refused}", None)
        if not refused:
            took = in_budget(lambda number: _spent(*words, f"next{number}")[0], *pace)
            peers["checkpoint"] = ("docker checkpoint", took)
        return peers


@contextmanager
def _container() -> Iterator[str]:
    """Start a container over an image imported from this machine, since there may be no registry."""
    image = "ramify-bench-live"
    programs = ["/bin/bash", "/bin/true", "/bin/sleep"]
    linked = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=True).stdout
    libraries = sorted(set(re.findall(r"(/\S+\.so\S*)", linked)))
    packing = ["tar", "--dereference", "-c", *programs, *libraries]
    with subprocess.Popen(packing, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/") as packed:
        subprocess.run(["docker", "import", "-", image], stdin=packed.stdout, capture_output=True, check=True)
    started = subprocess.run(
        ["docker", "run", "--detach", "--network", "none", image, "/bin/sleep", "100000"],
        capture_output=True,
        text=True,
        check=True,
    )
    container = started.stdout.strip()
    try:
        yield container
    finally:
        subprocess.run(["docker", "rm", "--force", container], capture_output=True, check=True)
        subprocess.run(["docker", "rmi", image], capture_output=True, check=True)


def _spent(*words: str) -> tuple[float, str]:
    """Time a program. If it fails, show its output."""
    began = time.perf_counter()
    done = subprocess.run(words, capture_output=True, text=True)
    took = (time.perf_counter() - began) * 1000
    return took, "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["it failed"])[-1]
