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
from ramify.runtime.codec.object_state import ASIDE, TAG
from ramify.runtime.codec.type_names import ref_of, resolve

_MOST = 64  # combinations of layouts that are tried for one value

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
            if '"t":' not in text:
                continue
            with suppress(ValueError):  # a row that another program has changed: what reads it says so
                made._read(json.loads(text))
        return made

    def earlier(self, text: str) -> Iterator[str]:
        """Yield how earlier processes may have written an encoded value: each text decodes to the same value."""
        if '"t":' not in text or not self.by_class:
            return
        value = json.loads(text)
        found = dict.fromkeys(layout for one in _objects(value) if (layout := _layout_of(one)) is not None)
        choices = [
            [each for each in self.by_class.get(now.ref, ()) if _may_have_been(each, now)] or [now] for now in found
        ]
        for chosen in islice(product(*choices), _MOST):
            then = dict(zip(found, chosen, strict=True))
            if all(now == before for now, before in then.items()):
                continue
            before = json.dumps(_written_as(value, then), separators=(",", ":"), ensure_ascii=True)
            if _is_same_now(before, text):
                yield before

    def _read(self, value: Any) -> None:
        for one in _objects(value):
            layout = _layout_of(one)
            if layout is None:
                continue
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


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    todo = [value]
    while todo:
        one = todo.pop()
        if isinstance(one, list):
            todo += one
        elif isinstance(one, dict):
            if TAG in one and "t" in one:
                yield one
            todo += one.values()


def _layout_of(one: Mapping[str, Any]) -> Layout | None:
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
    layout = _layout_of(value) if TAG in value and "t" in value else None
    if layout is None or then[layout] == layout:
        return found
    before = then[layout]
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


def _is_same_now(before: str, text: str) -> bool:
    """Whether an earlier text decodes to the value of a text of now. A default that is different each time, such as
    a time, counts as the same."""
    try:
        again, once_more = (codec.encode(codec.decode(before)) for _ in range(2))
    except Exception:  # noqa: BLE001  a class that does not take these fields
        return False
    return codec.is_same(again, text) or not codec.is_same(again, once_more)


__all__ = ["Layout", "RecordedLayouts"]
