"""Learns lengths from traffic: predicts with its models, collects what came, and refits in the background.

There are two models. One predicts before the first token. The other predicts what remains from the answer's text so
far; it is asked every 50 tokens, once it has been fitted. (Deep in an answer its bound is less than half of the
conditioned one's.) Readers never wait: a fit works on a copy, and the finished model replaces the old one. Between
two fits, each answer corrects what is foreseen of its application (`corrections`).

`Coverage` says live, of the calls still running after g tokens, how many ended within their 95 % bound of that
moment. That bound is the one that scheduling had then: predicted again from the text if it was, else the sketch of
the beginning, conditioned. `AppCoverages` says the same of each application, for the bound before the first token.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import zlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt

import numpy as np

from ramify.serving.lengths import features
from ramify.serving.lengths.corrections import Correction
from ramify.serving.lengths.features import Matrix
from ramify.serving.lengths.forest import Floats
from ramify.serving.lengths.length_model import FEWEST, LengthModel, ObservationRing, Sample, fit
from ramify.serving.lengths.types import INTERVAL, Ask, Basis, Ended, Forecast
from ramify.serving.protocol.length_sketch import LengthSketch

NOMINAL = 0.95
# The moments that are judged: every 50 tokens (the thesis's interval) while most answers run, then rarer.
BINS = (0, 50, 100, 150, 200, 300, 400, 500, 600, 800, 1000, 1500, 2000, 3000, 4000, 8000)
_Z = 1.6449  # one-sided 95 %
_FADE = 0.999  # the weight of a call after each later one: about the last thousand count
_COUNTS = 4  # calls, covered calls, reserved tokens, tokens that came
MOST_APPS = 256
_LONGEST_NAME = 256  # characters


@dataclass(frozen=True, slots=True)
class BinCoverage:
    """The coverage after `generated` tokens."""

    generated: int
    survivors: float  # calls that came so far, with recent ones counting most
    covered: float  # the share of them that ended within their bound
    lower: float  # the one-sided 95 % lower limit of that share (Wilson)
    reserved: float  # tokens that the bound reserved beyond g, for each token that came


class Coverage:
    """Counts that fade, so that they describe the present."""

    def __init__(self, counts: Floats | None = None) -> None:
        """`counts`: the result of `array`. Raises ValueError for another shape."""
        self._bins = [[0.0] * _COUNTS for _ in BINS]
        if counts is not None:
            if counts.shape != (len(BINS), _COUNTS):
                raise ValueError(f"counts of shape {counts.shape} are not those of {len(BINS)} bins")
            self._bins = counts.tolist()

    def array(self) -> Floats:
        """The counts, for a checkpoint."""
        return np.array(self._bins)

    def add(self, bound: LengthSketch, length: int, cut: bool, asked: Sequence[tuple[int, float]] = ()) -> None:
        """Count a call that ended at `length`. A call that was cut at its limit says nothing if its bound is not
        below.

        bound: of its beginning. asked: later moments (tokens generated, bound) at which it was predicted again. The
        first in each bin is judged; without one, the bound of the beginning, conditioned.
        """
        later = dict(reversed([(bisect_right(BINS, generated), (generated, high)) for generated, high in asked]))
        for i, (counts, begin) in enumerate(zip(self._bins, BINS, strict=True)):
            if length <= begin:
                break
            generated, high = later.get(i + 1) or (begin, bound.quantile(NOMINAL, begin))
            if not cut or high < length:
                _count(counts, generated, high, length)

    def __iter__(self) -> Iterator[BinCoverage]:
        """The bins that a call has reached."""
        for (survivors, covered, reserved, came), generated in zip(self._bins, BINS, strict=True):
            if survivors:
                share = covered / survivors
                yield BinCoverage(generated, survivors, share, wilson_lower(share, survivors), reserved / came)


@dataclass(frozen=True, slots=True)
class AppCoverage:
    """What was learnt of an application, and how its bounds before the first token held."""

    app: str
    answers: int  # learnt from so far
    judged: float  # of them, those that say whether their bound held, with recent ones counting most
    covered: float  # the share of them that ended within their bound
    lower: float  # the one-sided 95 % lower limit of that share (Wilson)
    reserved: float  # tokens that the bounds reserved, for each token that came


class AppCoverages:
    """The coverage of each application: of those heard of last, at most `MOST_APPS`."""

    def __init__(self, counts: Mapping[str, Sequence[float]] | None = None) -> None:
        """`counts`: the result of `counts`. Raises ValueError for rows of another length."""
        self._apps: OrderedDict[str, list[float]] = OrderedDict()  # answers, and the counts of `Coverage`
        for app, row in (counts or {}).items():
            if len(row) != 1 + _COUNTS:
                raise ValueError(f"{len(row)} counts of an application are not {1 + _COUNTS}")
            self._apps[app] = list(row)

    def counts(self) -> dict[str, list[float]]:
        """The counts, for a checkpoint."""
        return {app: list(row) for app, row in self._apps.items()}

    def add(self, app: str, bound: LengthSketch | None, length: int, cut: bool) -> None:
        """Count an answer of `length` tokens. `bound`: of its beginning; None: it had none."""
        answers, *counts = self._apps.pop(app, [0.0] * (1 + _COUNTS))
        if bound is not None and length > 0 and not (cut and bound.quantile(NOMINAL) >= length):
            _count(counts, 0, bound.quantile(NOMINAL), length)
        self._apps[app] = [answers + 1, *counts]
        while len(self._apps) > MOST_APPS:
            self._apps.popitem(last=False)

    def __iter__(self) -> Iterator[AppCoverage]:
        """The applications, the last heard of at the end."""
        for app, (answers, judged, covered, reserved, came) in self._apps.items():
            share = covered / judged if judged else 0.0
            lower = wilson_lower(share, judged) if judged else 0.0
            yield AppCoverage(app, int(answers), judged, share, lower, reserved / came if came else 0.0)


def _count(counts: list[float], generated: int, high: float, length: int) -> None:
    """Add an answer that was bounded by `high` after `generated` tokens: one more, covered, reserved, came."""
    for k, more in enumerate((1.0, float(length <= high), high - generated, length - generated)):
        counts[k] = counts[k] * _FADE + more


def wilson_lower(share: float, n: float) -> float:
    """The one-sided 95 % lower limit of a share seen in `n` trials (Wilson's score interval)."""
    spread = _Z * sqrt(share * (1 - share) / n + _Z * _Z / (4 * n * n))
    return (share + _Z * _Z / (2 * n) - spread) / (1 + _Z * _Z / n)


_RING = 6_000  # answers: fitting them takes about half a minute of one core
_RING_LATER = 6_000
_MOMENTS = 200  # moments kept for one answer, which bounds the memory of endless answers
_OPEN = 4_096  # running calls whose moments are kept
_CORRECTED = 1_024  # applications and models whose answers since the last fit are known: those heard of last
_SOONEST = 40  # new answers before another fit, at least,
_GROWTH = 0.25  # and at least this share of the answers in the last fit


@dataclass(frozen=True, slots=True)
class Models:
    first: LengthModel | None = None
    later: LengthModel | None = None
    version: int = 0
    since: OrderedDict[str, Correction] = field(default_factory=OrderedDict)  # by answers after the fit of `first`


@dataclass(frozen=True, slots=True)
class _Moment:
    """A running answer at the moment when its length was asked again."""

    generated: int
    progress: Matrix | None  # its features beyond those of the beginning; None: not used for learning
    bound: float  # the 95 % bound of the whole length at that moment


class Learner:
    """Thread-safe: predicts from any thread, one refit at a time."""

    def __init__(self, *, salt: int | None = None) -> None:
        self.salt = secrets.randbits(32) if salt is None else salt
        self.first = ObservationRing(_RING, features.WIDTH)
        self.later = ObservationRing(_RING_LATER, features.WIDTH_LATER)
        self.models = Models()
        self.coverage = Coverage()
        self.apps = AppCoverages()
        self.fitted_at = 0  # `first.total` at the last fit
        self._moments: OrderedDict[str, list[_Moment]] = OrderedDict()
        self._lock = threading.Lock()
        self._fitting = threading.Lock()

    def predict(self, asks: Sequence[Ask]) -> list[Forecast]:
        """One forecast for each ask, from the present models."""
        models = self.models
        rows = np.zeros((len(asks), features.WIDTH), dtype=np.float32)
        for i, ask in enumerate(asks):
            rows[i] = features.of(ask, self.salt)
        at_start = _forecasts(models, rows, asks)
        return [
            self._in_the_middle(models, ask, row, forecast) if ask.generated > 0 else forecast
            for ask, row, forecast in zip(asks, rows, at_start, strict=True)
        ]

    def _in_the_middle(self, models: Models, ask: Ask, row: Matrix, at_start: Forecast) -> Forecast:
        known = features.later(row, ask)
        forecast = Forecast(at_start.sketch.condition(ask.generated), at_start.basis)
        if models.later is not None and ask.text and ask.generated < ask.limit:
            (rest,) = models.later.sketches(known[None], [key_of(ask)], [ask.limit - ask.generated])
            if rest.basis is Basis.LEARNT:
                forecast = Forecast(_shifted(rest.sketch, ask.generated), rest.basis)
        if ask.call and ask.text:
            self._remember(ask, known[features.WIDTH :], forecast.sketch.quantile(NOMINAL))
        return forecast

    def _remember(self, ask: Ask, progress: Matrix, bound: float) -> None:
        """Keep a moment of a running answer until its end shows what remained."""
        learnt = progress.copy() if learnt_from(ask.call, ask.generated) else None
        with self._lock:
            kept = self._moments.pop(ask.call, [])
            if len(kept) < _MOMENTS:
                kept.append(_Moment(ask.generated, learnt, bound))
            self._moments[ask.call] = kept
            while len(self._moments) > _OPEN:
                self._moments.popitem(last=False)

    def observe(self, ended: Ended) -> None:
        """Learn from a call that has ended."""
        ask, length = ended.ask, ended.length
        row = features.of(replace(ask, generated=0, text=""), self.salt)
        group = features.prompt_id(ask.prompt, self.salt)
        key = key_of(ask)
        with self._lock:
            self.first.add(row, length, cut=ended.cut, group=group, key=key)
            _learn(self.models, self.first.sample(self.first.total - 1))
            moments = [moment for moment in self._moments.pop(ask.call, []) if moment.generated < length]
            for moment in moments:
                if moment.progress is not None:
                    known = np.concatenate([row, moment.progress])
                    self.later.add(known, length - moment.generated, cut=ended.cut, group=group, key=key)
            self.apps.add(ask.app, ended.bound, length, ended.cut)
            if ended.bound is not None:
                asked = [(moment.generated, moment.bound) for moment in moments]
                self.coverage.add(ended.bound, length, ended.cut, asked)

    def due(self) -> bool:
        """True if enough has come since the last fit to make another one worthwhile."""
        new = self.first.total - self.fitted_at
        return len(self.first) >= FEWEST and new >= max(_SOONEST, int(_GROWTH * min(self.fitted_at, len(self.first))))

    def refit(self) -> bool:
        """Fit both models on what there is and install them. False if another thread is fitting.

        Takes seconds to a minute of one core; predictions continue meanwhile.
        """
        if not self._fitting.acquire(blocking=False):
            return False
        try:
            with self._lock:
                sample, total = self.first.sample(), self.first.total
                rest = self.later.sample() if len(self.later) >= 4 * FEWEST else None
            version = self.models.version + 1
            self.install(Models(fit(sample, seed=version), self.models.later, version), total)
            if rest is not None:
                self.models = replace(self.models, later=fit(rest, seed=version))
            return True
        finally:
            self._fitting.release()

    def install(self, models: Models, fitted_at: int) -> None:
        """Go on with these models, corrected by the answers after the first `fitted_at`."""
        with self._lock:
            sample, total = self.first.sample(fitted_at), self.first.total
        _learn(models, sample)  # many answers may have come during a fit
        with self._lock:
            _learn(models, self.first.sample(total))
            self.models, self.fitted_at = models, fitted_at


def _learn(models: Models, sample: Sample) -> None:
    if models.first is not None and sample.keys:
        models.first.learn(sample, models.since)
        for key in sample.keys:
            models.since.move_to_end(key)
        while len(models.since) > _CORRECTED:
            models.since.popitem(last=False)


def learnt_from(call: str, generated: int) -> bool:
    """Learn from every other moment of an answer, chosen by the call's name. A choice that depended on the final
    length (such as an even spread over it) would teach that an answer asked about early is a short one."""
    return (generated // INTERVAL + zlib.crc32(call.encode("utf-8", "surrogatepass"))) % 2 == 0


def key_of(ask: Ask) -> str:
    """The key by which answers are counted. If few were seen, the bound is widened. Clients name models as they like,
    so a name that is long, or that a checkpoint would not keep as it is, stands as its digest."""
    return f"{_short(ask.app)}\x1f{_short(ask.model)}"


def _short(name: str) -> str:
    if len(name) <= _LONGEST_NAME and name.isprintable():
        return name
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _forecasts(models: Models, rows: Matrix, asks: Sequence[Ask]) -> list[Forecast]:
    if models.first is None:
        return [Forecast(LengthSketch.cold(ask.limit), Basis.COLD) for ask in asks]
    return models.first.sketches(rows, [key_of(ask) for ask in asks], [ask.limit for ask in asks], models.since)


def _shifted(rest: LengthSketch, generated: int) -> LengthSketch:
    return LengthSketch(rest.levels, tuple(value + generated for value in rest.values))
