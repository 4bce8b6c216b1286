"""Rows of whole rollouts: how many an hour and core, and best of 8 by forks against eight whole ones."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

from benchmarks.rollouts.backends import Backend
from benchmarks.rollouts.bed import Bed
from benchmarks.rollouts.scripted_agent import DECISIVE, forked_attempts, rollout, whole_attempts
from benchmarks.rollouts.task_images import TaskImage
from benchmarks.rows import Row, not_measured, row

TASKS = 4


def rollout_rows(bed: Bed) -> list[Row]:
    """Rollouts of 4 tasks, in blocks of 16, which the backends take in turns; one worker a core."""
    if bed.no_agent:
        return [not_measured("rollouts an hour and core", "an hour", bed.no_agent, target="2 x Docker")]
    images = bed.images[:TASKS]
    blocks, size = max(1, bed.rollouts // 16), min(16, bed.rollouts)
    every: list[Backend] = [bed.ours, *bed.peers]
    rates: dict[str, list[float]] = {backend.name: [] for backend in every}
    for number in range(blocks):
        for backend in every if number % 2 == 0 else reversed(every):
            if number == 0 or backend.name in (bed.ours.name, "Docker"):  # of others, one block
                rates[backend.name].append(_rate(backend, images, size))
    mine, peer = rates.pop(bed.ours.name), rates.get("Docker")
    ratio = round(median(mine) / median(peer), 2) if peer else None
    name = f"rollouts an hour and core, {blocks * size} of {len(images)} tasks"
    others = [f"{name} {min(values):.0f} to {max(values):.0f}" for name, values in rates.items()]
    others += [f"{name} not measured: {why}" for name, why in bed.missing.items() if why]
    return [
        row(name, round(median(mine)), "an hour", spread=(round(min(mine)), round(max(mine))),
            target="2 x Docker", met=None if ratio is None else ratio >= 2,
            peer=bed.peer_or_reason("Docker", "Docker"),
            peer_value=round(median(peer)) if peer else None, note="; ".join(others))
    ]  # fmt: skip


def _rate(backend: Backend, images: list[TaskImage], count: int) -> float:
    """Rollouts an hour and core. Checks that each found the mended line and passed the tests."""

    def one(number: int) -> str:
        image = images[number % len(images)]
        with backend.opened(image) as environment:
            return rollout(environment, image.task, image.task.project.attempts[-1])

    cores = os.cpu_count() or 1
    begun = time.perf_counter()
    with ThreadPoolExecutor(cores) as pool:
        submissions = list(pool.map(one, range(count)))
    seconds = time.perf_counter() - begun
    backend.settled()
    for number, submission in enumerate(submissions):
        expected = f"0\n{images[number % len(images)].task.project.attempts[-1]}\n"
        if submission != expected:
            raise AssertionError(f"{backend.name}: submitted {submission!r}, not {expected!r}")
    return count / seconds * 3600 / cores


def best_of_rows(bed: Bed) -> list[Row]:
    """The tool seconds of both ways in turns, one pair a task."""
    if bed.no_agent:
        name = f"best of 8 by forks at turn {DECISIVE} of {DECISIVE + 3}: tool seconds over whole rollouts"
        return [not_measured(name, "x", bed.no_agent, target="0.4")]
    shares, forked, whole = [], 0.0, 0.0
    images = bed.images[:1] if bed.quick else bed.images
    count = bed.rounds(8, 3)
    for image in images:

        def opened(image: TaskImage = image) -> object:
            return bed.ours.opened(image)

        by_forks = forked_attempts(opened, image.task, count)
        by_whole = whole_attempts(opened, image.task, count)
        if by_forks.submissions != by_whole.submissions or not by_whole.best:
            raise AssertionError(f"{image.name}: forks gave {by_forks.submissions}, not {by_whole.submissions}")
        shares.append(by_forks.tool_s / by_whole.tool_s)
        forked += by_forks.tool_s
        whole += by_whole.tool_s
    return [
        row(f"best of {count} by forks at turn {DECISIVE} of {DECISIVE + 3}: tool seconds over whole rollouts",
            round(median(shares), 3), "x", spread=(round(min(shares), 3), round(max(shares), 3)),
            target=0.4 if count == 8 else None,
            note=f"{forked:.1f} of {whole:.1f} s, forks included; {len(images)} tasks, the same submissions")
    ]  # fmt: skip
