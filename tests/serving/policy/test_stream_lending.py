"""Concord with streams: they lend their slots to calls with deadlines while their readers are ahead."""

from __future__ import annotations

from dataclasses import replace

from ramify.serving.policy.concord.options import ConcordOptions
from ramify.serving.policy.concord.policy import Concord
from ramify.serving.policy.registry import make_policy
from ramify.serving.policy.stream_lending import StreamLending
from ramify.serving.policy.types import SloClass, View
from tests.serving.policy.andes.test_packing import stream
from tests.serving.policy.andes.test_policy import ahead, behind, engine
from tests.serving.policy.views import NOW, running, view


def test_without_streams_the_verdict_is_concords() -> None:
    seen = View(engine(2, 1), [view(1, deadline=NOW + 9), view(2, deadline=NOW + 4)], [running(3)])
    assert StreamLending().decide(seen, NOW) == Concord(ConcordOptions()).decide(seen, NOW)


def test_a_program_gets_the_slot_of_a_reader_ahead_though_it_could_wait() -> None:
    seen = View(engine(2, 2, kv_free=9000), [view(1, deadline=NOW + 60)], [ahead(2), ahead(3)])
    verdict = make_policy("concord").decide(seen, NOW)
    assert (verdict.admit, len(verdict.pause), verdict.preempt) == ((1,), 1, ())


def test_a_reader_that_has_read_all_keeps_its_share_of_the_slots() -> None:
    seen = View(
        engine(4, 4, kv_free=9000),
        [view(i, deadline=NOW + 60) for i in range(10, 14)],
        [behind(1), behind(2), ahead(3), ahead(4)],
    )
    verdict = make_policy("concord").decide(seen, NOW)
    assert set(verdict.pause) == {3, 4}
    assert len(verdict.admit) == 2


def test_a_stream_of_a_workflow_with_a_deadline_is_concords() -> None:
    due = replace(stream(1, []), deadline=NOW + 50)
    waiting = [due, view(2, SloClass.DEADLINE, length=5, deadline=NOW + 1.0)]
    assert make_policy("concord").decide(View(engine(1, 0), waiting), NOW).admit == (2,)


def test_kv_of_streams_makes_room_for_a_program() -> None:
    seen = View(engine(8, 2, kv_free=10), [view(1, deadline=NOW + 5)], [ahead(2), behind(3)])
    verdict = make_policy("concord").decide(seen, NOW)
    assert (verdict.admit, verdict.preempt[0]) == ((1,), 2)


def test_where_streams_cannot_be_paused_they_lend_nothing() -> None:
    for able in ({"can_pause": False}, {"pause_room": 0}):
        seen = View(engine(2, 2, kv_free=9000, **able), [view(1, deadline=NOW + 60)], [ahead(2), ahead(3)])
        verdict = make_policy("concord").decide(seen, NOW)
        assert (verdict.pause, verdict.preempt) == ((), ())


def test_a_program_that_finds_no_memory_waits_behind_the_readers_unless_it_is_due_soon_or_has_waited_long() -> None:
    reader, serves = stream(2, []), engine(8, 0, kv_free=1000)
    far = view(1, prompt_tokens=50_000, deadline=NOW + 600, arrived=NOW - 1)
    small = replace(far, prompt_tokens=100)
    soon, old = replace(far, deadline=NOW + 25), replace(far, arrived=NOW - 61)
    firsts = [
        make_policy("concord").decide(View(serves, [one, reader]), NOW).admit for one in (far, small, soon, old)
    ]
    assert firsts == [(2, 1), (1, 2), (1,), (1,)]


def test_readers_keep_their_memory_from_a_program_that_can_wait() -> None:
    far = view(1, deadline=NOW + 600)
    runs = [ahead(2), behind(3)]
    for one, stopped in ((far, ()), (replace(far, deadline=NOW + 25), (2,))):
        verdict = make_policy("concord").decide(View(engine(8, 2, kv_free=10), [one], runs), NOW)
        assert (verdict.admit, verdict.preempt[:1]) == ((1,), stopped)
