"""Policies by name. The command line, the gateway, the vLLM plug-in and replay read this one table.

To add a policy, write a module with a class that keeps to `types.Policy`, and add a line to `POLICIES`. Its value is
the class or a function. The options of `--policy-option` are its fields if it is a dataclass, else its parameters;
`make_options` checks the types of their values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import is_dataclass

from ramify.serving.policy.calm import Calm, CalmOptions
from ramify.serving.policy.concord.options import ConcordOptions
from ramify.serving.policy.edf import EarliestDeadlineFirst
from ramify.serving.policy.option_values import make_options
from ramify.serving.policy.stream_lending import LendingOptions, StreamLending
from ramify.serving.policy.types import Policy

DEFAULT = "concord"

OptionValue = str | int | float | bool | None | dict[str, float]


class UnknownPolicy(ValueError):
    """No policy has this name, or the policy has no such option or refuses its value. The message says what is
    allowed."""


def _calm(**options: OptionValue) -> Policy:
    return Calm(*make_options(options, CalmOptions))


def _concord(**options: OptionValue) -> Policy:
    return StreamLending(*make_options(options, ConcordOptions, LendingOptions))


def _andes(**options: OptionValue) -> Policy:
    # Not loaded before it is used: it needs numpy.
    from ramify.serving.policy.andes.policy import Andes, AndesOptions

    return Andes(*make_options(options, AndesOptions))


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
    """Make a new policy with options by name. Raises UnknownPolicy for an unknown name or option, or a bad value."""
    if name not in POLICIES:
        raise UnknownPolicy(f"no policy is called {name!r}: there are {', '.join(POLICIES)}")
    made = POLICIES[name]
    try:
        if isinstance(made, type) and is_dataclass(made):
            (policy,) = make_options(options, made)
            return policy  # type: ignore[no-any-return]
        return made(**options)
    except (TypeError, ValueError) as error:
        raise UnknownPolicy(f"policy {name}: {error}") from error
