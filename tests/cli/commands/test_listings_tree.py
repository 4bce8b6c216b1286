from __future__ import annotations

from pathlib import Path
from typing import Any


def test_tree(home: Any, ramify: Any) -> None:
    said = ramify("tree")
    assert said.status == 0
    lines = said.out.splitlines()
    assert lines[:3] == ["repair 5eed00000001 done", "root", "├─ run_tests  3/5 passed"]
    assert "│  ├─ 0: try_edit  4/5 passed" in lines
    assert "\x1b" not in said.out


def test_tree_folded(home: Any, ramify: Any) -> None:
    assert "│  └─ 2 released" in ramify("tree", "5eed", "--fold").out.splitlines()


def test_tree_as_json(home: Any, ramify: Any) -> None:
    branches = {one["branch"]: one for one in ramify("tree", "--json").json}
    assert branches["root"]["llm_calls"] == 3
    inner = branches["root/fork.1.0.1"]
    assert (inner["merged"], [op["kind"] for op in inner["operations"]]) == (
        True,
        ["RUN", "SEAL", "FORK", "MERGE", "RELEASE"],
    )
    assert [one["label"] for one in inner["checkpoints"]] == ["try_edit", "merge"]
    assert not branches["root/fork.1.0.0"]["merged"]


def test_tree_of_a_state_is_refused(home: Any, ramify: Any) -> None:
    said = ramify("tree", "@~1")
    assert (said.status, said.out) == (1, "")
    assert f"ramify --home {home.path} ls" in said.err


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_checkout_writes_a_state_into_a_new_folder(home: Any, ramify: Any, tmp_path: Path) -> None:
    assert ramify("checkout", "@", tmp_path / "out").status == 0
    assert files(tmp_path / "out") == files(home.final)
    assert ramify("checkout", "@:base", tmp_path / "before").status == 0
    assert files(tmp_path / "before") == files(home.base)


def test_checkout_refuses_a_folder_with_files_unless_forced(home: Any, ramify: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    said = ramify("checkout", "@", out)
    assert said.status == 1
    assert "not empty" in said.err
    assert files(out) == {"mine.txt": b"mine"}
    assert ramify("checkout", "@", out, "--force").status == 0
    assert files(out) == {**files(home.final), "mine.txt": b"mine"}
