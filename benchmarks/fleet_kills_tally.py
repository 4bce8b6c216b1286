"""What chunks of kills found, added up in a file: one JSON object a line. A chunk whose process did not live to its
end is counted as such."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.rows import Row, row

RUNS = "kills at random moments, in runs: runs lost, or effects done twice"
SEARCHES = "the same kills, in searches: branches lost, or actions that count twice"
NAMES = (RUNS, SEARCHES)


@dataclass
class Chunk:
    """killed, interrupted: by kind. told: the first message of each kind of interruption. moved, moved_worlds: runs
    and worlds that went on on another node. went_on: states of ended searches that were whole on the next cluster.
    heads: seconds from the kill of a head to the fleet's error. wrong_runs, wrong_searches: what was lost, or is
    there twice. unfinished: chunks without a result."""

    killed: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    effects: int = 0
    moved: int = 0
    interrupted: Counter[str] = field(default_factory=Counter)
    told: dict[str, str] = field(default_factory=dict)
    searches: int = 0
    states: int = 0
    moved_worlds: int = 0
    went_on: int = 0
    heads: list[float] = field(default_factory=list)
    wrong_runs: list[str] = field(default_factory=list)
    wrong_searches: list[str] = field(default_factory=list)
    chunks: int = 1
    unfinished: int = 0


def begin(tally: Path | None, seed: int, kills: int) -> None:
    _append(tally, {"begun": seed, "kills": kills})


def end(tally: Path | None, seed: int, chunk: Chunk) -> None:
    _append(tally, {"ended": seed, "chunk": vars(chunk)})


def _append(tally: Path | None, line: dict[str, Any]) -> None:
    if tally is not None:
        with tally.open("a") as file:
            file.write(json.dumps(line) + "\n")


def total(tally: Path) -> Chunk:
    lines = [json.loads(line) for line in tally.read_text().splitlines()]
    found = Chunk(chunks=0, unfinished=sum("begun" in line for line in lines))
    for one in (line["chunk"] for line in lines if "ended" in line):
        found.unfinished -= 1
        for name, value in one.items():
            mine = getattr(found, name)
            if name == "told":
                found.told = {**value, **mine}
            elif isinstance(mine, Counter):
                mine.update(value)
            elif name != "unfinished":
                setattr(found, name, mine + value)
    return found


def rows_of(chunk: Chunk) -> list[Row]:
    kills = ", ".join(f"{count} x {name}" for name, count in chunk.killed.items()) or "no kills"
    ends = ", ".join(f"{count} x {name}" for name, count in chunk.interrupted.items()) or "none"
    runs = (
        f"{kills}; {chunk.runs} runs with {chunk.effects} effects, of which {chunk.moved} went on on another node; "
        f"ended with an error and were resumed: {ends}"
    )
    if chunk.heads:
        runs += f"; the fleet noticed a killed head after {min(chunk.heads)} to {max(chunk.heads)} s"
    if chunk.chunks > 1 or chunk.unfinished:
        runs += f"; {chunk.chunks} chunks, and {chunk.unfinished} that did not end"
    states = (
        f"{chunk.searches} searches with {chunk.states} states, of which {chunk.moved_worlds} went on on another "
        f"node and {chunk.went_on} on another cluster"
    )
    wrong = chunk.wrong_runs + chunk.wrong_searches
    shown: dict[str, Any] = {"errors": chunk.told} if chunk.told else {}
    shown |= {"wrong": wrong[:5]} if wrong else {}
    return [
        row(RUNS, len(chunk.wrong_runs), "runs or effects", target=0, note=runs, **shown),
        row(SEARCHES, len(chunk.wrong_searches), "branches or actions", target=0, note=states),
    ]
