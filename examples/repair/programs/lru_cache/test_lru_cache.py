import pytest
from lru_cache import LRUCache


def test_get_and_put():
    cache = LRUCache(2)
    cache.put("a", 1)
    assert cache.get("a") == 1
    assert cache.get("b") is None
    assert cache.get("b", 0) == 0


def test_forgets_the_oldest():
    cache = LRUCache(2)
    for key in "abc":
        cache.put(key, key.upper())
    assert cache.get("a") is None
    assert len(cache) == 2


def test_keys_in_order_of_writing():
    cache = LRUCache(3)
    for key in "abc":
        cache.put(key, 0)
    cache.put("a", 1)
    assert cache.keys() == ["b", "c", "a"]


def test_reading_makes_newest():
    cache = LRUCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    cache.get("a")
    assert cache.keys() == ["b", "a"]
    cache.put("c", 3)
    assert cache.get("b") is None
    assert cache.get("a") == 1


def test_bad_capacity():
    with pytest.raises(ValueError):
        LRUCache(0)
