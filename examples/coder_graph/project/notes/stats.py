"""Figures about a note."""


def words(text: str) -> dict[str, int]:
    """How often each word stands in the text."""
    counts: dict[str, int] = {}
    for word in text.lower().split():
        counts[word] = counts.get(word, 0) + 1
    return counts


def median(values: list[int]) -> float:
    """The middle value; the mean of the middle two where there are two."""
    ordered = sorted(values)
    half = len(ordered) // 2
    if len(ordered) % 2 == 0:
        return ordered[half]
    return (ordered[half - 1] + ordered[half]) / 2
