"""A run with a value of eight pieces, killed while it is written: `python long_value_app.py FOLDER PIECE [RUN]`.

PIECE: after which piece of the first long text to kill the process; 0: not at all. With RUN, that run is resumed.
Prints the result.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ramify import Runtime, step, workflow
from ramify.runtime.store import blobs

FOLDER, PIECE = Path(sys.argv[1]), int(sys.argv[2])


@step(effect="pure")
async def make() -> str:
    with (FOLDER / "made").open("a") as made:
        made.write("made\n")
    return "".join(f"{number:08}" for number in range(1_000_000))


@workflow
async def long_value() -> int:
    return len(await make())


def killing(*given: Any) -> Iterator[Any]:
    for number, piece in enumerate(PIECES(*given)):
        if number == PIECE:
            os.kill(os.getpid(), signal.SIGKILL)
        yield piece


async def main() -> None:
    async with Runtime(home=FOLDER / "home", sandbox="copy") as runtime:
        print(await (runtime.resume(sys.argv[3]) if sys.argv[3:] else runtime.run(long_value)))


PIECES = blobs.packed_in_pieces
if PIECE:
    blobs.packed_in_pieces = killing
if __name__ == "__main__":
    asyncio.run(main())
