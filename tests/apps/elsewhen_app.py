"""A workflow whose code has much of what Python's versions parse and print in ways of their own.

Usage: elsewhen_app.py HOME                 run it, and be killed half way
       elsewhen_app.py HOME resume RUN      go on with it
Prints one JSON object a line: {"run": id}, {"result": …} or {"error": …}; each step adds a line to HOME/log.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

from ramify import Runtime, Sandbox, fork, step, workflow
from ramify.runtime.events import Event, RunStarted

HOME = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
RATES: dict[str, float] = {"a": 0.1, "b": 1e-9}


class Colour(Enum):
    RED = "red"


class Kind(StrEnum):
    SMALL = "small"


class Point(NamedTuple):
    x: int
    y: float = 0.5


class Asked(TypedDict, total=False):
    text: str


@dataclass(frozen=True)
class Order:
    """What a step is given and gives."""

    name: str
    when: datetime
    parts: tuple[int, ...] = ()
    notes: dict[str, Any] = field(default_factory=dict)
    colour: Colour = Colour.RED
    kind: Kind = Kind.SMALL
    at: Point = field(default_factory=lambda: Point(1))


def log(what: str) -> None:
    with (HOME / "log").open("a") as file:
        file.write(what + "\n")


def rate(name: str, /, *more: float, scale: float = 1.0, **others: float) -> float:
    return sum([RATES.get(name, 0.0), *more, *others.values()]) * scale


@step
async def place(order: Order, *, how: Literal["fast", "slow"] = "fast") -> Order:
    log(f"place {order.name}")
    match order:
        case Order(name=str(name), parts=(first, *_)) if first > 0:
            label = f"{name!r:>8}|{first:03d}|{rate(name, 1.0, scale=2.0):.3f}|{how}"
        case Order(name="none" | "nil"):
            label = "nothing"
        case _:
            label = f"{order.name}{'!' * 2}"
    return Order(order.name, order.when + timedelta(hours=1), notes={"label": label, **order.notes})


@step(effect="irreversible", idempotent=True)
async def pay(name: str, cents: int = 100) -> str:
    log(f"pay {name} {cents}")
    return f"{name}:{cents}"


@step
async def write(sandbox: Sandbox, name: str) -> str:
    log(f"write {name}")
    return (await sandbox.run(f"echo {name} >> all; cat all", check=True)).stdout


@step
def counted(words: list[str]) -> dict[str, int]:
    log("counted")
    try:
        lengths = {word: len(word) for word in words if (size := len(word)) and size > 1}
    except* (TypeError, ValueError) as errors:
        raise RuntimeError(str(errors.exceptions)) from None
    return lengths | {"all": sum(lengths.values())}


@step
async def die_once() -> str:
    if not (HOME / "died").exists():
        (HOME / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "lived"


@workflow
async def elsewhen(names: list[str], begin: datetime) -> list[Any]:
    orders = [Order(name, begin, tuple(range(1, 1 + len(name)))) for name in names]
    placed = await asyncio.gather(*(place(order) for order in orders))
    said = [one.notes["label"] for one in placed]
    for number, name in enumerate(names, start=1):
        said.append(await pay(name, cents=number * 100) if number % 2 else await pay(name))
    async with fork(names) as branches:
        outcomes = await branches.map(write)
    said += sorted(outcome.value for outcome in outcomes)
    said.append(await write("root"))
    said.append(await die_once())
    lengths = await counted([*names, "x"])
    later = await place(Order(f"late-{lengths['all']}", placed[0].when), how="slow")
    said += [later.notes["label"], later.when.isoformat(), await write("end"), (lambda number: number**2)(3)]
    return said


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def hear(event: Event) -> None:
    if isinstance(event, RunStarted):
        say(run=event.run.id)


async def main(run: str | None) -> None:
    async with Runtime(home=HOME, sandbox="copy", observer=hear) as runtime:
        if run is None:
            begin = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
            say(result=await runtime.run(elsewhen, ["ann", "bo"], begin))
        else:
            say(result=await runtime.resume(run))


if __name__ == "__main__":
    HOME.mkdir(parents=True, exist_ok=True)
    try:
        asyncio.run(main(sys.argv[3] if len(sys.argv) > 3 else None))
    except Exception as error:
        say(error=f"{type(error).__name__}: {error}")
        raise
