"""Calls of a run that nothing but their number tells apart: their threads, the tasks that read streams, and what
earlier processes recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Thread

from ramify.runtime.records import LLMRecord, OpRecord
from ramify.runtime.user_code.workflow_tasks import ReadingTask

SET_ORDER = "set_order"  # attribute of a row whose call followed the order of a set: the order of sets in its process
THREADS = "threads"  # attribute of a row if several threads, or tasks that read streams, made equal calls
WHO = {"several": "two threads of the workflow", "streams": "two tasks that read streamed answers"}
"""Its values, for messages."""
TOLD_SINCE_PLAN = 9  # runs with earlier plans were recorded without marks of such calls, and resume as they did
_NOTHING = (None, "null")


class EqualCalls:
    """Knows equal calls by their place: the key without the number of the occurrence.

    before: the steps' results that earlier processes recorded, by key.
    answers: the model's answers that they recorded.
    """

    def __init__(self, before: Mapping[str, OpRecord], answers: Sequence[LLMRecord]) -> None:
        self._before, self._answers = before, answers
        self._threads: dict[str, Thread | None] = {}  # by place: the thread that called first
        self._readers: dict[str, ReadingTask] = {}  # by place: the reader of a stream that called last
        self._threaded: dict[str, str] = {}  # by place: why calls there take turns by chance, as in `WHO`
        self._called: dict[tuple[str, str], list[str]] = {}  # by place and step: the keys of calls of this process
        self._recorded: dict[tuple[str, str | None], list[OpRecord]] | None = None
        self._answered: dict[str, list[LLMRecord]] | None = None

    def is_one_thread(self, key: str, thread: Thread | None) -> bool:
        """Whether no other living thread of the workflow has made a call at the place of `key`. Calls of threads that
        follow one another are in the same order each time."""
        place = key.rpartition("|")[0]
        before = self._threads.setdefault(place, thread)
        if before is not None and before is not thread and not before.is_alive():
            before = self._threads[place] = thread
        if before is not thread:
            self._threaded[place] = "several"
        return before is thread

    def is_one_reader(self, key: str, reader: ReadingTask | None) -> bool:
        """Whether no other living task that reads streamed answers has made a call at the place of `key`, except one
        from which the reader comes, or that comes from the reader."""
        if reader is None:
            return True
        place = key.rpartition("|")[0]
        before = self._readers.get(place)
        self._readers[place] = reader
        if before is None or before is reader or not before.is_alive():
            return True
        if reader.is_inside(before) or before.is_inside(reader):
            return True
        self._threaded.setdefault(place, "streams")
        return False

    def by_chance(self, key: str) -> str:
        """Return why calls at the place of `key` take turns by chance, as in `WHO`; "" if they do not."""
        return self._threaded.get(key.rpartition("|")[0], "") if self._threaded else ""

    def is_again(self, key: str, step: str, failed: Callable[[str], bool]) -> bool:
        """Note that a step is called, and return whether this process called it at the place of `key` before. A call
        after failed ones is a retry."""
        calls = self._called.setdefault((key.rpartition("|")[0], step), [])
        again = not all(map(failed, calls))
        calls.append(key)
        return again

    def recorded(self, key: str, step: str) -> list[OpRecord]:
        """Return what earlier processes recorded of calls that equal the call with that key. Calls that the compiler
        did not see may be of another step, with equal arguments."""
        if self._recorded is None:
            self._recorded = {}
            for known, row in self._before.items():
                self._recorded.setdefault((known.rpartition("|")[0], row.step), []).append(row)
        return self._recorded.get((key.rpartition("|")[0], step), [])

    def answers(self, key: str) -> list[LLMRecord]:
        """Return what earlier processes recorded of model calls that equal the call with that key."""
        if self._answered is None:
            self._answered = {}
            for row in self._answers:
                self._answered.setdefault(row.key.rpartition("|")[0], []).append(row)
        return self._answered.get(key.rpartition("|")[0], [])


def differ(rows: Sequence[OpRecord] | Sequence[LLMRecord], is_recorded: bool) -> bool:
    """Return whether it may matter which of some equal calls gets which of these results. `is_recorded`: so far as is
    known, all calls have results."""
    if all(row.result_json in _NOTHING for row in rows):
        return False
    return not is_recorded or len({row.result_digest for row in rows}) > 1
