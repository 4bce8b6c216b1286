"""Quality of experience of a text stream at token grain (Andes, equations 1 to 3).

A reader expects the first token at `first_due`, and reads one token each `tbt_s` seconds. Token i (from 1) is ideally
read at t_i = first_due + (i - 1) · tbt_s. It is delivered at d_i and read at a_1 = max(d_1, t_1), a_i = max(d_i,
a_{i-1} + tbt_s): nobody reads a token before it is there, nor faster than the reader reads. Then

    S_delay = Σ (a_i - t_i),  S_whole = Σ (a_n - t_i),  QoE = 1 - S_delay / S_whole.

`Reading` is a digest of one stream: four numbers beside the two targets, whatever the length. docs/decisions/096 says
what counts before the end, which the paper leaves open.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, isfinite

_SPEEDS = ((0.28, 236), (0.519, 200), (0.112, 192), (0.056, 185), (0.033, 175))  # share of readers, words a minute
_TOKENS_A_WORD = 1.3
READING_TOKENS_S = sum(share * words for share, words in _SPEEDS) * _TOKENS_A_WORD / 60  # 4.50; Andes, table 2.1
READING_TBT_S = 1 / READING_TOKENS_S
SPEAKING_TBT_S = 60 / (150 * _TOKENS_A_WORD)  # 150 words a minute
_PROMPT_TOKENS_S, _LEAST_TTFT_S = 5000, 1.0
PERFECT = 0.999  # a QoE from here on counts as perfect: clocks round


def usual_ttft_s(prompt_tokens: int) -> float:
    """Return the time to first token that a reader expects who names none: a second, more for long prompts."""
    return max(_LEAST_TTFT_S, prompt_tokens / _PROMPT_TOKENS_S)


def speeds() -> tuple[tuple[float, float], ...]:
    """Return the table of readers: share, and seconds a token."""
    return tuple((share, 60 / (words * _TOKENS_A_WORD)) for share, words in _SPEEDS)


@dataclass(frozen=True, slots=True)
class Reading:
    """One stream so far. Times are seconds on the caller's clock. Raises ValueError unless `tbt_s` is above 0."""

    first_due: float  # t_1
    tbt_s: float  # 1 / the reader's speed
    tokens: int = 0  # delivered: n
    read_at: float = 0.0  # a_n: when the last of them is read, now or later
    delay_s: float = 0.0  # Σ (a_i - t_i)

    def __post_init__(self) -> None:
        if not (self.tbt_s > 0 and isfinite(self.tbt_s) and isfinite(self.first_due)):
            raise ValueError(f"a reader needs a time above 0 for a token, and a first one: {self.tbt_s} s a token")

    @property
    def dry_at(self) -> float:
        """When the reader wants a token that is not there yet: t_1, later a_n + tbt_s."""
        return self.read_at + self.tbt_s if self.tokens else self.first_due

    def ahead_s(self, now: float) -> float:
        """Return for how many seconds the reader has enough to read; below 0 if it waits for a token."""
        return self.dry_at - now

    def delivered(self, at: float, count: int = 1, every_s: float = 0.0) -> Reading:
        """Return the reading after `count` more tokens: one at `at`, then one each `every_s` seconds. O(1)."""
        if count < 1:
            return self
        first = max(at, self.dry_at)  # when the first of them is read
        late = every_s - self.tbt_s
        steady = count  # so many are read one after the other; from then on the reader waits for each
        if late > 0:
            steady = min(count, max(0, ceil((first - at) / late)))
        rest = count - steady
        read = steady * first + self.tbt_s * steady * (steady - 1) / 2
        read += rest * at + every_s * (steady + count - 1) * rest / 2
        last = max(at + (count - 1) * every_s, first + (count - 1) * self.tbt_s)
        due = count * self.first_due + self.tbt_s * count * (2 * self.tokens + count - 1) / 2
        return Reading(self.first_due, self.tbt_s, self.tokens + count, last, max(0.0, self.delay_s + read - due))

    def qoe(self) -> float:
        """Return the QoE of the whole answer, once it has ended. 1 for an answer without a token."""
        return _share(self.delay_s, self.tokens, self.read_at, self.first_due, self.tbt_s)

    def qoe_at(self, now: float) -> float:
        """Return the QoE up to `now` of an answer that goes on.

        The tokens count that are read by then or due by then, whichever are more. A due token that is not read yet
        counts as read now: the reader has waited so long at least. Nothing due and nothing read gives 1. `now` must
        not be before the last delivery.
        """
        unread = 0
        if self.tokens and self.read_at > now:
            unread = min(self.tokens, ceil((self.read_at - now) / self.tbt_s))
        read = self.tokens - unread
        due = floor((now - self.first_due) / self.tbt_s) + 1 if now >= self.first_due else 0
        # Unread tokens follow each other at the reader's pace, back from read_at.
        later = unread * (self.read_at - self.first_due - (self.tokens - 1) * self.tbt_s)
        delay = self.delay_s - later
        last, count = self.read_at - unread * self.tbt_s, read
        if due > read:
            missing = due - read
            delay += missing * (now - self.first_due) - self.tbt_s * (read + due - 1) * missing / 2
            last, count = now, due
        return _share(delay, count, last, self.first_due, self.tbt_s)

    def if_served(self, now: float, until: float, start_s: float, every_s: float) -> float:
        """Return the QoE at `until` if tokens come each `every_s` seconds from `now + start_s` on (Q_serve)."""
        count = floor((until - now - start_s) / every_s) + 1 if now + start_s <= until else 0
        return self.delivered(now + start_s, count, every_s).qoe_at(until)


def _share(delay: float, count: int, last: float, first_due: float, tbt_s: float) -> float:
    """Return 1 - S_delay / S_whole over `count` tokens, the last of which is read at `last`."""
    if count < 1:
        return 1.0
    whole = count * (last - first_due) - tbt_s * count * (count - 1) / 2
    if delay <= 1e-9 * max(1.0, count):  # also 0 / 0
        return 1.0
    return min(1.0, max(0.0, 1 - delay / whole)) if whole > 0 else 0.0
