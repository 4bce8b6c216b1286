"""A value whose class has gained a field is looked up as it was written before."""

from __future__ import annotations

import json
from dataclasses import dataclass

from ramify.runtime.codec import codec
from ramify.runtime.codec.recorded_layouts import RecordedLayouts


@dataclass
class Order:
    id: str
    unit: str = "eur"


def before(text: str) -> str:
    """The text as it was written when the class had no `unit`."""
    value = json.loads(text)
    del value["v"]["unit"]
    return json.dumps(value, separators=(",", ":"))


def test_the_earlier_text_of_a_value_has_the_fields_of_then() -> None:
    recorded = before(codec.encode(Order("a")))
    layouts = RecordedLayouts.of(['{"t":', "3", recorded])
    now = codec.encode(Order("b"))
    assert list(layouts.earlier(now)) == [before(now)]
    assert list(layouts.earlier(codec.encode([Order("b")]))) == [f"[{before(now)}]"]


def test_a_value_that_the_class_of_then_did_not_have_has_no_earlier_text() -> None:
    layouts = RecordedLayouts.of([before(codec.encode(Order("a")))])
    assert not list(layouts.earlier(codec.encode(Order("a", "usd"))))
    assert not list(layouts.earlier(codec.encode("a")))
    assert not list(RecordedLayouts.of([codec.encode(Order("a"))]).earlier(codec.encode(Order("a"))))
