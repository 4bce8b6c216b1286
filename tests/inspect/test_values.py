from __future__ import annotations

import json
from dataclasses import dataclass

from ramify.inspect.values import plain, spoken
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
