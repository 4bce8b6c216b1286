"""Digests that are taken of the text itself are those of the parsed value. Texts of earlier versions can be decoded,
and journal keys with their digests are found again."""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.runtime.codec import codec, encoded_value, json_parts
from ramify.runtime.codec.canonical import canonical
from ramify.runtime.codec.digests import digest_in_journal
from ramify.runtime.codec.encoded_value import Encoded
from tests.runtime.kept_values import BERLIN, VALUES, Coded, Colour, Foo, Frozen, Holder, Made, Pair, Text

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.sampled_from("{}$")
PLAIN_VALUES = st.recursive(
    SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(), v, max_size=3), max_leaves=5
)


@given(PLAIN_VALUES)
def test_of_any_value(value: object) -> None:
    assert Encoded(value).digest() == codec.digest_text(codec.encode(value)) == of_parsed(value)


@given(st.dictionaries(st.text() | st.just("$") | st.integers(), PLAIN_VALUES, max_size=3))
def test_of_arguments(arguments: dict[str, object]) -> None:
    assert Encoded(arguments).digest() == of_parsed(arguments)


def of_parsed(value: object) -> str:
    """The digest of the parsed text, as the first version computed it."""
    found = json.dumps(canonical(json.loads(codec.encode(value))), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(found.encode()).hexdigest()


HERE = "tests.runtime.kept_values"

STORED: list[tuple[str, Any]] = [
    ('[1,null,true,1.5,"x",-0.0]', [1, None, True, 1.5, "x", -0.0]),
    ('{"$":"float","v":"inf"}', float("inf")),
    ('{"$":"bytes","v":"/w=="}', b"\xff"),
    ('{"$":"datetime","v":"2026-01-02T03:04:05+00:00"}', datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
    (
        '{"$":"datetime","v":"2026-07-01T00:00:00+02:00"}',
        datetime(2026, 7, 1, tzinfo=timezone(timedelta(hours=2))),
    ),
    ('{"$":"date","v":"2026-01-02"}', datetime(2026, 1, 2).date()),
    ('{"$":"timedelta","v":1.5}', timedelta(seconds=1.5)),
    ('{"$":"decimal","v":"1.50"}', Decimal("1.50")),
    ('{"$":"uuid","v":"00000000-0000-0000-0000-000000000007"}', UUID(int=7)),
    ('{"$":"complex","v":[1.0,-0.0]}', complex(1, -0.0)),
    ('{"$":"path","v":"a/b"}', Path("a/b")),
    ('{"$":"tuple","v":[1,{"$":"set","v":[2]},{"$":"frozenset","v":[3]}]}', (1, {2}, frozenset({3}))),
    ('{"$":"dict","v":[[1,2],["$",3]]}', {1: 2, "$": 3}),
    (f'{{"$":"enum","t":"{HERE}:Colour","v":"red"}}', Colour.RED),
    (f'{{"$":"namedtuple","t":"{HERE}:Pair","v":[1,"x"]}}', Pair(1)),
    (f'{{"$":"dataclass","t":"{HERE}:Made","v":{{"x":1,"y":[],"z":3}}}}', Made(1, w=3)),
    (f'{{"$":"dataclass","t":"{HERE}:Frozen","v":{{"x":1}}}}', Frozen(1)),
    (f'{{"$":"pydantic","t":"{HERE}:Holder","v":{{"foo":{{"a":2,"b":null}}}}}}', Holder(foo=Foo(a=2, b=None))),
]


@pytest.mark.parametrize(("text", "value"), STORED, ids=[text[:30] for text, _ in STORED])
def test_values_of_earlier_versions_are_decoded(text: str, value: Any) -> None:
    back = codec.decode(text)
    assert back == value
    assert type(back) is type(value)


def test_errors_of_earlier_versions_are_decoded() -> None:
    """Those of the first version, which stored no slots, and of later ones."""
    args, state = {"$": "tuple", "v": ["7 x"]}, {"code": 7, "why": "x"}
    for more in ([], [{}], [{}, {"$": "error", "t": "builtins:KeyError", "v": [{"$": "tuple", "v": ["k"]}, {}]}]):
        stored = {"$": "error", "t": f"{HERE}:Coded", "v": [args, state, *more]}
        back = codec.decode(json.dumps(stored))
        assert (type(back), str(back), back.code) == (Coded, "7 x", 7)
        assert repr(back.__cause__) == ("KeyError('k')" if len(more) == 2 else "None")


def journal(*digests: str) -> Any:
    return SimpleNamespace(
        has_digests=bool(digests),
        has_digest=lambda digest: digest in digests,
        earlier_texts=lambda _: (),
        is_reordered=lambda _: False,
    )


CHANGED: list[tuple[Any, str]] = [
    (Foo(a=2), f'{{"$":"pydantic","t":"{HERE}:Foo","v":{{"a":2,"b":null}}}}'),
    ({"x": [Foo(a=2)]}, f'{{"x":[{{"$":"pydantic","t":"{HERE}:Foo","v":{{"a":2,"b":null}}}}]}}'),
    (
        Frozen(Foo()),
        f'{{"$":"dataclass","t":"{HERE}:Frozen","v":{{"x":{{"$":"pydantic","t":"{HERE}:Foo","v":'
        '{"a":1,"b":null}}}}',
    ),
    (datetime(2026, 7, 1, tzinfo=BERLIN), '{"$":"datetime","v":"2026-07-01T00:00:00+02:00"}'),
    (datetime(2026, 1, 1, fold=1), '{"$":"datetime","v":"2026-01-01T00:00:00"}'),
    (timedelta(days=300_000, microseconds=1), '{"$":"timedelta","v":25920000000.000001}'),
    ({Text("k"): 1}, '{"k":1}'),
]


@pytest.mark.parametrize(("value", "before"), CHANGED, ids=[before[:40] for _, before in CHANGED])
def test_the_journal_of_an_earlier_version_is_asked_by_its_own_digest(value: Any, before: str) -> None:
    text = codec.encode(value)
    now, then = codec.digest_text(text), codec.digest_text(before)
    assert now != then
    assert digest_in_journal(journal(), value, Encoded(value)) == now
    assert digest_in_journal(journal("another"), value, Encoded(value)) == now
    assert digest_in_journal(journal(then), value, Encoded(value)) == then
    assert digest_in_journal(journal(then, now), value, Encoded(value)) == now


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_every_value_has_a_digest_under_an_earlier_journal(value: Any) -> None:
    assert digest_in_journal(journal("another"), value, Encoded(value)) == of_parsed(value)


@dataclass
class Swapped:
    b: object
    a: object


MANY = 200
LONG = {
    "unsorted dict": lambda: {f"key {at}": f"value {at}" for at in range(MANY)},
    "sorted dict": lambda: {f"{at:09}": f"value {at}" for at in range(MANY)},
    "dicts": lambda: [{"a": at, "b": [at, "x"], "c": {"d": None}} for at in range(MANY)],
    "unsorted dicts": lambda: [{"b": at, "a": 1.5, "10": True, "9": ""} for at in range(MANY)],
    "bytes": lambda: [b"x" * 90] * MANY,
    "bytes in a dict": lambda: {"b": [b"x" * 90] * MANY, "a": (1, 2)},
    "not finite": lambda: [{"a": float("nan"), "b": float("-inf"), "c": -0.0}] * MANY,
    "other letters": lambda: [{"é": "ü😀", "a": "\ud800", "b": "\x7f\x00"}] * MANY,
    "letters as keys": lambda: {f"{chr(0x10000 + at)}": at for at in range(MANY)},
    "pairs of surrogates": lambda: [{"a": "\ud83d\ude00"}] * MANY,
    "tag as key": lambda: [{"$": "bytes", "v": "x"}] * MANY,
    "numbers as keys": lambda: {at: {"b": 1, "a": 2} for at in range(MANY)},
    "sets": lambda: [{"b", "a", "c"}] * MANY,
    "objects": lambda: [Swapped(1, {"b": 1, "a": 2})] * MANY,
    "long strings": lambda: {"b": "x\n" * 1_000_000, "a": "é" * 100_000, "c": [{"z": 1, "y": 2}] * 10},
    "text with a tag": lambda: [{"b": '"$":', "a": '"$"'}] * MANY,
    "booleans": lambda: [True, 1, None, 10**30] * MANY + [{}],
}


@pytest.mark.parametrize("which", LONG)
def test_the_digest_of_a_long_value_is_that_of_its_canonical_text(
    which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((encoded_value, "PIECE"), (encoded_value, "_DIVIDED"), (json_parts, "PIECE")):
        monkeypatch.setattr(module, name, 1000)
    value = LONG[which]()
    for unicode in (False, True):
        text = codec.encode(value, unicode=unicode)
        assert len(text) > 1000
        assert text == json_of(value) or "$" in text or not text.isascii()
        assert codec.encode(codec.decode(text), unicode=unicode) == text
        assert Encoded(value, unicode=unicode).digest() == codec.digest_text(text) == of_parsed(value)
        arguments = {"value": value, "other": 1}
        assert Encoded(arguments, unicode=unicode).digest() == of_parsed(arguments)


@pytest.mark.parametrize("part", [{"a": 1, "b": 2}, {"b": 1, "a": 2}])
def test_nothing_of_an_encoded_value_changes_with_the_value(
    part: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread may change it, or the step that gets a copy."""
    for module, name in ((encoded_value, "PIECE"), (encoded_value, "_DIVIDED"), (json_parts, "PIECE")):
        monkeypatch.setattr(module, name, 1000)
    arguments = {"value": [dict(part) for _ in range(MANY)], "data": bytearray(b"x" * MANY), "few": [[1]]}
    before, text = copy.deepcopy(arguments), codec.encode(arguments)
    encoded = Encoded(arguments)
    for changed in (arguments, encoded.value()):
        changed["value"][0]["a"] = 3
        del changed["value"][9:]
        changed["data"][:] = b"y"
        changed["few"][0].append(2)
        assert (encoded.value(), encoded.digest(), encoded.text()) == (before, codec.digest_text(text), text)


def json_of(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), default=str)
