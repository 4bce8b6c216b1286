from __future__ import annotations

import json
from dataclasses import dataclass

from ramify.inspect.values import json_line, plain, spoken
from ramify.runtime.codec import codec


@dataclass(frozen=True)
class Found:
    place: tuple[int, str]
    data: bytes


def test_plain_values_have_no_codec_tags_and_load_no_types() -> None:
    kept = codec.encode([Found((1, "a"), b"raw\xff"), {1: 2.5}])
    assert plain(json.loads(kept)) == [
        {"Found": {"place": [1, "a"], "data": "raw\N{REPLACEMENT CHARACTER}"}},
        {"1": 2.5},
    ]
    assert spoken({"$": "dataclass", "t": "no.such:Thing", "v": {"x": 1}}) == '{"Thing": {"x": 1}}'


def cut(**changed: object) -> dict[str, object]:
    return {"$": "cut", "digest": "d", "bytes": 3 << 20, "exact": True, "begins": '"ab', **changed}


def test_what_stands_for_a_long_value_tells_its_size() -> None:
    assert json_line(json.dumps(cut()), 60) == '"ab… (3.0 MB in all; --json prints it whole)'
    assert plain([cut(exact=False)]) == ['"ab… (more than 3.0 MB in all)']


def test_an_object_with_the_same_tag_is_shown() -> None:
    """The JSON that a model of the user's writes may have any tag."""
    assert plain({"$": "pydantic", "t": "m:M", "v": {"x": {"$": "cut"}}}) == {"M": {"x": {"$": "cut"}}}
