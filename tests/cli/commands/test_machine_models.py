from __future__ import annotations

import re
from typing import Any

import pytest

from ramify.serving.engine import models

pytestmark = pytest.mark.usefixtures("no_weights")


def test_ls_says_what_is_missing(ramify: Any) -> None:
    (one,) = ramify("models", "ls", "--json").json
    assert (one["name"], one["path"], one["bytes"]) == ("smollm2-135m", None, 98_362_432)
    assert re.search(r"`ramify --home \S+ models pull`", ramify("models", "ls").out)


def test_unknown_model_is_refused(ramify: Any) -> None:
    said = ramify("models", "pull", "gpt-9")
    assert (said.status, said.out) == (1, "")
    assert said.err.startswith("ramify: unknown model 'gpt-9'")


def test_present_weights_are_not_downloaded_again(ramify: Any, tmp_path: Any) -> None:
    path = models.path_of(tmp_path / "home")
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(models.SMOLLM2_135M.size)
    assert ramify("models", "pull").out == f"{path}\n"
    assert ramify("models", "pull", "--quiet").out == ""
    assert ramify("models", "ls", "--json").json[0]["path"] == str(path)
