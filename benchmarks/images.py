"""Measure OCI images: what 20 of them take that share a base, and the time to the first command over one.

    python benchmarks/images.py [--quick] [--json] [--scratch DIR]

The images are built here, over a base of this machine's own programs, so no network is needed. `--quick` makes a
smaller base and fewer rounds. With `--json` the last line is one object.
"""

from __future__ import annotations

import asyncio
import io
import random
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.rows import Row, median_row, options, row, show
from ramify.images.library import ImageLibrary
from ramify.sandboxes.backends.docker import RootFs
from ramify.sandboxes.host.scratch import remove_tree
from ramify.worlds.home import WorldHome
from ramify.worlds.world import World
from tests.images.image_builder import BuiltImage, layer_tar, write_layout

IMAGES = 20


def base() -> bytes:
    made = io.BytesIO()
    RootFs.of_host(python=False).write(made)
    return made.getvalue()


def build(folder: Path, files: int) -> list[Path]:
    """Layouts of images: one base, one middle layer for each five, one own layer each."""
    noise = random.Random(1)
    lowest = base()
    middle = [layer_tar({f"opt/m{n}/{at}": noise.randbytes(8000) for at in range(files)}) for n in range(IMAGES // 5)]
    layouts = []
    for number in range(IMAGES):
        own = layer_tar({f"app/{at}": noise.randbytes(8000) for at in range(files // 4)})
        image = BuiltImage([lowest, middle[number // 5], own], {"WorkingDir": "/app"}, compress=bytes)
        layouts.append(write_layout(folder / f"image{number}", image))
    return layouts


def disk_bytes(folder: Path) -> int:
    """Bytes on disk, hard links counted once."""
    seen = {(status.st_dev, status.st_ino): status.st_blocks * 512 for status in map(Path.lstat, folder.rglob("*"))}
    return sum(seen.values())


async def shared(images: ImageLibrary, layouts: list[Path]) -> tuple[float, int]:
    """Pull them all. Returns the seconds, and the bytes of the distinct layers."""
    begun, distinct = time.perf_counter(), dict[str, int]()
    for layout in layouts:
        made = await images.pull(str(layout))
        distinct |= {layer.diff_id: layer.bytes for layer in made.layers}
    return time.perf_counter() - begun, sum(distinct.values())


async def first_command(home: WorldHome, name: str | None, rounds: int) -> list[float]:
    """Milliseconds from `World.create` to the first command's result."""
    taken = []
    await home.backend()  # is started once for all worlds
    for _ in range(rounds):
        begun = time.perf_counter()
        async with World.create(image=name, home=home) as world:
            await world.exec("true", check=True)
            taken.append((time.perf_counter() - begun) * 1000)
    return taken


async def rows(folder: Path, quick: bool) -> list[Row]:
    layouts = build(folder / "layouts", 100 if quick else 1000)
    async with WorldHome(folder / "home", "namespaces") as home:
        seconds, distinct = await shared(home.images, layouts)
        took = disk_bytes(folder / "home")
        last = home.images.catalogue.all()[0].id
        rounds = 20 if quick else 60
        plain = await first_command(home, None, rounds)
        ready = await first_command(home, last, rounds)
    return [
        row(f"{IMAGES} images that share a base: disk over the bytes of their distinct layers",
            round(took / distinct, 3), "x", target=1.1, note=f"{distinct / 1e6:.0f} MB"),
        row(f"{IMAGES} images: pulled from layouts", round(seconds, 2), "s"),
        median_row("an image that is here, to the first command's result", ready, "ms", target=30,
                   peer="an empty world over this machine's root", peer_value=round(median(plain), 2)),
    ]  # fmt: skip


def main() -> None:
    parser = options(__doc__, "a smaller base, fewer rounds")
    parser.add_argument("--scratch", type=Path, help="a folder on the file system to measure")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ramify-bench-", dir=asked.scratch))
    try:
        found = asyncio.run(rows(folder, asked.quick))
    finally:
        remove_tree(folder)
    show(found, asked.json)


if __name__ == "__main__":
    main()
