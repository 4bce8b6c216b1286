"""Rows of disk space: a rollout whose end is kept, and a task's image over a base that is here."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.rollouts.backends import Docker, docker
from benchmarks.rollouts.bed import Bed
from benchmarks.rollouts.scripted_agent import after, agent
from benchmarks.rollouts.task_images import TaskImage
from benchmarks.rollouts.throughput import TASKS
from benchmarks.rows import Row, not_measured, row
from ramify.worlds.blocking_home import SyncWorldHome, shared_home


def rows(bed: Bed) -> list[Row]:
    return [kept_rollouts(bed), _images(bed)]


def used_bytes(folder: Path) -> int:
    """Bytes of blocks, hard links counted once."""
    seen = {(status.st_dev, status.st_ino): status.st_blocks * 512 for status in map(Path.lstat, folder.rglob("*"))}
    return sum(seen.values())


def _end(environment: object, image: TaskImage, attempt: str) -> None:
    """The part of a rollout that writes: the earlier turns read, and run the same tests."""
    agent(environment, after(image.task, attempt)).run(image.task.project.name)


def kept_rollouts(bed: Bed) -> Row:
    """Rollouts of 4 tasks, with the eight attempts in turn, each kept: by a snapshot, or by `docker commit`."""
    if bed.no_agent:
        return not_measured("disk of a rollout that is kept", "kB", bed.no_agent, target="0.1 of Docker")
    images = bed.images[:TASKS]
    count = bed.rounds(64, 4)
    work = [(images[n % len(images)], n // len(images)) for n in range(count)]
    with shared_home(bed.home) as home:
        before = _store_bytes(home, bed)
        for image, number in work:
            with bed.ours.opened(image) as environment:
                _end(environment, image, image.task.project.attempts[number % 8])
                environment.snapshot(f"{image.task.project.name}-{number}")
        mine = (_store_bytes(home, bed) - before) / count
    whole = round(sum(image.layer_bytes[-1] for image in images) / len(images) / 1000)
    copied = [] if bed.missing["Docker"] else [_committed_bytes(image, number) for image, number in work]
    peer = sum(copied) / count / 1000 if copied else None
    ours = mine / 1000
    ratio = None if peer is None else round(ours / peer, 3)
    return row(
        f"disk of a rollout that is kept, {count} of {len(images)} tasks",
        round(ours, 1),
        "kB",
        target="0.1 of Docker",
        met=None if ratio is None else ratio <= 0.1,
        peer=bed.peer_or_reason("Docker", "docker commit, kB"),
        peer_value=None if peer is None else round(peer, 1),
        note=f"a copy of the project: {whole} kB",
    )


def _store_bytes(home: SyncWorldHome, bed: Bed) -> int:
    home.home.store.flush()
    return used_bytes(bed.home)


def _committed_bytes(image: TaskImage, number: int) -> int:
    """The blocks of what the rollout changed, which `docker commit` copies into a layer. The layers themselves lie
    where only root may look."""
    backend = Docker()
    with backend.opened(image) as environment:
        container = environment.container_id
        _end(environment, image, image.task.project.attempts[number % 8])
        changed = [line[2:] for line in docker("diff", container).splitlines() if not line.startswith("D")]
        blocks = docker("exec", container, "stat", "-c", "%b", *changed)
    backend.settled()
    return 512 * sum(map(int, blocks.split()))


def _images(bed: Bed) -> Row:
    """A further task image: only its own layer is new. The peer is the size that Docker shows for it, which is what a
    copy takes; Docker stores the layer once, too."""
    image = bed.images[-1]
    fresh = bed.folder / "fresh-home"
    with SyncWorldHome(fresh) as home:
        for one in bed.images[:-1]:
            home.portal.call(home.home.images.pull, str(one.archive))
        before = used_bytes(fresh)
        home.portal.call(home.home.images.pull, str(image.archive))
        mine = used_bytes(fresh) - before
    if bed.missing["Docker"]:
        peer, note = None, None
    else:
        peer = json.loads(docker("image", "inspect", image.name))[0]["Size"]
        note = f"its own layer is a tar of {image.layer_bytes[-1] / 1e6:.2f} MB, which Docker shares as well"
    return row(
        "disk of a further task image over a base that is here",
        round(mine / 1e6, 2),
        "MB",
        target="0.1 of Docker's copy",
        met=None if peer is None else mine <= 0.1 * peer,
        peer=bed.peer_or_reason("Docker", "the image as Docker counts it, MB"),
        peer_value=None if peer is None else round(peer / 1e6, 2),
        note=note,
    )
