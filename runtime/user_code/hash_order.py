"""The order in which this process iterates over sets of strings.

Python salts the hashes of strings with a number that is another in each process, unless `PYTHONHASHSEED` states one.
"""

from __future__ import annotations

import hashlib
import os
import sys
from functools import cache

_WORDS = 64  # so many words are in the same order in two processes by chance only once in 64! times


@cache
def order_of_sets() -> str:
    """Return a text that is equal in two processes if both iterate over sets of strings in the same order. It does
    not disclose the salt."""
    order = " ".join({f"word {number}" for number in range(_WORDS)})
    return hashlib.sha256(order.encode()).hexdigest()[:16]


def is_order_fixed() -> bool:
    """Whether each process that is started like this one iterates over sets of strings in the same order."""
    return not sys.flags.ignore_environment and os.environ.get("PYTHONHASHSEED", "random").isdigit()
