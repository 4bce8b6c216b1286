"""A home's store, catalogue and library, and a builder of images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ramify.fork_engine.gc_pins import Pins
from ramify.fork_engine.store import SnapshotStore
from ramify.images.catalogue import Catalogue
from ramify.images.library import ImageLibrary


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(tmp_path / "home/store")


@pytest.fixture
def new_library(store: SnapshotStore, tmp_path: Path) -> Any:
    def make(**options: Any) -> ImageLibrary:
        return ImageLibrary(store, Catalogue(tmp_path / "home/images"), Pins(tmp_path / "home/locks"), **options)

    return make


@pytest.fixture
def library(new_library: Any) -> ImageLibrary:
    made: ImageLibrary = new_library()
    return made
