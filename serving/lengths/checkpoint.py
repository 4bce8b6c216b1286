"""The analyzer's state in one file, complete or not at all.

    file := header (one line of JSON: magic, version, sha256 and length of the rest) newline npz

The file is written beside the old one, synced and renamed, and the folder is synced: a crash at any moment leaves the
old file or the new one. It holds only arrays, and nothing is unpickled: hashed features, lengths, trees, codes of
patterns, and names of models, applications and tools; no prompt and no answer.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ramify.serving.errors import CheckpointCorrupt
from ramify.serving.lengths import corrections
from ramify.serving.lengths.calibration import Calibration, MomentCalibration
from ramify.serving.lengths.forest import Forest
from ramify.serving.lengths.learner import AppCoverages, Coverage, Learner, Models
from ramify.serving.lengths.length_model import LengthModel
from ramify.serving.lengths.pattern_library import Dump, Library
from ramify.serving.lengths.service import Service

MAGIC = "ramify-analyzer"
VERSION = 2  # version 1 kept moments that were chosen by the final length of their answers

Arrays = dict[str, npt.NDArray[np.generic]]


def snapshot(service: Service) -> Arrays:
    """A copy of the state, for another thread to write while the service goes on."""
    learner = service.learner
    arrays: Arrays = {
        "salt": np.asarray(learner.salt),
        "fitted_at": np.asarray(learner.fitted_at),
        "version": np.asarray(learner.models.version),
        "coverage": learner.coverage.array(),
        "apps": np.array(list(apps := learner.apps.counts()), dtype=np.str_),
        "app_coverage": np.array(list(apps.values()), dtype=np.float64),
    }
    arrays |= _under("first", learner.first.arrays()) | _under("later", learner.later.arrays())
    for name, model in (("model_first", learner.models.first), ("model_later", learner.models.later)):
        if model is not None:
            arrays |= _under(name, _model_arrays(model))
    for i, (app, library) in enumerate(kept for kept in service.libraries.items() if len(kept[1])):
        dump = library.dump()
        arrays |= _under(
            f"library{i}",
            {
                "app": np.array(app, dtype=np.str_),
                "names": np.array(dump.names, dtype=np.str_),
                "codes": np.frombuffer(b"".join(dump.codes), dtype=np.uint8),
                "ends": np.cumsum([len(code) for code in dump.codes], dtype=np.int64),
                "use": np.array(dump.use),
                "mass": np.array(dump.mass),
                "faded_at": np.asarray(dump.faded_at),
            },
        )
    return arrays


def write(path: Path, arrays: Arrays) -> int:
    """Replace the saved state. Returns the number of bytes written. Raises OSError."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    body = buffer.getvalue()
    header = {"magic": MAGIC, "version": VERSION, "sha256": hashlib.sha256(body).hexdigest(), "bytes": len(body)}
    header |= {"saved_at": time.time()}
    data = json.dumps(header).encode() + b"\n" + body
    beside = path.with_name(path.name + ".new")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return len(data)


def read(path: Path) -> Service | None:
    """The service as it was saved; None if there is no file. Raises CheckpointCorrupt."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    head, _, body = data.partition(b"\n")
    try:
        header = json.loads(head)
        if header["magic"] != MAGIC or header["version"] != VERSION:
            raise CheckpointCorrupt(
                f"{path} is not an analyzer checkpoint of version {VERSION}: remove it to start anew"
            )
        if header["bytes"] != len(body) or header["sha256"] != hashlib.sha256(body).hexdigest():
            raise CheckpointCorrupt(f"{path} does not hold what was written to it: remove it to start anew")
        with np.load(io.BytesIO(body), allow_pickle=False) as loaded:
            service = _restored({name: loaded[name] for name in loaded.files})
        service.restored_at = float(header["saved_at"])
    except (ValueError, KeyError, TypeError, IndexError, zipfile.BadZipFile) as error:
        raise CheckpointCorrupt(f"{path} cannot be read ({error}): remove it to start anew") from error
    return service


def _restored(arrays: Arrays) -> Service:
    learner = Learner(salt=int(arrays["salt"]))
    learner.first.restore(_below("first", arrays))
    learner.later.restore(_below("later", arrays))
    learner.coverage = Coverage(arrays["coverage"].astype(np.float64))
    if "apps" in arrays:  # states of earlier versions have none
        rows = arrays["app_coverage"].astype(np.float64).tolist()
        learner.apps = AppCoverages(dict(zip(map(str, arrays["apps"]), rows, strict=True)))
    first, later = (_model(_below(name, arrays)) for name in ("model_first", "model_later"))
    # A state of an earlier version has no corrections: all of its answers make some, and a refit makes better ones.
    fitted_at = int(arrays["fitted_at"]) if "model_first.corrected" in arrays else 0
    learner.install(Models(first, later, int(arrays["version"])), fitted_at)
    service = Service(learner)
    i = 0
    while kept := _below(f"library{i}", arrays):
        library = Library()
        blob, ends = kept["codes"].astype(np.uint8).tobytes(), kept["ends"].astype(np.int64).tolist()
        library.restore(
            Dump(
                names=tuple(map(str, kept["names"])),
                codes=tuple(blob[start:end] for start, end in zip([0, *ends], ends, strict=False)),
                use=tuple(kept["use"].astype(np.float64).tolist()),
                mass=tuple(kept["mass"].astype(np.float64).tolist()),
                faded_at=float(kept["faded_at"]),
            )
        )
        service.libraries[str(kept["app"])] = library
        i += 1
    return service


def _model_arrays(model: LengthModel) -> Arrays:
    return {
        **_under("forest", model.forest.arrays()),
        "marginal": model.marginal,
        "by_moment": np.asarray(isinstance(model.calibration, MomentCalibration)),
        "edges": model.calibration.edges,
        "factors": model.calibration.factors,
        "keys": np.array(list(model.seen), dtype=np.str_),
        "seen": np.array(list(model.seen.values()), dtype=np.int64),
        "corrected": np.array(list(model.corrections), dtype=np.str_),
        "corrections": corrections.to_array(list(model.corrections.values())),
    }


def _model(arrays: Arrays) -> LengthModel | None:
    if not arrays:
        return None
    seen = dict(zip(map(str, arrays["keys"]), arrays["seen"].astype(np.int64).tolist(), strict=True))
    kind = MomentCalibration if bool(arrays["by_moment"]) else Calibration
    calibration = kind(arrays["edges"].astype(np.float64), arrays["factors"].astype(np.float64))
    corrected = {}
    if "corrected" in arrays:
        each = corrections.from_array(arrays["corrections"].astype(np.float64))
        corrected = dict(zip(map(str, arrays["corrected"]), each, strict=True))
    forest = Forest.from_arrays(_below("forest", arrays))
    return LengthModel(forest, arrays["marginal"].astype(np.float64), calibration, seen, corrected)


def _under(name: str, arrays: Mapping[str, npt.NDArray[np.generic]]) -> Arrays:
    return {f"{name}.{key}": array for key, array in arrays.items()}


def _below(name: str, arrays: Arrays) -> Arrays:
    return {key.removeprefix(name + "."): array for key, array in arrays.items() if key.startswith(name + ".")}
