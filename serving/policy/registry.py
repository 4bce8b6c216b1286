"""Policies by name: the one table that the command line, the gateway, the plug-in and replay read."""

from __future__ import annotations

from collections.abc import Callable

from ramify.serving.policy.calm import Calm, CalmOptions
from ramify.serving.policy.concord.policy import Concord, ConcordOptions
from ramify.serving.policy.edf import EarliestDeadlineFirst
from ramify.serving.policy.goodput import Goodput
from ramify.serving.policy.types import Policy, SloClass

DEFAULT = "concord"

OptionValue = str | int | float | bool | None | dict[str, float]
_Options = dict[str, OptionValue]


class UnknownPolicy(ValueError):
    """No policy has this name, or it has no such option. The message names what there is."""


def _calm(options: _Options) -> Policy:
    return Calm(CalmOptions(**_goodput(options)))  # type: ignore[arg-type]


def _concord(options: _Options) -> Policy:
    floors = options.get("floors")
    if isinstance(floors, dict):
        options = {**options, "floors": {SloClass(k): v for k, v in floors.items()}}
    return Concord(ConcordOptions(**_goodput(options)))  # type: ignore[arg-type]


def _goodput(options: _Options) -> _Options:
    return {**options, "goodput": Goodput(str(options["goodput"]))} if "goodput" in options else options


def _edf(options: _Options) -> Policy:
    return EarliestDeadlineFirst(**options)  # type: ignore[arg-type]


POLICIES: dict[str, Callable[[_Options], Policy]] = {"edf": _edf, "calm-thesis": _calm, "concord": _concord}


def make_live_policy(name: str = DEFAULT, **options: OptionValue) -> Policy:
    """The same for a host whose clients wait for its answers: a refusal comes as soon as it is foreseeable. Raises
    UnknownPolicy."""
    return make_policy(name, **{"foresee": True, **options} if name == DEFAULT else options)


def make_policy(name: str = DEFAULT, **options: OptionValue) -> Policy:
    """A fresh policy. Raises UnknownPolicy for a name or an option that there is not."""
    if name not in POLICIES:
        raise UnknownPolicy(f"no policy is called {name!r}: there are {', '.join(POLICIES)}")
    try:
        return POLICIES[name](dict(options))
    except (TypeError, ValueError) as error:
        raise UnknownPolicy(f"policy {name}: {error}") from error
