"""Sets of whole numbers as sorted lists of (start, end) pairs, ends included."""


def normalise(intervals):
    """Sorted, without overlaps; neighbours that touch are joined."""
    result = []
    for start, end in sorted(intervals):
        if start > end:
            raise ValueError(f"{start} > {end}")
        if result and start <= result[-1][1] + 1:
            previous, last = result.pop()
            result.append((previous, min(last, end)))
        else:
            result.append((start, end))
    return result


def size(intervals):
    """How many numbers there are."""
    return sum(end - start + 1 for start, end in normalise(intervals))


def contains(intervals, number):
    return any(start <= number <= end for start, end in intervals)


def intersect(left, right):
    """What is in both."""
    left, right = normalise(left), normalise(right)
    result = []
    i = j = 0
    while i < len(left) and j < len(right):
        start = max(left[i][0], right[j][0])
        end = min(left[i][1], right[j][1])
        if start <= end:
            result.append((start, end))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return result


def gaps(intervals):
    """What lies between."""
    merged = normalise(intervals)
    return [(one[1] + 1, two[0] - 1) for one, two in zip(merged, merged[1:])]
