"""Images of a container engine on this machine, docker or podman, by its command line: `docker save`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from ramify.images import archive
from ramify.images.documents import Platform
from ramify.images.errors import EngineUnavailable, ImageNotFound
from ramify.images.program_output import run_program
from ramify.images.references import ImageReference, SourceKind
from ramify.images.sources import ImageLimits, SourceImage

_ABSENT = ("no such image", "image not known", "does not exist", "no such object")


@asynccontextmanager
async def opened(reference: ImageReference, platform: Platform, limits: ImageLimits) -> AsyncIterator[SourceImage]:
    """The image that the engine has under this name, saved into a temporary archive.

    Raises `EngineUnavailable`, `ImageNotFound`, `WrongPlatform`.
    """
    with tempfile.TemporaryDirectory(prefix="ramify-") as aside:
        saved = Path(aside) / "image.tar"
        await _run(reference, "save", "--output", str(saved), "--", reference.repository)
        inside = replace(reference, kind=SourceKind.ARCHIVE, path=saved, repository="")
        async with archive.opened(inside, platform, limits) as image:
            yield replace(image, name=str(reference))


async def _run(reference: ImageReference, *words: str) -> None:
    program = shutil.which(reference.kind.value)
    if program is None:
        raise EngineUnavailable(
            f"{reference}: {reference.kind} is not installed. Install it, or name a registry or an archive"
        )
    status, printed = await run_program(program, *words)
    if status:
        why = printed[-500:]
        if any(sign in why.lower() for sign in _ABSENT):
            raise ImageNotFound(f"{reference}: {reference.kind} has no such image. Pull or build it there first")
        raise EngineUnavailable(
            f"{reference}: {reference.kind} failed: {why}. Start it, or name the image in a registry"
        )
