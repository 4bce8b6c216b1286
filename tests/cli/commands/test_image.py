"""`ramify image`: each command is a process of its own; `gc` and `fsck` know images."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.images.image_builder import built, sha, write_layout
from tests.warm_process import WarmInterpreter

Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def call(tmp_path: Path, warm: WarmInterpreter) -> Call:
    def call(*words: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "RAMIFY_HOME": str(tmp_path / "home"), "RAMIFY_SANDBOX": "copy"}
        done = warm.run(words, cwd=tmp_path, env=env)
        assert not check or done.returncode == 0, done.stderr
        return done

    return call


def test_images_are_pulled_listed_kept_and_forgotten(call: Call, tmp_path: Path) -> None:
    image = built({"a": "1"}, {"b": "2"}, settings={"Env": ["A=1"], "User": "me"})
    layout = write_layout(tmp_path / "layout", image)
    assert call("image", "ls").stdout.startswith("no images yet")
    assert call("image", "pull", layout).stdout == f"{sha(image.config)}\n"
    (listed,) = json.loads(call("image", "ls", "--json").stdout)
    assert listed["names"] == [f"oci:{layout}"] and listed["layers"] == 2 and "LAYERS" in call("image", "ls").stdout
    shown = json.loads(call("image", "inspect", listed["id"][7:15]).stdout)
    assert shown["env"] == {"A": "1"} and shown["user"] == "me" and len(shown["layers"]) == 2
    record = tmp_path / "home/store/snapshots" / f"{listed['snapshot']}.json"
    os.utime(record, (0, 0))
    assert json.loads(call("gc", "--json").stdout)["kept"] == 1 and record.exists()
    assert call("fsck").returncode == 0
    call("image", "rm", f"oci:{layout}")
    assert json.loads(call("gc", "--json").stdout)["snapshots"] == 1 and not record.exists()
    call("image", "pull", layout)
    assert record.exists() and call("fsck").returncode == 0


def test_what_is_no_image_is_told_without_a_traceback(call: Call, tmp_path: Path) -> None:
    for words, told in (
        (("pull", "No Image"), "names no image"),
        (("pull", f"oci:{tmp_path}"), "complete OCI layout"),
        (("inspect", "nothing"), "ramify image pull"),
        (("rm", "nothing"), "ramify image pull"),
    ):
        done = call("image", *words, check=False)
        assert done.returncode == 1 and told in done.stderr and "Traceback" not in done.stderr
