from __future__ import annotations

from ramify.serving.gateway.records.latest_of_each import LatestOfEach


def test_the_client_with_the_most_loses_its_oldest() -> None:
    kept: LatestOfEach[int] = LatestOfEach(4)
    kept.put("a", "x", 1)
    for number in range(10):
        kept.put("b", number, number)
    assert (kept.of("a"), kept.of("b"), len(kept)) == ([1], [7, 8, 9], 4)
    assert (kept.get("a", "x"), kept.get("b", "x"), kept.get("b", 0)) == (1, None, None)


def test_what_is_put_again_is_the_latest() -> None:
    kept: LatestOfEach[str] = LatestOfEach(3)
    for name in ("one", "two", "one", "three", "four"):
        kept.put("", name, name)
    assert kept.of("") == ["one", "three", "four"]
    assert list(kept.latest_first()) == ["four", "three", "one"]
    assert kept.of("nobody") == []


def test_the_latest_of_all_clients_come_first() -> None:
    kept: LatestOfEach[str] = LatestOfEach(9)
    for client, name in (("a", "1"), ("b", "2"), ("a", "3"), ("b", "2")):
        kept.put(client, name, client + name)
    assert list(kept.latest_first()) == ["b2", "a3", "a1"]
