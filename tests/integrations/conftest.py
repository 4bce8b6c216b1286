"""A backend that this machine has, and a folder to make worlds of."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from ramify.sandboxes import doctor
from ramify.sandboxes.backends.docker import RootFs
from tests.images.image_builder import BuiltImage, layer_tar, write_layout
from tests.machine import why_no_namespaces


@pytest.fixture
def sandbox() -> str:
    return "copy" if why_no_namespaces() else "namespaces"


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    (folder / "main.py").write_text("print('hello')\n")
    return folder


@pytest.fixture(scope="session")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image with this machine's bash and usual programs, and /app as its WORKDIR. Skips without namespaces."""
    folder = tmp_path_factory.mktemp("images")
    able = doctor.namespaces(folder)
    if not able.available:
        pytest.skip(able.reason)
    root = io.BytesIO()
    RootFs.of_host(python=False).write(root)
    app = layer_tar({"app": None, "app/greet.sh": "echo hello\n"})
    settings = {"Env": ["PATH=/usr/bin:/bin", "GREETING=image"], "WorkingDir": "/app", "Cmd": ["sh", "greet.sh"]}
    return write_layout(folder / "layout", BuiltImage([root.getvalue(), app], settings, compress=bytes))
