"""Images that other programs on this machine have or build, by their command lines: docker and podman save one, and
buildah, which needs no daemon, builds a Dockerfile. Each hands over an archive."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from ramify.images import archive
from ramify.images.documents import Platform
from ramify.images.errors import BuildFailed, EngineUnavailable, ImageNotFound
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
        await _engine(reference, "save", "--output", str(saved), "--", reference.repository)
        inside = replace(reference, kind=SourceKind.ARCHIVE, path=saved, repository="")
        async with archive.opened(inside, platform, limits) as image:
            yield replace(image, name=str(reference))


async def _engine(reference: ImageReference, *words: str) -> None:
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


_TOLD = 2000  # characters of a failed build's output that the error shows


@asynccontextmanager
async def built(context: Path, dockerfile: Path | None = None) -> AsyncIterator[Path]:
    """An OCI archive of the image that the Dockerfile in `context` builds; removed at the end of the block.

    Buildah uses its own storage, caches and settings. Raises `BuildFailed`.
    """
    program = shutil.which("buildah")
    if program is None:
        raise BuildFailed(
            f"{context}: buildah, which builds Dockerfiles, is not installed. Install it (apt-get install buildah), "
            "or build elsewhere and pull the archive of `docker save`"
        )
    if not context.is_dir():
        raise BuildFailed(f"{context}: not a folder. Name the folder that holds the Dockerfile")
    with tempfile.TemporaryDirectory(prefix="ramify-") as aside:
        image, archive = Path(aside) / "id", Path(aside) / "image.tar"
        file = () if dockerfile is None else ("--file", str(dockerfile))
        await _buildah(
            context, program, "build", "--layers", "--format", "oci", "--iidfile", str(image), *file, str(context)
        )
        await _buildah(context, program, "push", image.read_text().strip(), f"oci-archive:{archive}")
        yield archive


async def _buildah(context: Path, program: str, *words: str) -> None:
    status, printed = await run_program(program, *words)
    if status:
        raise BuildFailed(
            f"{context}: `buildah {words[0]}` failed:\n{printed[-_TOLD:]}\nMend the Dockerfile or buildah's set-up"
        )


async def run_program(program: str, *words: str) -> tuple[int, str]:
    """Return the exit status, and standard output and error together. The program is killed if the caller is
    cancelled. Raises OSError if it cannot be started."""
    process = await asyncio.create_subprocess_exec(
        program,
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        printed, _ = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    assert process.returncode is not None  # it has ended
    return process.returncode, printed.decode(errors="replace").strip()
