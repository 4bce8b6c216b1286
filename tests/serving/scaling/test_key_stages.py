"""The list of key stages, and which warm replicas are ended."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ramify.serving.scaling.pools import KeyStages, WarmReplica, to_end


def test_a_key_stage_is_remembered_for_a_while() -> None:
    keys = KeyStages(forget_s=10.0)
    keys.scaled_up("a", 0.0)
    keys.scaled_up("b", 5.0)
    keys.scaled_up("a", 8.0)
    assert keys.list(14.0) == ("a", "b")
    assert keys.list(16.0) == ("a",)
    assert keys.list(30.0) == ()


@given(st.lists(st.tuples(st.integers(1, 40), st.floats(0, 9)), max_size=12), st.integers(0, 300))
def test_the_least_recently_used_are_ended_until_memory_suffices(warm: list[tuple[int, float]], other: int) -> None:
    replicas = [WarmReplica(f"{i:02}", "pool", size, used) for i, (size, used) in enumerate(warm)]
    used = other + sum(size for size, _ in warm)
    ended = to_end(replicas, used, 200)
    kept = [one for one in replicas if one not in ended]
    left = used - sum(one.bytes for one in ended)
    assert left <= 170 or not kept
    assert not ended or left + ended[-1].bytes > 170, "no replica more than needed"
    assert all(a.used_at <= b.used_at for a in ended for b in kept)
