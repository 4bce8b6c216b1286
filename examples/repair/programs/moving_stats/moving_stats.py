"""Figures over a series of numbers."""


def moving_average(values, width):
    """The mean of each `width` neighbours."""
    if width < 1:
        raise ValueError("width must be positive")
    if len(values) < width:
        return []
    total = sum(values[:width])
    result = [total / width]
    for i in range(width, len(values)):
        total += values[i] - values[i - width]
        result.append(total / width)
    return result


def best_run(values):
    """The greatest sum of neighbours; at least one is taken (Kadane)."""
    if not values:
        raise ValueError("no values")
    best = 0
    current = 0
    for value in values:
        current = max(value, current + value)
        best = max(best, current)
    return best


def drawdown(values):
    """The greatest fall from a peak to a later value."""
    worst = 0
    peak = float("-inf")
    for value in values:
        peak = max(peak, value)
        worst = max(worst, peak - value)
    return worst


def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def histogram(values, edges):
    """How many values lie in each [edge, next edge)."""
    counts = [0] * (len(edges) - 1)
    for value in values:
        for i in range(len(edges) - 1):
            if edges[i] <= value < edges[i + 1]:
                counts[i] += 1
                break
    return counts
