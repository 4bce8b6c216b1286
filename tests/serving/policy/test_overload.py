"""Policies compared under overload on a simulated engine; no objective starves a class of requests."""

from __future__ import annotations

from functools import cache

import pytest

from ramify.serving.policy.cost_model import (
    LengthPrior,
    decode_gpu_s,
    pace_s,
    prefill_s,
    remaining,
    rest_gpu_s,
    rest_wall_s,
)
from ramify.serving.policy.registry import OptionValue, make_policy
from ramify.serving.policy.types import Finished, Refusal, Verdict, View
from tests.samples import sample
from tests.serving.policy.slot_simulator import Machine, programs

SLOTS, CAPACITY = 16, 5.0  # programs a second: what FCFS gets through with a queue that is never empty


class ShortestProgramFirst:
    """A strong plain baseline: the least GPU time of the whole program first; late calls are refused."""

    def __init__(self) -> None:
        self._prior = LengthPrior()

    def observe(self, done: Finished) -> None:
        self._prior.learn(done)

    def decide(self, view: View, now: float) -> Verdict:
        capacity, drop, live = view.capacity, [], []
        token_s = pace_s(capacity, view.running)
        for call in view.waiting:
            least = remaining(call, self._prior, 0.1) * token_s + rest_wall_s(call, capacity, token_s, 0.5)
            ready = now + prefill_s(capacity.step, call.to_prefill)
            if (call.ttft is not None and ready > call.ttft) or (
                call.deadline is not None and ready + least > call.deadline
            ):
                drop.append(Refusal(call.id, "late"))
                continue
            own = remaining(call, self._prior, 0.5)
            price = prefill_s(capacity.step, call.to_prefill)
            price += decode_gpu_s(capacity.step, capacity.slots, call.prompt_tokens, own)
            if call.compound is not None:
                price = price * call.compound.width + rest_gpu_s(call, capacity)
            live.append((price, call.arrived, call.id))
        order = tuple(id_ for _, _, id_ in sorted(live))
        return Verdict(admit=order[: capacity.free], order=order, drop=tuple(drop), wake_at=now + 0.2)


@cache
def attained(policy: str, load: float, **options: OptionValue) -> dict[str, float]:
    made = ShortestProgramFirst() if policy == "shortest" else make_policy(policy, **options)
    machine = Machine(made, programs(CAPACITY * load, 150.0, seed=1), SLOTS)
    machine.run()
    assert machine.met.keys() == set(range(len(machine.work))), "every program has come to an end"
    return machine.attained(20.0, 140.0)


@pytest.mark.parametrize("load", [1.3, 1.1, 2.0][: sample(1, 3)])
def test_concord_loses_to_none_of_the_plain_policies(load: float) -> None:
    ours = attained("concord", load)
    for other in ("edf", "calm-thesis", "shortest"):
        assert ours["all"] >= attained(other, load)["all"] - 0.01, other


@pytest.mark.parametrize(
    ("goodput", "load"),
    [("workflow", 1.3), ("token", 1.3), ("workflow", 1.1), ("workflow", 2.0), ("token", 1.1)][: sample(2, 5)],
)
def test_latency_sensitive_requests_are_not_starved(goodput: str, load: float) -> None:
    assert attained("concord", load, goodput=goodput)["latency"] >= 0.95
