"""How many cases a test of random or repeated cases tries: a few in `make test`, all in CI's tier `patient`."""

from __future__ import annotations

import os

PATIENT = "RAMIFY_SLOW" in os.environ


def sample(few: int, all: int) -> int:
    return all if PATIENT else few
