"""Which recorded values of a run are sets of other items than integers: arguments of the workflow and results of
steps. The compiler cannot know that of values without an annotation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ramify.compiler.plan import IF_SET, UNORDERED, PlanOp


class RecordedSets:
    def __init__(self) -> None:
        self._places: set[str] = set()

    def given(self, workflow: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note the arguments of the workflow."""
        try:
            bound = inspect.signature(workflow).bind(*args, **kwargs)
        except TypeError:  # the call itself will say so
            return
        bound.apply_defaults()
        self._places |= {f"argument {name}" for name, value in bound.arguments.items() if _is_unordered(value)}

    def returned(self, step: str, value: object) -> None:
        if _is_unordered(value):
            self._places.add(f"step {step}")

    def order_of(self, op: PlanOp) -> str:
        """Return how the calls of an operation follow the order of a set, as `UNORDERED`; "" if they do not."""
        how: str = op.attrs.get(UNORDERED, "")
        return how if IF_SET not in op.attrs or not self._places.isdisjoint(op.attrs[IF_SET]) else ""


def _is_unordered(value: object) -> bool:
    return isinstance(value, set | frozenset) and not all(type(each) in (int, bool) for each in value)
