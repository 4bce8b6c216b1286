"""The split of prompts into training and held-out ones, shared by the request analyzer and the ranking model."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

SHARE = 0.4  # share of the prompts that is held out


def group(prompt: str) -> int:
    """Return a number for a prompt, so that all models' answers to it are on the same side of the split."""
    return zlib.crc32(prompt.encode("utf-8", "surrogatepass")) & 0x7FFFFFFF


def held_out(groups: Iterable[int]) -> npt.NDArray[np.int32]:
    """Return the held-out groups. They do not depend on the order of the prompts."""
    prompts = np.unique(np.fromiter(groups, dtype=np.int32))
    return np.random.default_rng(0).permutation(prompts)[: int(len(prompts) * SHARE)]
