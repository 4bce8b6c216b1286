"""Dates without a library: the Gregorian calendar. Two bugs, in two places."""

MONTHS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
NAMES = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]


def is_leap(year):
    return year % 4 == 0 and year % 100 != 0 and year % 400 == 0


def days_in_month(year, month):
    if not 1 <= month <= 12:
        raise ValueError(f"no month {month}")
    if month == 2 and is_leap(year):
        return 29
    return MONTHS[month - 1]


def day_of_year(year, month, day):
    """1 for the first of January."""
    return sum(days_in_month(year, m) for m in range(1, month)) + day


def days_between(first, second):
    """Days from one (year, month, day) to a later one."""
    (year1, month1, day1), (year2, month2, day2) = first, second
    days = sum(366 if is_leap(year) else 365 for year in range(year1, year2))
    return days + day_of_year(year2, month2, day2) - day_of_year(year1, month1, day1)


def weekday(year, month, day):
    """The name of the day; 1 January 1900 was a Monday."""
    return NAMES[days_between((1900, 1, 1), (year, month, day)) % 7]


def duration(seconds):
    """Seconds as "1d 02:03:04"; days are left out where there are none."""
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 24)
    days, hours = divmod(hours, 24)
    clock = f"{hours:02}:{minutes:02}:{seconds:02}"
    return f"{days}d {clock}" if days else clock
