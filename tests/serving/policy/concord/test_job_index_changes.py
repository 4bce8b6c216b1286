"""The difference of two lists of views, compared with sets."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ramify.serving.policy.concord.job_index import view_changes
from tests.serving.policy.views import view


def test_replaced_new_and_gone_views_are_told_apart() -> None:
    calls = [view(i) for i in range(200)]
    moved_on = replace(calls[50], generated=1)
    new = [*calls[3:50], moved_on, *calls[51:120], view(900), *calls[120:], view(901)]
    found = view_changes(calls, new)
    assert found is not None
    come, gone = found
    assert [(call.id, call.generated) for call in come] == [(50, 1), (900, 0), (901, 0)]
    assert gone == {0, 1, 2}


def test_it_gives_up_if_too_much_differs() -> None:
    calls = [view(i) for i in range(200)]
    assert view_changes(calls, calls[::-1], most=20) is None
    assert view_changes(calls, calls, most=0) == ([], set())


@given(st.data())
def test_the_diff_agrees_with_sets(data: st.DataObject) -> None:
    old = [view(i) for i in range(data.draw(st.integers(0, 150)))]
    new = [replace(call, generated=1) if data.draw(st.integers(0, 9)) == 0 else call for call in old]
    for id_ in range(1000, 1000 + data.draw(st.integers(0, 5))):
        new.insert(data.draw(st.integers(0, len(new))), view(id_))
    for _ in range(data.draw(st.integers(0, 3))):  # a stretch goes, another stands elsewhere
        at = data.draw(st.integers(0, len(new)))
        del new[at : at + data.draw(st.integers(0, 20))]
        at = data.draw(st.integers(0, len(new)))
        stretch = new[at : at + data.draw(st.integers(0, 4))]
        del new[at : at + len(stretch)]
        to = data.draw(st.integers(0, len(new)))
        new[to:to] = stretch
    found = view_changes(old, new, most=10_000)
    assert found is not None
    come, gone = found
    assert len(set(map(id, come))) == len(come)
    assert {id(call) for call in new} - {id(call) for call in old} <= {id(call) for call in come}
    assert {id(call) for call in come} <= {id(call) for call in new}
    assert gone == {call.id for call in old} - {call.id for call in new}
