"""`patched` in a workflow that is not async, and in a step, where it is refused."""

from __future__ import annotations

import ramify
from ramify import step, workflow


@step
def shown(text: str) -> str:
    return text


@step
def asks() -> bool:
    return ramify.patched("p")


@workflow
def flow() -> list[object]:
    new = ramify.patched("p")
    return [new, shown("x")]


@workflow
def wrong() -> object:
    return asks()
