"""Build a Dockerfile by buildah, which needs no daemon, into an archive that can be pulled."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ramify.images.errors import BuildFailed
from ramify.images.program_output import run_program

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
        await _run(
            context, program, "build", "--layers", "--format", "oci", "--iidfile", str(image), *file, str(context)
        )
        await _run(context, program, "push", image.read_text().strip(), f"oci-archive:{archive}")
        yield archive


async def _run(context: Path, program: str, *words: str) -> None:
    status, printed = await run_program(program, *words)
    if status:
        raise BuildFailed(
            f"{context}: `buildah {words[0]}` failed:\n{printed[-_TOLD:]}\nMend the Dockerfile or buildah's set-up"
        )
