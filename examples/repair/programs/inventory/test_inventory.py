import pytest
from inventory import OutOfStock, Warehouse, find, move


def test_add_and_remove():
    house = Warehouse("north", {"bolt": 2})
    house.add("bolt", 3)
    assert house.stock == {"bolt": 5}
    house.remove("bolt", 5)
    assert house.stock == {}


def test_new_is_empty():
    house = Warehouse("first")
    house.add("nut", 4)
    assert house.total() == 4
    assert Warehouse("second").stock == {}


def test_too_much():
    house = Warehouse("south", {"nut": 1})
    with pytest.raises(OutOfStock):
        house.remove("nut", 2)
    assert house.stock == {"nut": 1}


def test_move():
    one, two = Warehouse("one"), Warehouse("two")
    one.add("nail", 7)
    move(one, two, "nail", 3)
    assert (one.stock, two.stock) == ({"nail": 4}, {"nail": 3})


def test_find():
    houses = [Warehouse("a", {"x": 1}), Warehouse("b", {"x": 5}), Warehouse("c", {"y": 1})]
    assert find(houses, "x") == ["b", "a"]


def test_bad_amount():
    with pytest.raises(ValueError):
        Warehouse("w", {}).add("x", 0)
