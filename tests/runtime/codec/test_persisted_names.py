"""Types of Ramify that an earlier release stored are still found, and stored, under their stored names."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramify.runtime.codec import codec
from ramify.runtime.codec.persisted_names import PERSISTED_NAMES
from ramify.runtime.codec.type_names import ref_of, resolve
from ramify.runtime.effects.fence import Happened
from ramify.serving.types import ChatRequest, Message

STORED_BY_0_1_0 = Path(__file__).with_name("stored_types_0.1.0.txt").read_text().split()


@pytest.mark.parametrize("name", STORED_BY_0_1_0)
def test_a_stored_type_keeps_its_name(name: str) -> None:
    found = resolve(name)
    assert isinstance(found, type)
    assert ref_of(found, "it") == name


def test_every_entry_names_a_type_of_now() -> None:
    assert all(isinstance(resolve(name), type) for name in PERSISTED_NAMES)
    assert len(set(PERSISTED_NAMES.values())) == len(PERSISTED_NAMES)


def test_the_digest_of_a_model_call_is_that_of_0_1_0() -> None:
    request = ChatRequest(messages=(Message("user", "Go on?"),), max_tokens=1, seed=3)
    assert codec.digest(request) == "3a5a7515dcfd5820d4bab8fc1a15d8e339250f2b5f6772018869d72a1fb70452"


def test_a_moved_type_is_written_under_its_stored_name() -> None:
    text = codec.encode(Happened(3))
    assert "ramify.runtime.effects:Happened" in text
    assert codec.decode(text) == Happened(3)
