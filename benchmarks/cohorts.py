"""Compare ways to share length predictions between applications: one forest, cohorts, or a forest for each.

    python benchmarks/cohorts.py --data DIR [--quick] [--json]

Applications are made from `DIR/responses/*.jsonl`, gzipped or not (a {"prompt", "dataset", "response"} in each line,
a file for each model): the answers of one model to the prompts of one dataset. Prompts are held out, never rows.
Four ways to learn:

| way | what it is |
|---|---|
| ours | one forest that sees the name of the application; the answers of each application correct its forecasts |
| nameless | one forest that sees no names; all answers together correct it |
| cohorts | Auxo, algorithm 2 (thesis, chapter 3): a nameless forest for each cohort of applications |
| own | a forest for each application |

Held-out answers come one by one: the bound of each is judged, and then the answer corrects the next one. An oracle
shows what could be gained: it knows the judged answers, and multiplies the bounds of each application by the least
factor that covers .95, or .93, of them.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.held_out_prompts import group, held_out  # noqa: E402
from benchmarks.length_cohorts.algorithm import Cohorts, Vector, residual  # noqa: E402
from benchmarks.length_cohorts.algorithm import Path as Cohort  # noqa: E402
from benchmarks.replay.errors import BadTrace  # noqa: E402
from benchmarks.replay.inputs.traces import files_of, response_pairs  # noqa: E402
from benchmarks.rows import Row, options, row, run, show  # noqa: E402
from ramify.serving.lengths import features  # noqa: E402
from ramify.serving.lengths.corrections import Correction  # noqa: E402
from ramify.serving.lengths.length_model import FEWEST, LengthModel, Sample, fit  # noqa: E402
from ramify.serving.lengths.types import Ask  # noqa: E402
from ramify.serving.protocol.length_sketch import LEVELS  # noqa: E402

Bounds = npt.NDArray[np.float64]

_SALT = 7
_LIMIT = 8_192
_NOMINAL, _COVERED = 0.95, 0.93
_LEARNT = 50  # answers after which an application is judged
_TOKEN = re.compile(r"\w{1,7}|[^\w\s]|\n")
_COUNTS = (2, 4, 6, 8, 12, 18, 24, 40)  # answers after which a new application is judged
_ORDERS = 5
_FACTORS = (1.0, 4.0, 0.25)
_PARTS = 4  # each application is split in so many where cohorts are formed, since a cohort needs 20 members


@dataclass(frozen=True, slots=True)
class Answer:
    app: str
    model: str
    prompt: str
    length: int


def read(data: Path) -> list[Answer]:
    """Return the answers of all models. Raises FileNotFoundError if there is none, and BadTrace."""
    found = []
    for path in files_of(data / "responses", ".jsonl"):
        model = path.name.partition(".jsonl")[0]
        for pair in response_pairs(path):
            length = max(1, len(_TOKEN.findall(pair["response"])))
            found.append(Answer(f"{model}/{pair['dataset']}", model, pair["prompt"], length))
    if not found:
        raise FileNotFoundError(f"{data} has no responses/*.jsonl: give a folder of traces with --data")
    return found


def sample(answers: Sequence[Answer], *, named: bool) -> Sample:
    """Return the answers as columns, with or without the names of application and model among the features."""
    asks = [
        Ask(model=one.model if named else "", app=one.app if named else "", prompt=one.prompt, limit=_LIMIT)
        for one in answers
    ]
    return Sample(
        rows=np.stack([features.of(ask, _SALT) for ask in asks]),
        lengths=np.array([float(one.length) for one in answers]),
        cut=np.zeros(len(answers), dtype=np.bool_),
        groups=np.array([group(one.prompt) for one in answers], dtype=np.int32),
        keys=tuple(one.app if named else "all" for one in answers),
    )


def bounds(
    model: LengthModel, answers: Sequence[Answer], *, named: bool, since: Mapping[str, Correction] | None = None
) -> Bounds:
    """Return the 95 % bound of each answer, in tokens; none of these answers is learned from."""
    asked = sample(answers, named=named)
    forecasts = model.sketches(asked.rows, asked.keys, [float(_LIMIT)] * len(answers), since or {})
    return np.array([forecast.sketch.quantile(_NOMINAL) for forecast in forecasts])


def one_by_one(model: LengthModel, answers: Sequence[Answer], *, named: bool) -> Bounds:
    """Return the 95 % bound of each answer, given those before it."""
    since: dict[str, Correction] = {}
    found = np.empty(len(answers))
    for i, one in enumerate(answers):
        found[i] = bounds(model, [one], named=named, since=since)[0]
        model.learn(sample([one], named=named), since)
    return found


@dataclass(frozen=True, slots=True)
class Judged:
    """How the bounds of held-out answers were: `covered` by application, and tokens reserved for each that came."""

    covered: dict[str, float]
    reserved: float

    @classmethod
    def of(cls, answers: Sequence[Answer], limits: Bounds) -> Judged:
        lengths = np.array([one.length for one in answers])
        apps = np.array([one.app for one in answers])
        covered = {app: float((lengths <= limits)[apps == app].mean()) for app in sorted(set(apps.tolist()))}
        return cls(covered, float(limits.sum() / lengths.sum()))

    @property
    def note(self) -> str:
        below = sum(share < _COVERED for share in self.covered.values())
        mean = sum(self.covered.values()) / len(self.covered)
        return f"covers {mean:.3f} on average; {below} of {len(self.covered)} applications below {_COVERED}"


def by_app(answers: Sequence[Answer]) -> dict[str, list[Answer]]:
    found: dict[str, list[Answer]] = defaultdict(list)
    for one in answers:
        found[one.app].append(one)
    return found


def own_forests(learn: Sequence[Answer], judge: Sequence[Answer]) -> Judged:
    """Judge a forest for each application."""
    learnt, limits = by_app(learn), np.empty(len(judge))
    for app, asked in by_app(judge).items():
        where = [i for i, one in enumerate(judge) if one.app == app]
        limits[where] = (
            one_by_one(fit(sample(learnt[app], named=True)), asked, named=True)
            if len(learnt[app]) >= FEWEST
            else float(_LIMIT)
        )
    return Judged.of(judge, limits)


def in_hindsight(answers: Sequence[Answer], limits: Bounds, share: float) -> Judged:
    """Judge the bounds times a factor for each application: the least that covers so many of these very answers."""
    over = np.array([one.length for one in answers]) / limits
    apps = np.array([one.app for one in answers])
    factors = {app: np.quantile(over[apps == app], share, method="higher") for app in set(apps.tolist())}
    return Judged.of(answers, limits * np.array([factors[app] for app in apps.tolist()]))


def in_cohorts(learn: Sequence[Answer], judge: Sequence[Answer], *, rounds: int) -> tuple[Judged, int]:
    """Form cohorts in rounds; then judge a nameless forest for each. Returns the number of cohorts as well.

    In each round an application hands in how far its next answers were from what its cohort's forest foresaw."""
    streams, cohorts = by_app([_part(one) for one in learn]), Cohorts()
    seen: dict[Cohort, list[Answer]] = defaultdict(list)
    forests: dict[Cohort, LengthModel] = {}
    for at in range(rounds):
        taken: dict[Cohort, dict[str, Vector]] = defaultdict(dict)
        for app, stream in streams.items():
            new = stream[at::rounds]
            cohort = cohorts.choose(app)
            if new and cohort in forests:
                taken[cohort][app] = _residual(forests[cohort], new)
        for cohort, vectors in taken.items():
            cohorts.learn(cohort, vectors)
        seen.clear()
        for app, stream in streams.items():
            seen[cohorts.best(app)] += [one for done in range(at + 1) for one in stream[done::rounds]]
        forests = {cohort: fit(sample(own, named=False)) for cohort, own in seen.items() if len(own) >= FEWEST}
    limits = np.full(len(judge), float(_LIMIT))
    for app, asked in by_app([_part(one) for one in judge]).items():
        where = [i for i, one in enumerate(judge) if _part(one).app == app]
        if (forest := forests.get(cohorts.best(app))) is not None:
            limits[where] = one_by_one(forest, asked, named=False)
    return Judged.of(judge, limits), len(cohorts.leaves)


def _part(one: Answer) -> Answer:
    return Answer(f"{one.app}/{group(one.prompt) % _PARTS}", one.model, one.prompt, one.length)


def _residual(forest: LengthModel, answers: Sequence[Answer]) -> Vector:
    asked = sample(answers, named=False)
    forecasts = forest.sketches(asked.rows, asked.keys, [float(_LIMIT)] * len(answers))
    foreseen = [[forecast.sketch.quantile(level) for level in LEVELS] for forecast in forecasts]
    return residual(LEVELS, foreseen, [float(one.length) for one in answers])


@dataclass(frozen=True, slots=True)
class Newcomer:
    """How the bounds of an application were after each of `_COUNTS` answers, without a refit: shares and tokens."""

    app: str
    covered: tuple[float, ...]
    reserved: tuple[float, ...]

    def until(self, most: float) -> int | None:
        """Return after how many answers its bound covers and reserves at most so much; None if it never does."""
        good = [c >= _COVERED and r <= most for c, r in zip(self.covered, self.reserved, strict=True)]
        return next((count for count, one in zip(_COUNTS, good, strict=True) if one), None)


def newcomers(
    learn: Sequence[Answer], judge: Sequence[Answer], app: str, factors: Sequence[float]
) -> Iterator[Newcomer]:
    """Yield, for each factor on the lengths of its answers, how an application that the forest does not know is
    foreseen, as means over orders of its first answers. The forest has not seen these answers' prompts either."""
    mine, asked = ([one for one in answers if one.app == app] for answers in (learn, judge))
    first = mine[: _COUNTS[-1]]
    prompts = {one.prompt for one in first}
    model = fit(sample([one for one in learn if one.app != app and one.prompt not in prompts], named=True))
    for factor in factors:
        shares, tokens = [], []
        for order in range(_ORDERS):
            mixed = [_longer(first[i], factor) for i in np.random.default_rng(order).permutation(len(first))]
            later, since, done = [_longer(one, factor) for one in asked], dict[str, Correction](), 0
            for count in _COUNTS:
                if more := mixed[done:count]:
                    model.learn(sample(more, named=True), since)
                done = count
                found = Judged.of(later, bounds(model, later, named=True, since=since))
                shares.append(found.covered[app])
                tokens.append(found.reserved)
        by_count = (np.array(each).reshape(_ORDERS, -1).mean(axis=0).tolist() for each in (shares, tokens))
        yield Newcomer(app, *(tuple(each) for each in by_count))


def _longer(one: Answer, factor: float) -> Answer:
    return Answer(one.app, one.model, one.prompt, max(1, round(one.length * factor)))


def rows(data: Path, quick: bool) -> Iterator[Row]:
    """Yield each row when it is measured. Raises BadTrace if the answers are too few."""
    answers = read(data)
    held = set(held_out(group(one.prompt) for one in answers).tolist())
    learn = [one for one in answers if group(one.prompt) not in held]
    judge = [one for one in answers if group(one.prompt) in held]
    counts = {app: len(own) for app, own in by_app(learn).items()}
    enough = [one for one in judge if counts.get(one.app, 0) >= _LEARNT]
    if not enough or len(learn) < FEWEST:
        raise BadTrace(
            data,
            f"none of its {len(answers)} answers can be judged: an application needs {_LEARNT} answers to learn from "
            f"and others with new prompts, and all applications together {FEWEST}",
        )
    model = fit(sample(learn, named=True))
    ours = Judged.of(enough, one_by_one(model, enough, named=True))
    nameless = Judged.of(enough, one_by_one(fit(sample(learn, named=False)), enough, named=False))
    worst = min(ours.covered.values())
    n = f"{len(ours.covered)} applications with at least {_LEARNT} answers learned, prompts never seen"
    yield row(
        "coverage of the 95 % bound in the application with the least",
        round(worst, 3),
        "share",
        target=_COVERED,
        at_least=True,
        peer="one forest without names",
        peer_value=round(min(nameless.covered.values()), 3),
        note=f"{n}; {ours.note}; without names: {nameless.note}",
    )
    name = "tokens reserved for each that came: one forest that sees names"
    yield _reserved(name, ours, "one forest without names", nameless, target="<= .8 x", limit=0.8)
    cohorts, count = in_cohorts(learn, enough, rounds=3 if quick else 8)
    yield _reserved(name, ours, f"forests of cohorts (Auxo), which became {count}", cohorts)
    yield _reserved(name, ours, "a forest for each application", own_forests(learn, enough))
    known, least = (in_hindsight(enough, bounds(model, enough, named=True), share) for share in (_NOMINAL, _COVERED))
    yield _reserved(
        "the same for an oracle that covers .95 in each application", known, "one forest without names", nameless
    )
    yield _reserved(
        "the same for an oracle that covers .93 in each application", least, "one forest without names", nameless
    )
    apps = sorted(ours.covered)[:: 12 if quick else 1]
    final = {app: Judged.of(own, bounds(model, own, named=True)).reserved for app, own in by_app(enough).items()}
    yield from _newcomer_rows([tuple(newcomers(learn, enough, app, _FACTORS)) for app in apps], final)


def _newcomer_rows(found: Sequence[Sequence[Newcomer]], final: Mapping[str, float]) -> Iterator[Row]:
    needed = [one.until(1.5 * final[one.app]) for one, *_ in found]
    reached = sorted(_COUNTS[-1] + 1 if one is None else one for one in needed)
    median = float(np.median(reached))
    yield row(
        "answers until a new application is covered: one forest that sees names",
        median if median <= _COUNTS[-1] else None,
        "answers",
        target=0.3 * FEWEST,
        peer="a forest for each application: none is grown before",
        peer_value=float(FEWEST),
        note=f"no refit; by application: {needed}; the mean of {_ORDERS} orders",
    )
    at = _COUNTS.index(12)
    for factor, each in zip(_FACTORS, zip(*found, strict=True), strict=True):
        shares, tokens = ([getattr(one, name)[at] for one in each] for name in ("covered", "reserved"))
        yield row(
            f"coverage of a new application after 12 answers, each {factor:g} times as long",
            round(float(np.mean(shares)), 3),
            "share",
            note=f"{min(shares):.3f} in the application with the least; reserves {np.mean(tokens):.2f} x",
        )


def _reserved(
    name: str, ours: Judged, peer: str, theirs: Judged, *, target: str | None = None, limit: float = 0
) -> Row:
    return row(
        name,
        round(ours.reserved, 2),
        "x",
        target=target,
        met=ours.reserved <= limit * theirs.reserved if target else None,
        peer=peer,
        peer_value=round(theirs.reserved, 2),
        note=f"ours {ours.note}; the peer {theirs.note}",
    )


def main() -> None:
    parser = options(__doc__, "fewer rounds and new applications")
    parser.add_argument("--data", type=Path, required=True, help="a folder of traces")
    asked = parser.parse_args()
    show(rows(asked.data, asked.quick), asked.json)


if __name__ == "__main__":
    run(main)
