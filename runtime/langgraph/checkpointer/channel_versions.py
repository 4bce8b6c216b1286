"""The versions that LangGraph numbers a channel's values by, in the form of its own savers.

A version is a counter and a fraction drawn at random, as text: `f"{counter:032}.{fraction:016}"`. Text orders as
the counters do, and two branches of a thread hardly ever draw the same version. LangGraph's savers key a channel's
values by version, so a thread that has such versions can move to one of them and go on. Threads that Ramify 0.1
began have plain numbers: they go on with numbers, since LangGraph compares the versions of a checkpoint.
"""

from __future__ import annotations

Version = int | float | str


def next_version(current: Version | None, fraction: float) -> Version:
    """Return a version greater than `current`. `fraction`, in [0, 1), tells branches apart.

    Raises `ValueError` for text that is not of this form.
    """
    if current is None:
        return text_version(1, fraction)
    if isinstance(current, str):
        return text_version(counter_of(current) + 1, fraction)
    return current + 1


def counter_of(version: Version) -> int:
    """Return the counter of a version. Raises `ValueError` for text of another form than LangGraph's savers write."""
    if not isinstance(version, str):
        return int(version)
    counter = version.partition(".")[0]
    if not (counter.isascii() and counter.isdigit()):
        raise ValueError(
            f"the channel version {version[:40]!r} is not a counter and a fraction, as LangGraph's savers write: the "
            "checkpoint was made by another checkpointer, which must go on with it"
        )
    return int(counter)


def text_version(counter: int, fraction: float) -> str:
    return f"{counter:032}.{fraction:016}"
