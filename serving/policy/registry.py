"""Policies by name. The command line, the gateway, the vLLM plug-in and replay read this one table.

To add a policy, write a module with a class that keeps to `types.Policy`, and add a line to `POLICIES`. Its value is
the class, whose parameters are the options of `--policy-option`, or a function of these options.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

from ramify.serving.policy.calm import Calm, CalmOptions
from ramify.serving.policy.concord.options import ConcordOptions
from ramify.serving.policy.cost_model import Goodput
from ramify.serving.policy.edf import EarliestDeadlineFirst
from ramify.serving.policy.stream_lending import LendingOptions, StreamLending
from ramify.serving.policy.types import Policy, SloClass

DEFAULT = "concord"

OptionValue = str | int | float | bool | None | dict[str, float]


class UnknownPolicy(ValueError):
    """No policy has this name, or the policy has no such option. The message lists what there is."""


def _calm(**options: OptionValue) -> Policy:
    return Calm(CalmOptions(**_goodput(options)))  # type: ignore[arg-type]


def _concord(**options: OptionValue) -> Policy:
    floors = options.get("floors")
    if isinstance(floors, dict):
        options = {**options, "floors": {SloClass(k): v for k, v in floors.items()}}
    names = [one.name for one in fields(LendingOptions) if one.name in options]
    lending = LendingOptions(**{name: options.pop(name) for name in names})  # type: ignore[arg-type]
    return StreamLending(ConcordOptions.from_names(**_goodput(options)), lending)


def _goodput(options: dict[str, OptionValue]) -> dict[str, OptionValue]:
    return {**options, "goodput": Goodput(str(options["goodput"]))} if "goodput" in options else options


def _andes(**options: OptionValue) -> Policy:
    # Not loaded before it is used: it needs numpy.
    from ramify.serving.policy.andes.packing import Objective
    from ramify.serving.policy.andes.policy import Andes, AndesOptions

    named = {**options, "objective": Objective(str(options["objective"]))} if "objective" in options else options
    return Andes(AndesOptions(**named))  # type: ignore[arg-type]


POLICIES: dict[str, Callable[..., Policy]] = {
    "edf": EarliestDeadlineFirst,
    "calm-thesis": _calm,
    "andes": _andes,
    "concord": _concord,
}


def make_live_policy(name: str = DEFAULT, **options: OptionValue) -> Policy:
    """Make a policy for a host whose clients wait for answers: it refuses a request as soon as that is foreseeable.

    Raises UnknownPolicy.
    """
    return make_policy(name, **{"foresee": True, **options} if name == DEFAULT else options)


def make_policy(name: str = DEFAULT, **options: OptionValue) -> Policy:
    """Make a new policy with options by name. Raises UnknownPolicy for an unknown name or option."""
    if name not in POLICIES:
        raise UnknownPolicy(f"no policy is called {name!r}: there are {', '.join(POLICIES)}")
    try:
        return POLICIES[name](**options)
    except (TypeError, ValueError) as error:
        raise UnknownPolicy(f"policy {name}: {error}") from error
