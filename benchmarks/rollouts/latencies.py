"""Rows of single latencies: the first command of a fresh world, one `exec`, and forks of a world over an image.

The rounds are cut into blocks, and a figure is the lowest of the blocks' medians, for all backends: other work on the
machine only adds. The spread is that of all rounds.

Rows "a turn apart" wait for `TURN_S` between two rounds, as an agent waits for its model: what is prepared for the
next command or fork is prepared then. The rows "back to back" beside them do not wait.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

from benchmarks.forks.live_forks import TURN_S
from benchmarks.rollouts.backends import Docker, docker, isolation
from benchmarks.rollouts.bed import Bed
from benchmarks.rollouts.scripted_agent import before
from benchmarks.rows import Row, row
from ramify.worlds.blocking import SyncWorld
from ramify.worlds.blocking_home import shared_home

_TRUE = ("/bin/true",)
_BLOCKS = 4


def _ms(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return (time.perf_counter() - begun) * 1000


def _spawn(words: Sequence[str]) -> None:
    subprocess.run(words, check=True, capture_output=True)


def _in_turn(rounds: int, *works: Callable[[], float]) -> list[list[float]]:
    """Results of each work, `rounds` of each, in turns, after one unmeasured turn."""
    for work in works:
        work()
    taken: list[list[float]] = [[] for _ in works]
    for _ in range(rounds):
        for values, work in zip(taken, works, strict=True):
            values.append(work())
    return taken


def lowest(values: Sequence[float]) -> float:
    """The lowest median of the blocks of rounds."""
    size = max(1, len(values) // _BLOCKS)
    return min(median(values[at : at + size]) for at in range(0, size * _BLOCKS, size) if values[at:])


def _row(name: str, values: Sequence[float], **more: Any) -> Row:
    return row(name, lowest(values), "ms", **{"spread": (min(values), max(values)), **more})


def start_rows(bed: Bed) -> list[Row]:
    image = bed.images[0]
    with shared_home(bed.home) as home:

        def ours() -> float:
            begun = time.perf_counter()
            with SyncWorld.create(image=bed.ids[image.name], home=home) as world:
                world.exec(_TRUE, check=True)
                return (time.perf_counter() - begun) * 1000

        words = ["docker", "run", "--rm", "--network", "none", "--label", Docker.label, image.name, *_TRUE]
        works: list[Callable[[], float]] = [ours]
        works += [] if bed.missing["Docker"] else [lambda: _ms(lambda: _spawn(words))]
        works += [] if bed.missing["bubblewrap"] else [
            lambda: _ms(lambda: _spawn(["bwrap", *isolation(image.root), *_TRUE]))
        ]  # fmt: skip
        mine, *peers = _in_turn(bed.rounds(40, 8), *works)
    name = "first command in a fresh world over an image that is here"
    rest = iter(peers)
    runs = None if bed.missing["Docker"] else next(rest)
    wraps = None if bed.missing["bubblewrap"] else next(rest)
    said = bed.peer_or_reason("bubblewrap", "bwrap, whose files are read-only")
    rows = [_row(name, mine, target=30, peer=said, peer_value=lowest(wraps) if wraps else None)]
    if runs is None:
        return [*rows, row(f"{name}: `docker run` over it", None, "x", target=10, peer=bed.missing["Docker"])]
    times = lowest(runs) / lowest(mine)
    note = f"docker run {min(runs):.0f} to {max(runs):.0f} ms"
    more = {"peer": "docker run, ms", "peer_value": round(lowest(runs), 1)}
    return [
        *rows,
        {**row(f"{name}: `docker run` over it", round(times, 2), "x", target=10, at_least=True, note=note), **more},
    ]


def exec_rows(bed: Bed) -> list[Row]:
    """What each backend adds to fork and exec of the same program on the host."""
    image = bed.images[0]
    rounds = bed.rounds(200, 40)
    with shared_home(bed.home) as home, SyncWorld.create(image=bed.ids[image.name], home=home) as world:
        works = [lambda: _ms(lambda: _spawn(_TRUE)), lambda: _ms(lambda: world.exec(_TRUE, check=True))]
        alone, ours = _in_turn(rounds, *works)

        async def directly(count: int, apart_s: float) -> list[float]:
            taken = []
            for _ in range(count):
                await asyncio.sleep(apart_s)
                begun = time.perf_counter()
                await world.world.exec(_TRUE, check=True)
                taken.append((time.perf_counter() - begun) * 1000)
            return taken

        apart = world.call(lambda: directly(bed.rounds(40, 8), TURN_S))
        within = world.call(lambda: directly(rounds, 0.0))
        alone_apart = []
        for _ in range(bed.rounds(40, 8)):
            time.sleep(TURN_S)
            alone_apart.append(_ms(lambda: _spawn(_TRUE)))
    name, base = "one `exec` over fork and exec", lowest(alone)
    floor = f"fork and exec alone {base:.2f} ms"

    def added(kind: str, values: Sequence[float], over: float, **more: Any) -> Row:
        return _row(f"{name}, {kind}", [value - over for value in values], **more)

    floor_apart = lowest(alone_apart)
    rows = [
        added("a turn apart", apart, floor_apart, target=1, note=f"fork and exec alone, too, {floor_apart:.2f} ms"),
        added("back to back", within, base, note=floor),
        added("back to back, `SyncWorld`", ours, base, note=floor),
    ]
    missing = bed.missing_environments
    for peer in (one for one in bed.peers if not missing[one.name]):
        with peer.opened(image) as environment:
            container = getattr(environment, "container_id", "")
            words = ["docker", "exec", container] if container else ["bwrap", *isolation(image.root)]
            (taken,) = _in_turn(bed.rounds(30, 5), partial(_ms, partial(_spawn, [*words, *_TRUE])))
        peer.settled()
        for at in rows:
            at["note"] += f"; {' '.join(words[:2]) if container else words[0]} {lowest(taken) - base:.1f} ms"
    for at in rows:
        at["note"] += "".join(f"; {name} not measured: {why}" for name, why in missing.items() if why)
    return rows


def fork_rows(bed: Bed) -> list[Row]:
    """A child of a world over an image, without a shell, to the result of its first command. Each round changes a
    file first, so that the fork includes a snapshot."""
    image = bed.images[0]
    with shared_home(bed.home) as home, SyncWorld.create(image=bed.ids[image.name], home=home) as world:

        def ours(apart_s: float) -> float:
            world.exec(("/bin/sh", "-c", "date +%N > changed"), check=True)
            time.sleep(apart_s)
            begun = time.perf_counter()
            (child,) = world.fork()
            child.exec(_TRUE, check=True)
            taken = (time.perf_counter() - begun) * 1000
            child.close()
            return taken

        (apart,) = _in_turn(bed.rounds(30, 6), partial(ours, TURN_S))
        (mine,) = _in_turn(bed.rounds(30, 6), partial(ours, 0.0))
    name = "fork of a world over an image, to the child's first command"
    return [_row(f"{name}, a turn apart", apart, target=15), _row(f"{name}, back to back", mine)]


def branch_rows(bed: Bed) -> list[Row]:
    """A child of a world with a live shell, 20 turns old, to the result of the child's first command in that shell.
    Each round changes a file first. Docker keeps files only: `docker commit`, then `docker run` of a like command."""
    image = bed.images[0]
    turns = before(image.task)
    expected = "kept 20\n/testbed/.turns\n"
    ask = 'echo "$WORD $(wc -l < turns)"; pwd'
    rounds = bed.rounds(30, 6)
    with shared_home(bed.home) as home, SyncWorld.create(image=bed.ids[image.name], home=home) as world:
        world.run("mkdir .turns; WORD=kept")
        for turn in turns:
            world.run(turn)
            world.run("echo >> .turns/turns")
        world.run("cd .turns")

        def ours(apart_s: float) -> float:
            world.run("date +%N > changed")
            time.sleep(apart_s)
            begun = time.perf_counter()
            (child,) = world.fork()
            said = child.run(ask)
            taken = (time.perf_counter() - begun) * 1000
            child.close()
            if said.stdout != expected:
                raise AssertionError(f"the child said {said.stdout!r}, not {expected!r}")
            return taken

        (apart,) = _in_turn(rounds, partial(ours, TURN_S))
        (mine,) = _in_turn(rounds, partial(ours, 0.0))
    name = "branch at turn 20, to the child's first command, shell alive"
    back = _row(f"{name}, back to back", mine)
    if why := bed.missing_environments["Docker"]:
        return [_row(f"{name}, a turn apart", apart, target=20, peer=f"not measured: {why}"), back]
    backend, peers = Docker(), []
    with backend.opened(image) as environment:
        for turn in turns:
            environment.execute({"command": turn})
        for number in range(bed.rounds(10, 2)):
            environment.execute({"command": f"echo {number} > changed"})
            peers.append(_ms(lambda: _committed(environment.container_id)))
        docker("rmi", "-f", _COMMITTED)
    backend.settled()
    note = f"Docker {min(peers):.0f} to {max(peers):.0f} ms"
    peer = {"peer": "docker commit and run, files only", "peer_value": lowest(peers)}
    return [_row(f"{name}, a turn apart", apart, target=20, note=note, **peer), back]


_COMMITTED = f"ramify-bench/committed:{os.getpid()}"


def _committed(container: str) -> None:
    docker("commit", container, _COMMITTED)
    docker("run", "--rm", "--network", "none", _COMMITTED, "bash", "-c", "cat changed; pwd")
