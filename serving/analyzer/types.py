"""What callers ask the analyzer and tell it, and what it answers. Plain data; lengths in tokens, times in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ramify.serving.sketch import LengthSketch

INTERVAL = 50  # tokens after which an answer's length is predicted anew (thesis §4.1)


@dataclass(frozen=True, slots=True)
class Ask:
    """A call whose length is wanted, before its first token or in the middle of its answer."""

    model: str
    prompt: str  # the last message, or all of them joined; only its two ends are looked at
    limit: int  # tokens after which the answer is cut: max_tokens, or what the context leaves
    app: str = ""
    stage: int = 0  # index in its compound request
    prompt_tokens: int = 0  # all that is prefilled; 0: not known
    messages: int = 1
    call: str = ""  # ties what is told of it later to what was asked before
    generated: int = 0  # tokens of the answer so far
    text: str = ""  # the answer so far


class Basis(StrEnum):
    """What a sketch rests on, from the best to the least."""

    LEARNT = "learnt"  # the forest, which has seen this application and model
    THIN = "thin"  # the forest, but little was seen of this application and model: widened towards the limit
    LAST = "last"  # the analyzer cannot be reached: what it last said of such a call
    COLD = "cold"  # nothing is known: the limit is the bound


@dataclass(frozen=True, slots=True)
class Forecast:
    """The distribution of a call's length. `sketch` counts the whole answer, whatever is generated."""

    sketch: LengthSketch
    basis: Basis
    fresh: bool = True  # False: the analyzer did not answer, and scheduling goes on with what was known


@dataclass(frozen=True, slots=True)
class Ended:
    """A call that came to its end, told so that the analyzer learns."""

    ask: Ask  # as it was before the first token
    length: int
    cut: bool = False  # by its limit: the answer would have been longer
    bound: LengthSketch | None = None  # what was shipped, for the live coverage
