"""How the classes of recorded values were laid out, where they differ from the classes of now.

A journal key holds a digest of the call's arguments, with the names of their classes and fields. A class that gains a
field with a default, or that moves to another module, gives equal arguments another digest: the call would be taken
for a new one, and an effect would happen twice. So the layouts are read from the journal's own texts, and a value of
now is also looked up as it was written then (`RecordedLayouts.earlier`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice, product
from typing import Any

from ramify.runtime.codec import codec
from ramify.runtime.codec.canonical import sort_encoded
from ramify.runtime.codec.object_parts import ASIDE, TAG, without_aside
from ramify.runtime.codec.type_names import ref_of, resolve

_MOST = 64  # combinations of layouts that are tried for one value
_NAMED_TUPLE = '"namedtuple"'
_UNORDERED = ("set", "frozenset", "dict", "defaultdict")

Names = frozenset[str] | tuple[str, ...] | int | None
"""The names of an object's fields; those of a named tuple in their order, or their number, if the names were not
recorded; None for other objects."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How objects of one class were written: the reference to the class, as JSON, and what they held."""

    ref: str
    names: Names
    private: frozenset[str] | None = None  # of a pydantic model that has such attributes


@dataclass(slots=True)
class RecordedLayouts:
    """The layouts in the texts of one journal, by the reference to the class of now (as JSON)."""

    by_class: dict[str, dict[Layout, None]] = field(default_factory=dict)
    _refs: dict[str, str | None] = field(default_factory=dict)  # the reference of now, by the recorded one

    @classmethod
    def of(cls, texts: Iterable[str]) -> RecordedLayouts:
        """Read the layouts. `texts`: made by `codec.encode`."""
        made = cls()
        for text in texts:
            if not names_classes(text):
                continue
            # of a row that another program has changed: what reads it says so
            with suppress(ValueError, TypeError, AttributeError, RecursionError):
                made._read(json.loads(text))
        return made

    def earlier(self, text: str) -> Iterator[str]:
        """Yield how earlier processes may have written an encoded value: each text decodes to the same value."""
        if not self.by_class or not names_classes(text):
            return
        value = json.loads(text)
        found = dict.fromkeys(layout for one in _objects(value) for layout in _layouts_of(one))
        choices = [
            [each for each in self.by_class.get(now.ref, ()) if _may_have_been(each, now)] or [now] for now in found
        ]
        for chosen in islice(product(*choices), _MOST):
            then = dict(zip(found, chosen, strict=True))
            if all(now == before for now, before in then.items()):
                continue
            before = json.dumps(_written_as(value, then), separators=(",", ":"), ensure_ascii=True)
            if _is_same_now(before, text, then):
                yield before

    def is_reordered(self, text: str) -> bool:
        """Whether an encoded value holds a named tuple whose fields were only recorded in another order. Then its
        digest, which depends on the order, may be that of another recorded value."""
        if _NAMED_TUPLE not in text or not self.by_class:
            return False
        layouts = (layout for one in _objects(json.loads(text)) for layout in _layouts_of(one))
        return any(
            isinstance(now.names, tuple) and now.names not in orders and len(now.names) in map(len, orders)
            for now in layouts
            for orders in [[one.names for one in self.by_class.get(now.ref, ()) if isinstance(one.names, tuple)]]
        )

    def _read(self, value: Any) -> None:
        for layout in (each for one in _objects(value) for each in _layouts_of(one)):
            now = self._ref_now(layout.ref)
            if now is not None:
                self.by_class.setdefault(now, {})[layout] = None

    def _ref_now(self, ref: str) -> str | None:
        if ref not in self._refs:
            try:
                self._refs[ref] = json.dumps(ref_of(resolve(json.loads(ref)), "a recorded class"))
            except Exception:  # noqa: BLE001  a class that is gone, or that a metaclass of the user's own looks up
                self._refs[ref] = None
        return self._refs[ref]


def names_classes(text: str) -> bool:
    """Whether a text made by `codec.encode` may name classes."""
    return '"t":' in text or '"f":' in text


def is_same_by_names(text: str, other: str) -> bool:
    """Whether two texts made by `codec.encode` hold the same value (`codec.is_same`), and their named tuples have the
    same fields at the same places, if both texts tell them: texts of earlier versions do not."""
    if not codec.is_same(text, other):
        return False
    if text == other or _NAMED_TUPLE not in text:
        return True
    told = _with_names(text), _with_names(other)
    return None in told or codec.is_same(*map(str, told))


def _with_names(text: str) -> str | None:
    """Return the text with the names of the fields of named tuples as a part of the digest; None if one has none."""
    untold = []

    def named(one: dict[str, Any]) -> dict[str, Any]:
        if one.get(TAG) != "namedtuple":
            return one
        names = (one.get(ASIDE) or {}).get("fields")
        untold.extend([one] if names is None else [])
        return one | {"names": names}

    found = json.dumps(json.loads(text, object_hook=named))
    return None if untold else found


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    todo = [value]
    while todo:
        one = todo.pop()
        if isinstance(one, list):
            todo += one
        elif isinstance(one, dict):
            if TAG in one:
                yield one
            todo += one.values()


def _layouts_of(one: Mapping[str, Any]) -> Iterator[Layout]:
    """Yield the layout of an encoded object, and the references to other classes that it holds."""
    if "t" in one:
        yield _layout_of(one)
    yield from (Layout(json.dumps(one[part]), None) for part in _other_refs(one))


def _other_refs(one: Mapping[str, Any]) -> list[str]:
    """Return the parts of an encoded object that name a class: the one that makes a defaultdict's items, and the one
    with type arguments of which the object was made."""
    return [part for part in ("f", "orig") if one.get(part) is not None]


def _layout_of(one: Mapping[str, Any]) -> Layout:
    ref, kind, body = json.dumps(one["t"]), one[TAG], one.get("v")
    if kind in ("dataclass", "model") and isinstance(body, dict):
        private = one.get("private")
        inside = frozenset(private) if isinstance(private, dict) and TAG not in private else None
        return Layout(ref, frozenset({*body, *one.get("unset", ())}), inside)
    if kind == "namedtuple" and isinstance(body, list):
        return Layout(ref, tuple(one[ASIDE]["fields"]) if "fields" in one.get(ASIDE, {}) else len(body))
    return Layout(ref, None)


def _may_have_been(before: Layout, now: Layout) -> bool:
    """Whether the class may have gained fields, and kept those that it had."""
    if isinstance(before.names, frozenset) and isinstance(now.names, frozenset):
        return before.names <= now.names and (before.private or frozenset()) <= (now.private or frozenset())
    if isinstance(now.names, tuple):
        if isinstance(before.names, int):
            return before.names <= len(now.names)
        return isinstance(before.names, tuple) and set(before.names) <= set(now.names)
    return before.names is None and now.names is None


def _written_as(value: Any, then: Mapping[Layout, Layout]) -> Any:
    if isinstance(value, list):
        return [_written_as(one, then) for one in value]
    if not isinstance(value, dict):
        return value
    found = {key: _written_as(one, then) for key, one in value.items()}
    if TAG not in value:
        return found
    for part in _other_refs(value):
        ref = Layout(json.dumps(value[part]), None)
        found[part] = json.loads(then.get(ref, ref).ref)
    if value[TAG] in ("set", "frozenset"):
        found["v"] = sort_encoded(found["v"])
    before = then.get(_layout_of(value)) if "t" in value else None
    if before is None or before == _layout_of(value):
        return found
    found["t"] = json.loads(before.ref)
    if isinstance(before.names, int):
        found["v"] = found["v"][: before.names]
    elif isinstance(before.names, tuple):
        given = dict(zip(found[ASIDE]["fields"], found["v"], strict=True))
        found["v"] = [given[name] for name in before.names]
        found[ASIDE] = {**found[ASIDE], "fields": list(before.names)}
    elif isinstance(before.names, frozenset):
        _leave_out_gained_fields(found, before, before.names)
    return found


def _leave_out_gained_fields(found: dict[str, Any], before: Layout, names: frozenset[str]) -> None:
    found["v"] = {name: one for name, one in found["v"].items() if name in names}
    if "unset" in found:
        found["unset"] = [name for name in found["unset"] if name in names]
        if not found["unset"]:
            del found["unset"]
    if "set" in found:
        found["set"] = [name for name in found["set"] if name in names]
        if frozenset(found["set"]) == names:
            del found["set"]
    private = found.pop("private", None)
    if isinstance(private, dict) and before.private is not None:
        private = {name: one for name, one in private.items() if name in before.private}
    if private is not None and before.private is not None:
        found["private"] = private


def _is_same_now(before: str, text: str, then: Mapping[Layout, Layout]) -> bool:
    """Whether an earlier text decodes to the value of a text of now, as far as the defaults of gained fields are the
    same each time: a time or a random number is not compared."""
    try:
        again = codec.encode(codec.decode(before))
        if codec.is_same(again, text):
            return True
        once_more = codec.encode(codec.decode(before))
        return _differs_where_each_time(*(_in_order(json.loads(one), then) for one in (again, once_more, text)))
    except Exception:  # noqa: BLE001  a class that does not take these fields
        return False


def _differs_where_each_time(again: Any, once_more: Any, now: Any) -> bool:
    """Whether `now` is the same as `again` in all parts in which that is the same as `once_more`."""
    kinds = {(type(one), one.get(TAG) if isinstance(one, dict) else None) for one in (again, once_more, now)}
    if len(kinds) == 1 and isinstance(again, dict):
        if again.keys() != once_more.keys():
            return True
        return again.keys() == now.keys() and all(
            _differs_where_each_time(again[key], once_more[key], now[key]) for key in again
        )
    if len(kinds) == 1 and isinstance(again, list):
        if len(again) != len(once_more):
            return True
        return len(again) == len(now) and all(map(_differs_where_each_time, again, once_more, now))
    return _text(again) == _text(now) or _text(again) != _text(once_more)


def _in_order(value: Any, then: Mapping[Layout, Layout]) -> Any:
    """Return an encoded value without the state aside; items that have no order, such as those of a set, come in the
    order of what earlier processes wrote of them."""
    if isinstance(value, list):
        return [_in_order(one, then) for one in value]
    if not isinstance(value, dict):
        return value
    found = {key: _in_order(one, then) for key, one in value.items() if key != ASIDE or TAG not in value}
    if value.get(TAG) in _UNORDERED or (value.get(TAG) == "sub" and value.get("b") == "dict"):
        items = sorted(value["v"], key=lambda one: _text(without_aside(_written_as(one, then))))
        found["v"] = [_in_order(one, then) for one in items]
    return found


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


__all__ = ["Layout", "RecordedLayouts", "is_same_by_names", "names_classes"]
