import pytest
from moving_stats import best_run, drawdown, histogram, median, moving_average


def test_moving_average():
    assert moving_average([1, 2, 3, 4], 2) == [1.5, 2.5, 3.5]
    assert moving_average([1], 2) == []
    with pytest.raises(ValueError):
        moving_average([1], 0)


def test_best_run():
    assert best_run([1, -2, 3, 4, -1, 2, -5]) == 8
    assert best_run([2]) == 2


def test_best_run_of_losses():
    assert best_run([-4, -2, -7]) == -2
    assert best_run([-1]) == -1


def test_best_run_of_nothing():
    with pytest.raises(ValueError):
        best_run([])


def test_drawdown():
    assert drawdown([3, 9, 4, 8, 2, 10]) == 7
    assert drawdown([1, 2, 3]) == 0


def test_median():
    assert median([3, 1, 2]) == 2
    assert median([4, 1, 3, 2]) == 2.5


def test_histogram():
    assert histogram([1, 2, 2.5, 7, 10], [0, 2, 5, 10]) == [1, 2, 1]
