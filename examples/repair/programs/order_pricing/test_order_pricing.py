import pytest
from catalogue import UnknownItem, parse_line, price
from order_pricing import line_total, receipt, subtotal, total


def test_price():
    assert price("bread") == 250
    with pytest.raises(UnknownItem):
        price("caviar")


def test_parse_amount():
    assert parse_line("2 x Bread") == ("bread", 2)


def test_parse_without_amount():
    assert parse_line("Cheese") == ("cheese", 1)
    assert parse_line(" apple ") == ("apple", 1)


def test_discounts():
    assert line_total("apple", 4) == 160
    assert line_total("apple", 5) == 190
    assert line_total("apple", 10) == 360


def test_subtotal():
    assert subtotal(["2 x bread", "apple"]) == 540


def test_delivery():
    assert total(["2 x bread"]) == 890
    assert total([]) == 0


def test_free_delivery():
    assert total(["4 x cheese"]) == 3120
    assert total(["4 x bread", "2 x cheese", "11 x apple", "apple"]) == 1000 + 1560 + 396 + 40 + 390


def test_free_from_the_very_sum():
    assert total(["3 x cheese", "2 x bread", "4 x apple"]) == 3000


def test_receipt():
    assert receipt(["2 x Bread"]) == "  2 bread         5.00\ntotal             8.90"
