import pytest
from merge_intervals import contains, gaps, intersect, normalise, size


def test_apart():
    assert normalise([(5, 6), (1, 2)]) == [(1, 2), (5, 6)]


def test_overlap():
    assert normalise([(1, 4), (3, 8)]) == [(1, 8)]


def test_touching():
    assert normalise([(1, 2), (3, 4)]) == [(1, 4)]


def test_inside():
    assert normalise([(1, 9), (2, 3)]) == [(1, 9)]


def test_backwards():
    with pytest.raises(ValueError):
        normalise([(3, 1)])


def test_size():
    assert size([(1, 3), (2, 5), (9, 9)]) == 6


def test_contains():
    assert contains([(1, 3)], 3)
    assert not contains([(1, 3)], 4)


def test_intersect():
    assert intersect([(1, 5), (8, 12)], [(4, 9)]) == [(4, 5), (8, 9)]


def test_gaps():
    assert gaps([(1, 2), (5, 6), (9, 9)]) == [(3, 4), (7, 8)]
