"""The prompts that no predictor of lengths learns from: one split for the request analyzer and the ranking head."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

SHARE = 0.4  # of the prompts, held out


def group(prompt: str) -> int:
    """What stands for a prompt: all models' answers to it are on one side."""
    return zlib.crc32(prompt.encode()) & 0x7FFFFFFF


def held_out(groups: Iterable[int]) -> npt.NDArray[np.int32]:
    """Those of the groups that are judged by; the same for the same prompts, in whatever order they come."""
    prompts = np.unique(np.fromiter(groups, dtype=np.int32))
    return np.random.default_rng(0).permutation(prompts)[: int(len(prompts) * SHARE)]
