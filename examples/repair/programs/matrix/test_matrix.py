import pytest
from matrix import determinant, identity, multiply, power, shape, transpose


def test_shape():
    assert shape([[1, 2, 3], [4, 5, 6]]) == (2, 3)
    with pytest.raises(ValueError):
        shape([[1], [2, 3]])


def test_transpose():
    assert transpose([[1, 2, 3], [4, 5, 6]]) == [[1, 4], [2, 5], [3, 6]]


def test_multiply_square():
    assert multiply([[1, 2], [3, 4]], [[5, 6], [7, 8]]) == [[19, 22], [43, 50]]


def test_multiply_wide():
    assert multiply([[1, 2, 3]], [[4], [5], [6]]) == [[32]]


def test_multiply_tall():
    assert multiply([[1], [2]], [[3, 4]]) == [[3, 4], [6, 8]]


def test_multiply_misfit():
    with pytest.raises(ValueError):
        multiply([[1, 2]], [[1, 2]])


def test_power():
    assert power([[1, 1], [1, 0]], 10) == [[89, 55], [55, 34]]
    assert power([[2, 0], [0, 2]], 0) == identity(2)


def test_determinant():
    assert determinant([[3]]) == 3
    assert determinant([[2, 0, 1], [1, 3, 2], [1, 1, 1]]) == 0
    assert determinant([[1, 2], [3, 4]]) == -2
