"""Each client is sure of an equal share of the slots, and nothing changes for one client alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.serving.policy.concord.jobs import Job, JobFactory
from ramify.serving.policy.concord.options import ConcordOptions
from ramify.serving.policy.concord.policy import ClientUse, Concord, with_client_shares
from ramify.serving.policy.cost_model import LengthPrior
from ramify.serving.policy.types import Capacity, Finished, RequestView, SloClass, StepModel, View
from tests.serving.policy.views import NOW, running, view

SLOTS = 4
CAPACITY = Capacity(SLOTS, step=StepModel(10.0, 0.0, 0.0, 0.1))
CLIENTS = st.lists(st.sampled_from(["ann", "bob", "cyd"]), max_size=12)


def jobs(clients: list[str]) -> list[Job]:
    factory = JobFactory(LengthPrior(), 0.5, 0.1, 120.0, 0.25)
    return [factory.job(view(i, client=name), CAPACITY, 0.01) for i, name in enumerate(clients)]


@given(CLIENTS, st.dictionaries(st.sampled_from(["ann", "bob"]), st.integers(0, 4)), st.integers(1, 3))
def test_every_client_gets_its_share_before_anyone_gets_more(
    clients: list[str], held: dict[str, int], share: int
) -> None:
    queue = jobs(clients)
    fair = with_client_shares(queue, held, share, lambda name: {"ann": 5.0, "bob": 1.0}.get(name, 0.0))
    assert sorted(job.id for job in fair) == [job.id for job in queue]
    owed = {name: min(max(0, share - held.get(name, 0)), count) for name, count in Counter(clients).items()}
    head = Counter(job.view.client for job in fair[: sum(owed.values())])
    assert head == Counter({name: count for name, count in owed.items() if count})
    rest = fair[head.total() :]
    assert [job.id for job in rest] == sorted(job.id for job in rest), "else in the order that it was"


def flood(kind: SloClass, **more: object) -> list[RequestView]:
    """Many calls of ann, all dense and early, and then one of bob's."""
    anns = [view(i, kind, length=50, client="ann", arrived=NOW - 5, **more) for i in range(30)]
    return [*anns, view(99, kind, length=300, client="bob", arrived=NOW - 1, **more)]


@pytest.mark.parametrize(
    "calls",
    [flood(SloClass.BEST_EFFORT), flood(SloClass.DEADLINE, deadline=NOW + 4)],
    ids=["best effort", "overload"],
)
def test_a_flood_of_one_client_does_not_keep_out_another(calls: list[RequestView]) -> None:
    seen = View(CAPACITY, calls)
    verdict = Concord(ConcordOptions.from_names(refuse=False)).decide(seen, NOW)
    assert 99 in verdict.admit
    assert len(verdict.admit) == SLOTS, "what bob does not ask for is ann's"
    without = Concord(ConcordOptions.from_names(refuse=False, client_share=0.0)).decide(seen, NOW)
    assert 99 not in without.admit
    assert sorted(verdict.order) == sorted(without.order)


def test_one_slot_goes_round() -> None:
    """Nobody holds anything when it is given away: what each had lately decides, and is forgotten."""
    concord, one = Concord(), Capacity(1, step=CAPACITY.step)
    seen = View(one, flood(SloClass.BEST_EFFORT))
    assert 99 not in concord.decide(seen, NOW).admit
    concord.observe(Finished(view(500, generated=50, client="ann"), NOW, met=True))
    assert concord.decide(seen, NOW).admit == (99,)
    concord.observe(Finished(view(501, generated=300, client="bob"), NOW, met=True))
    assert 99 not in concord.decide(seen, NOW).admit, "bob had more"


def test_what_a_client_had_is_forgotten() -> None:
    use = ClientUse()
    use.learn(Finished(view(1, prompt_tokens=100, generated=100, client="ann"), NOW, met=True))
    assert use.of("ann", NOW) == 200 and use.of("bob", NOW) == 0
    assert 0 < use.of("ann", NOW + 600) < 1
    assert use.of("ann", NOW - 5) == 200, "a host's clock may be set back"


def test_a_client_that_holds_its_share_waits_like_others() -> None:
    held = [running(100 + i, client="bob") for i in range(2)]
    seen = View(replace(CAPACITY, running=2), flood(SloClass.BEST_EFFORT), held)
    assert 99 not in Concord().decide(seen, NOW).admit


def test_while_all_deadlines_fit_they_set_the_order() -> None:
    calls = [view(i, length=50, client="ann", deadline=NOW + 20 + i) for i in range(6)]
    calls.append(view(99, length=50, client="bob", deadline=NOW + 90))
    assert Concord().decide(View(CAPACITY, calls), NOW).admit == (0, 1, 2, 3)


@given(st.lists(st.tuples(st.floats(1, 500), st.floats(0.5, 30)), max_size=20), st.booleans())
def test_nothing_changes_for_one_client(calls: list[tuple[float, float]], tight: bool) -> None:
    kinds = (SloClass.BEST_EFFORT, SloClass.DEADLINE)
    views = [
        view(i, kinds[i % 2 or tight], length=length, deadline=NOW + due if i % 2 or tight else None, client="ann")
        for i, (length, due) in enumerate(calls)
    ]
    with_shares, without = (Concord(ConcordOptions.from_names(client_share=share)) for share in (1.0, 0.0))
    seen = View(CAPACITY, views)
    assert with_shares.decide(seen, NOW) == without.decide(seen, NOW)
