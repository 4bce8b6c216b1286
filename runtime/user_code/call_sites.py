"""Call sites: the position of a call in the user's code, and the operation of the plan at that position.

The plan contains the source ranges of calls; a running frame tells the position of its current instruction. This
module matches the two. A call that the compiler did not see runs under the graph break that led to it, or under the
plan's catch-all operation.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from dataclasses import dataclass
from itertools import islice
from types import CodeType, FrameType

from ramify.compiler.plan import OpKind, Plan, PlanOp, site_file
from ramify.runtime.errors import CallNotTold

_MAX_DEPTH = 40
NO_COLUMN, IN_LAMBDA = -1, -2
"""Stand for a column that Python does not report, as under PYTHONNODEBUGRANGES."""
_site_file = functools.lru_cache(maxsize=1024)(site_file)  # each call looks up forty frames of the same few files
_LOOP = asyncio.Handle._run.__code__  # what is above it is the loop's, and the program that runs the loop
_MOST_POSITIONS = 4096
_POSITIONS: dict[tuple[int, int], tuple[CodeType, tuple[str, int, int]]] = {}
"""File, line and column by the id of the code object and instruction. The code object is kept, so that its id is not
reused. Ids are used because equality of code objects ignores file and columns."""


@dataclass(frozen=True, slots=True)
class CallSite:
    """The call stack as (file, line, column), innermost first."""

    stack: tuple[tuple[str, int, int], ...]

    @property
    def where(self) -> str:
        file, line, _ = self.stack[0]
        return f"{file}:{line}"


def call_site(depth: int = 1) -> CallSite:
    """Return the site of the caller `depth` frames up. Call it before anything is awaited."""
    frame: FrameType | None = sys._getframe(depth + 1)
    stack: list[tuple[str, int, int]] = []
    while frame is not None and frame.f_code is not _LOOP and len(stack) < _MAX_DEPTH:
        known = _POSITIONS.get((id(frame.f_code), frame.f_lasti))
        stack.append(_position(frame) if known is None else known[1])
        frame = frame.f_back
    return CallSite(tuple(stack))


def _position(frame: FrameType) -> tuple[str, int, int]:
    """Return file, line and column, and keep them: Python searches the code from its beginning."""
    code = frame.f_code
    positions = next(islice(code.co_positions(), frame.f_lasti // 2, None), (None,) * 4)
    unknown = IN_LAMBDA if code.co_name == "<lambda>" else NO_COLUMN
    line, column = positions[0] or frame.f_lineno, unknown if positions[2] is None else positions[2]
    found = _site_file(code.co_filename), line, column
    if len(_POSITIONS) >= _MOST_POSITIONS:
        _POSITIONS.clear()
    _POSITIONS[id(code), frame.f_lasti] = (code, found)
    return found


def find_op(plan: Plan, kind: OpKind, site: CallSite, step: str | None = None) -> PlanOp:
    """Return the plan's operation for a call: its own, else the nearest graph break above it, else the catch-all.

    Raises `CallNotTold` if Python reports no columns and several calls stand on the line.
    """
    own = _at(plan, kind, site.stack[0], step)
    if own is not None:
        return own
    for place in site.stack:
        if (broken := _at(plan, OpKind.BREAK, place, None)) is not None:
            return broken
    return plan.catch_all


def _at(plan: Plan, kind: OpKind, place: tuple[str, int, int], step: str | None) -> PlanOp | None:
    file, line, col = place
    if col >= 0:
        return plan.at(kind, file, line, col)
    there = plan.on_line(file, line)
    own = [op for op in there if op.kind is kind and (step is None or op.step == step)]
    others = [op for op in there if op.kind is OpKind.BREAK and op not in own]
    if not own:
        return None
    if len(own) > 1 or others or col == IN_LAMBDA:
        raise CallNotTold(
            f"{file}:{line}: several calls of the plan stand on this line, and Python runs without column positions, "
            "so Ramify cannot tell which of them was made: unset PYTHONNODEBUGRANGES (or leave out "
            "-X no_debug_ranges), remove bytecode that was compiled with it, and resume the run"
        )
    return own[0]
