"""QUART's controller."""

from __future__ import annotations

from ramify.serving.scaling.pools import PoolLimits, PoolLoad
from ramify.serving.scaling.quart import CpuProfile, Quart

LIMITS = PoolLimits(1, 10, start_s=2.0)


def pool(name: str, rate: float, replicas: int, **more: float) -> PoolLoad:
    return PoolLoad(name, rate, 1.0, replicas, limits=LIMITS, **more)  # type: ignore[arg-type]


def test_the_stage_that_holds_the_pipeline_back_is_scaled_and_listed() -> None:
    decided = Quart(12).decide([pool("a", 0.2, 1), pool("b", 2.5, 2), pool("c", 0.2, 1)], (), 0.0)
    assert decided.replicas["b"] > 2 and decided.key == ("b",)
    assert sum(decided.replicas.values()) <= 12


def test_a_pool_that_is_not_needed_shrinks_to_its_least_one_by_one() -> None:
    quart, replicas = Quart(12), 4
    for now in range(10):
        after = quart.decide([pool("a", 0.01, replicas)], (), float(now)).replicas["a"]
        assert after in (replicas, replicas - 1)
        replicas = after
    assert replicas == 1


def test_a_queue_counts_although_the_mean_rate_is_low() -> None:
    assert Quart(12).decide([pool("a", 0.1, 1, queue=20)], (), 0.0).replicas["a"] > 1


def test_cores_replace_a_replica_where_they_suffice_and_no_stage_is_passed_by() -> None:
    """Algorithm 1 returns inside its loop, so that only the first stage would be looked at."""
    enough, short = CpuProfile((1, 2), (1.5, 0.8)), CpuProfile((1, 2), (3.0, 2.9))
    quart = Quart(12, profiles={"a": short, "b": enough}, most_cores=4)
    decided = quart.decide([pool("a", 0.1, 3), pool("b", 0.1, 3)], (), 0.0)
    assert decided.replicas == {"a": 3, "b": 2}
    assert decided.cpus == {"a": 4, "b": 2}
