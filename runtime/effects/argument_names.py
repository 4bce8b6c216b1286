"""Arguments of steps by name: those of the run's plan, by which its journal and its ledger know them, and those that
the step's parameters have in the code of now, which its hooks take.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import combinations
from types import MappingProxyType
from typing import Any, Protocol

from ramify.compiler.plan import Plan
from ramify.compiler.step_parameters import parameters_of, recorded_names
from ramify.runtime.codec import codec

NO_NAMES: Mapping[str, str] = MappingProxyType({})
_MOST_ADDED_PARAMETERS = 5  # how many parameters with defaults are tried as parameters that were added later


class HasParameters(Protocol):
    """The part of a step's definition that says which parameters it has."""

    @property
    def name(self) -> str: ...
    @property
    def function(self) -> Callable[..., Any]: ...
    @property
    def sandbox_parameter(self) -> str | None: ...


def names_in_plan(plan: Plan, step: HasParameters) -> Mapping[str, str]:
    """Return the names in the plan of the step's parameters that have other names now, by their names of now."""
    planned = plan.step(step.name)
    if planned is None or not planned.parameters:
        return NO_NAMES
    now = _parameters_of(step.function, step.sandbox_parameter)
    return NO_NAMES if planned.parameters == now else recorded_names(planned.parameters, now)


@functools.lru_cache(maxsize=1024)
def _parameters_of(function: Callable[..., Any], sandbox: str | None) -> tuple[str, ...]:
    return parameters_of(function, sandbox)


def by_names_in_plan(arguments: str, names: Mapping[str, str]) -> str:
    """Return encoded arguments under the names of the plan. `names`: as `names_in_plan` returns them."""
    if not names:
        return arguments
    return _as_text({names.get(name, name): value for name, value in json.loads(arguments).items()})


def as_recorded(arguments: str, defaults: Collection[str]) -> Iterator[str]:
    """Yield encoded arguments as they may have been recorded: whole, and without parameters that were added since."""
    yield arguments
    for less in without_added(json.loads(arguments) if defaults else {}, defaults):
        yield _as_text(less)


def without_added(bound: Mapping[str, Any], defaults: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yield the arguments without some of those that have their `defaults`: their parameters may be new."""
    newest = sorted(defaults, key=list(bound).index, reverse=True)[:_MOST_ADDED_PARAMETERS]
    for count in range(1, len(newest) + 1):
        for names in combinations(newest, count):
            yield {name: value for name, value in bound.items() if name not in names}


def arguments_now(recorded: str, plan: Plan, step: HasParameters) -> dict[str, Any]:
    """Return the recorded arguments of a call as the step of now would get them: by its names, and with the defaults
    of parameters that are new."""
    then = {old: now for now, old in names_in_plan(plan, step).items()}
    found = {then.get(name, name): value for name, value in codec.decode(recorded).items()}
    for name, one in inspect.signature(step.function).parameters.items():
        if name not in found and name != step.sandbox_parameter and one.default is not inspect.Parameter.empty:
            found[name] = one.default
    return found


def _as_text(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments, separators=(",", ":"))
