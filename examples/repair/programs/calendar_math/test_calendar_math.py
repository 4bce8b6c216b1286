import pytest
from calendar_math import day_of_year, days_between, days_in_month, duration, is_leap, weekday


@pytest.mark.parametrize("year, leap", [(2023, False), (2024, True), (1900, False), (2000, True)])
def test_is_leap(year, leap):
    assert is_leap(year) is leap


def test_days_in_month():
    assert days_in_month(2023, 2) == 28
    assert days_in_month(2023, 12) == 31
    with pytest.raises(ValueError):
        days_in_month(2023, 13)


def test_day_of_year():
    assert day_of_year(2023, 1, 1) == 1
    assert day_of_year(2023, 12, 31) == 365


def test_days_between():
    assert days_between((2023, 1, 1), (2023, 3, 1)) == 59
    assert days_between((2024, 1, 1), (2025, 1, 1)) == 366


def test_weekday():
    assert weekday(1900, 1, 2) == "Tuesday"


@pytest.mark.parametrize("seconds, text", [(59, "00:00:59"), (3600, "01:00:00"), (93784, "1d 02:03:04")])
def test_duration(seconds, text):
    assert duration(seconds) == text
