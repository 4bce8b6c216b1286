import pytest
from change_maker import fewest, greedy, ways


@pytest.mark.parametrize("amount, count", [(0, 1), (1, 1), (5, 2), (10, 4), (12, 4), (30, 16)])
def test_ways(amount, count):
    assert ways(amount, [10, 5, 1]) == count


def test_no_ways():
    assert ways(3, [2]) == 0
    assert ways(3, []) == 0


def test_fewest():
    assert fewest(12, [1, 5, 10]) == [1, 1, 10]
    assert fewest(6, [1, 3, 4]) == [3, 3]
    assert fewest(0, [1]) == []
    assert fewest(3, [2]) is None


def test_greedy():
    assert greedy(6, [1, 3, 4]) == [4, 1, 1]
    assert greedy(3, [2]) is None
