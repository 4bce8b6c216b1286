import pytest
from binary_search import count, find, lower_bound, upper_bound

ITEMS = [1, 3, 3, 3, 5, 8]


@pytest.mark.parametrize("target, place", [(0, 0), (1, 0), (2, 1), (3, 1), (4, 4), (8, 5), (9, 6)])
def test_lower_bound(target, place):
    assert lower_bound(ITEMS, target) == place


@pytest.mark.parametrize("target, place", [(0, 0), (1, 1), (3, 4), (5, 5), (8, 6), (9, 6)])
def test_upper_bound(target, place):
    assert upper_bound(ITEMS, target) == place


def test_find():
    assert find(ITEMS, 3) == 1
    assert find(ITEMS, 8) == 5
    assert find(ITEMS, 4) == -1
    assert find([], 4) == -1


def test_count():
    assert count(ITEMS, 3) == 3
    assert count(ITEMS, 7) == 0


def test_empty():
    assert lower_bound([], 1) == 0
    assert upper_bound([], 1) == 0
