"""Searching in sorted lists."""


def lower_bound(items, target):
    """Index of the first item that is not less than target; len(items) if there is none."""
    low, high = 0, len(items)
    while low < high:
        middle = (low + high) // 2
        if items[middle] <= target:
            low = middle + 1
        else:
            high = middle
    return low


def upper_bound(items, target):
    """Index of the first item that is greater than target; len(items) if there is none."""
    low, high = 0, len(items)
    while low < high:
        middle = (low + high) // 2
        if target < items[middle]:
            high = middle
        else:
            low = middle + 1
    return low


def find(items, target):
    """Index of the first occurrence of target, or -1."""
    place = lower_bound(items, target)
    if place < len(items) and items[place] == target:
        return place
    return -1


def count(items, target):
    """How often target occurs."""
    return upper_bound(items, target) - lower_bound(items, target)
