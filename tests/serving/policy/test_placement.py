"""Power of K over replicas."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ramify.serving.policy.placement import PowerOfK, Replica
from ramify.serving.policy.types import Capacity, GroupView, StepModel
from tests.serving.policy.views import view


def replica(id_: int, slots: int = 4, slower: float = 1.0, **more: object) -> Replica:
    return Replica(id_, Capacity(slots, 0, step=StepModel().scaled(slower)), **more)  # type: ignore[arg-type]


def test_the_faster_replica_is_filled_first_and_the_rest_go_to_the_slower() -> None:
    places = PowerOfK().place([view(i) for i in range(6)], [replica(0, slower=3.0), replica(1)])
    assert sorted(places.values()) == [0, 0, 1, 1, 1, 1]


def test_a_fork_group_goes_to_one_replica_and_to_the_one_that_holds_its_prefix() -> None:
    group = GroupView("g", 3, 1)
    calls = [view(i, prompt_tokens=4000, group=group) for i in range(3)]
    assert len(set(PowerOfK().place(calls, [replica(0), replica(1)]).values())) == 1
    held = [replica(0), replica(1, slower=1.2, prefixes={"g": 3900})]
    assert set(PowerOfK().place(calls, held).values()) == {1}


def test_dead_replicas_get_no_calls() -> None:
    assert PowerOfK().place([view(1)], [replica(0, alive=False), replica(1, slower=9)]) == {1: 1}


@given(st.integers(0, 20), st.integers(1, 5), st.integers(1, 5), st.integers(0, 9))
def test_slots_are_filled_once_and_none_stays_empty(calls: int, replicas: int, k: int, seed: int) -> None:
    machines = [replica(i, slots=1 + i % 3, slower=1 + i) for i in range(replicas)]
    requests = [view(i) for i in range(calls)]
    places = PowerOfK(k, seed).place(requests, machines)
    for machine in machines:
        assert list(places.values()).count(machine.id) <= machine.capacity.slots
    if k >= replicas:
        assert len(places) == min(calls, sum(m.capacity.slots for m in machines))
    assert places == PowerOfK(k, seed).place(requests, machines)
