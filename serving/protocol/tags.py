"""SLO tags: how a workflow's deadline and shape travel with each model call.

`SLOTags` is one flat dataclass, because vLLM's `vllm_xargs` takes no nested values. Tags travel in three ways: in the
request body under `vllm_xargs`, in the header `x-ramify-tags` (JSON), or as the thesis's own body fields (`deadline`,
`target_ttft`, `target_tbt`, `waiting_time`). All times are seconds. A time that is "left" counts from the moment of
sending, and each hop rewrites it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace

from ramify.serving.errors import BadTags
from ramify.serving.protocol.length_sketch import LEVELS, LONGEST, LengthSketch

HEADER = "x-ramify-tags"
CLASSES = ("latency", "stream", "deadline", "compound", "best_effort")

# The thesis's body fields (§3), and the tags that they mean.
_THESIS_FIELDS = {
    "deadline": "slo_deadline_s",
    "target_ttft": "slo_ttft_s",
    "target_tbt": "slo_tbt_s",
    "waiting_time": "slo_waiting_s",
}
_OUR_PREFIXES = ("slo_", "compound_")  # an unknown name with such a prefix is a typing mistake

LEAST_TBT_S = 1e-4  # of a reader: sums over its tokens stay numbers, whatever it waits
_YEAR_S = 366 * 86_400.0
_MAX_UNIX_S = 1e11  # the year 5138: catches milliseconds sent as seconds
_MAX_COUNT = 1_000_000
LONGEST_NAME = 256
_MAX_LIST = 1024

XargValue = str | int | float | list[float]


@dataclass(frozen=True, slots=True)
class SLOTags:
    """All tags of one call; None means not given. A call without tags is best effort: no deadline, never starved.

    Raises BadTags, which names the field, for a value of the wrong type, or one that is negative, infinite or absurd.
    """

    slo_deadline_s: float | None = None  # left until the whole answer is needed
    slo_ttft_s: float | None = None  # left until the first token is needed
    slo_tbt_s: float | None = None  # time between tokens
    slo_waiting_s: float | None = None  # longest wait before admission
    slo_think_s: float | None = None  # left until the model must have finished thinking; then slo_tbt_s applies
    slo_class: str | None = None  # one of CLASSES
    slo_pace: int | None = None  # 1: the gateway gives a stream out at its reader's pace; 0: as it comes
    compound_id: str | None = None  # the workflow run
    compound_stage: int | None = None  # index of this stage
    compound_stages: int | None = None  # number of stages
    compound_width: int | None = None  # calls in this stage
    compound_last: int | None = None  # 1 in the last stage, else 0
    compound_deadline_s: float | None = None  # from the first request seen with this id
    compound_deadline_at: float | None = None  # Unix seconds
    compound_branch: str | None = None  # of the run: its calls continue each other's context
    compound_ttl_s: float | None = None  # after the answer, in which the branch may go on; 0: it does not
    compound_due_s: float | None = None  # left until this stage's share of the deadline ends: a goal, not a limit
    plan_rest: tuple[float, ...] | None = None
    fork_group: str | None = None
    fork_size: int | None = None
    fork_need: int | None = None
    app_id: str | None = None
    length_quantiles: tuple[float, ...] | None = None
    goodput_weight: float | None = None

    def __post_init__(self) -> None:
        for name, problem_with in _CHECKS.items():
            value = getattr(self, name)
            problem = None if value is None else problem_with(value)
            if problem:
                raise BadTags(name, f"{problem}, got {_shown(value)}")
        reads = self.slo_class == "stream" or self.slo_pace
        if reads and self.slo_tbt_s is not None and self.slo_tbt_s < LEAST_TBT_S:
            said = f"a reader takes at least {LEAST_TBT_S:g} s for a token: name its time, or leave it out"
            raise BadTags("slo_tbt_s", f"{said}, got {_shown(self.slo_tbt_s)}")
        for part, whole in (("compound_stage", "compound_stages"), ("fork_need", "fork_size")):
            a, b = getattr(self, part), getattr(self, whole)
            if a is not None and b is not None and a > b:
                raise BadTags(part, f"must not exceed {whole}={b}, got {a}")

    def to_xargs(self) -> dict[str, XargValue]:
        """The tags that are given, as `vllm_xargs` takes them."""
        said = {field.name: getattr(self, field.name) for field in fields(self)}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in said.items() if v is not None}

    @classmethod
    def from_xargs(cls, xargs: Mapping[str, object]) -> SLOTags:
        """Read tags from `vllm_xargs`, which may hold other software's keys too. Raises BadTags."""
        for name in xargs:
            if name.startswith(_OUR_PREFIXES) and name not in _CHECKS:
                raise BadTags(name, "no such tag")
        said = {name: _frozen(xargs[name]) for name in _CHECKS if name in xargs}
        return cls(**said)  # type: ignore[arg-type]  # what __post_init__ is for

    def to_header(self) -> str:
        return json.dumps(self.to_xargs(), separators=(",", ":"))

    @classmethod
    def from_header(cls, header: str) -> SLOTags:
        try:
            value = json.loads(header, object_pairs_hook=_no_twins)
        except BadTags:
            raise
        except (ValueError, RecursionError) as error:
            raise BadTags(HEADER, f"not JSON: {error}") from error
        if not isinstance(value, dict):
            raise BadTags(HEADER, f"must be a JSON object, got {_shown(value)}")
        for name in value:
            if name not in _CHECKS:
                raise BadTags(name, "no such tag")
        return cls.from_xargs(value)

    @classmethod
    def from_body(cls, body: Mapping[str, object]) -> SLOTags:
        """Merge the tags in `vllm_xargs` with the thesis's fields of a request body.

        Raises BadTags where the two contradict each other, and for a tag beside them in the body, which no engine
        would read.
        """
        for name in body:
            if name in _CHECKS or name.startswith(_OUR_PREFIXES):
                raise BadTags(name, "not read from the body itself: put it in vllm_xargs")
        xargs = body.get("vllm_xargs")
        if xargs is None:
            xargs = {}
        if not isinstance(xargs, Mapping):
            raise BadTags("vllm_xargs", f"must be an object, got {_shown(xargs)}")
        thesis: dict[str, object] = {}
        for theirs, ours in _THESIS_FIELDS.items():
            if body.get(theirs) is not None:
                problem = _CHECKS[ours](body[theirs])
                if problem:
                    raise BadTags(theirs, f"{problem}, got {_shown(body[theirs])}")
                thesis[ours] = body[theirs]
        return cls.from_xargs(xargs).merged(cls.from_xargs(thesis))

    def merged(self, other: SLOTags) -> SLOTags:
        """The tags of both. Raises BadTags where two routes give different values."""
        mine, theirs = self.to_xargs(), other.to_xargs()
        for name in mine.keys() & theirs.keys():
            if mine[name] != theirs[name]:
                raise BadTags(name, f"two routes disagree: {_shown(mine[name])} and {_shown(theirs[name])}")
        return SLOTags.from_xargs({**mine, **theirs})

    def aged(self, by_s: float) -> SLOTags:
        """The same tags `by_s` seconds later. What is left shrinks, down to 0; rates and clock times stay."""

        def later(left: float | None) -> float | None:
            return None if left is None else max(0.0, left - by_s)

        return replace(
            self,
            slo_deadline_s=later(self.slo_deadline_s),
            slo_ttft_s=later(self.slo_ttft_s),
            slo_waiting_s=later(self.slo_waiting_s),
            slo_think_s=later(self.slo_think_s),
            # A hop that knows this id keeps its own count; to any other hop this is what is left.
            compound_deadline_s=later(self.compound_deadline_s),
            compound_due_s=later(self.compound_due_s),
        )

    def deadline_left(self, now_unix: float) -> float | None:
        """Seconds until the earliest completion deadline given here; None for best effort.

        `compound_deadline_s` counts from a moment that only the gateway knows, so it counts as an upper bound.
        """
        at = None if self.compound_deadline_at is None else max(0.0, self.compound_deadline_at - now_unix)
        said = [s for s in (self.slo_deadline_s, self.compound_deadline_s, at) if s is not None]
        return min(said, default=None)


def is_known_tag(name: str) -> bool:
    """True for a key of `vllm_xargs` that is a tag."""
    return name in _CHECKS


def is_tag(name: str) -> bool:
    """True for a tag, a field of the thesis, and `vllm_xargs` itself."""
    return name in _CHECKS or name in _THESIS_FIELDS or name == "vllm_xargs"


def without_tags(body: Mapping[str, object]) -> dict[str, object]:
    """The request body without any tag, for servers that refuse unknown fields.

    Other software's keys in `vllm_xargs` stay.
    """
    plain = {k: v for k, v in body.items() if k not in _THESIS_FIELDS and k != "vllm_xargs"}
    xargs = body.get("vllm_xargs")
    if isinstance(xargs, Mapping) and (others := {k: v for k, v in xargs.items() if k not in _CHECKS}):
        plain["vllm_xargs"] = others
    return plain


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _seconds(value: object) -> str | None:
    ok = _is_number(value) and 0 <= value <= _YEAR_S  # type: ignore[operator]
    return None if ok else "must be seconds, from 0 to a year"


def _unix(value: object) -> str | None:
    ok = _is_number(value) and 0 <= value <= _MAX_UNIX_S  # type: ignore[operator]
    return None if ok else "must be a Unix time in seconds"


def _count(value: object) -> str | None:
    ok = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_COUNT
    return None if ok else f"must be a whole number from 0 to {_MAX_COUNT}"


def _flag(value: object) -> str | None:
    return None if isinstance(value, int) and not isinstance(value, bool) and value in (0, 1) else "must be 0 or 1"


def name_problem(value: object) -> str | None:
    """Say what keeps a value from being a name of a workflow, branch, group or application; None if it is one."""
    ok = isinstance(value, str) and 0 < len(value) <= LONGEST_NAME and value.isprintable()
    return None if ok else f"must be printable text of 1 to {LONGEST_NAME} characters"


def _class(value: object) -> str | None:
    return None if value in CLASSES else f"must be one of {', '.join(CLASSES)}"


def _numbers(value: object) -> str | None:
    ok = (
        isinstance(value, tuple)
        and len(value) <= _MAX_LIST
        and all(_is_number(v) and 0 <= v <= LONGEST for v in value)
    )
    return None if ok else f"must be a list of at most {_MAX_LIST} numbers from 0 to {LONGEST:.0f}"


def _quantiles(value: object) -> str | None:
    if problem := _numbers(value):
        return problem
    try:
        LengthSketch.from_wire(value)  # type: ignore[arg-type]
    except ValueError:
        return f"must hold {len(LEVELS)} values, one for each level of the sketch, none below the one before"
    return None


def _plan_rest(value: object) -> str | None:
    if problem := _numbers(value):
        return problem
    return "must hold four numbers for each later stage" if len(value) % 4 else None  # type: ignore[arg-type]


def _weight(value: object) -> str | None:
    ok = _is_number(value) and 0 < value <= _MAX_COUNT  # type: ignore[operator]
    return None if ok else f"must be above 0 and at most {_MAX_COUNT}"


_CHECKS: dict[str, Callable[[object], str | None]] = {
    "slo_deadline_s": _seconds,
    "slo_ttft_s": _seconds,
    "slo_tbt_s": _seconds,
    "slo_waiting_s": _seconds,
    "slo_think_s": _seconds,
    "slo_class": _class,
    "slo_pace": _flag,
    "compound_id": name_problem,
    "compound_stage": _count,
    "compound_stages": _count,
    "compound_width": _count,
    "compound_last": _flag,
    "compound_deadline_s": _seconds,
    "compound_deadline_at": _unix,
    "compound_branch": name_problem,
    "compound_ttl_s": _seconds,
    "compound_due_s": _seconds,
    "plan_rest": _plan_rest,
    "fork_group": name_problem,
    "fork_size": _count,
    "fork_need": _count,
    "app_id": name_problem,
    "length_quantiles": _quantiles,
    "goodput_weight": _weight,
}


def _no_twins(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """The fields of a JSON object. Raises BadTags for a field that occurs twice, where JSON would keep the last."""
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise BadTags(name, "given twice in one object")
        found[name] = value
    return found


def _frozen(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
