"""A result is kept under the code that made it: no less, and not the code of others."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from benchmarks.replay import sources
from benchmarks.replay.baselines.contenders import ALL, CLAIRVOYANT, contender
from benchmarks.replay.sources import code_digest
from benchmarks.replay.types import Contender, Knowledge, Stock


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """The files that went into each digest, by the contender's name."""
    found: dict[str, set[str]] = {}
    whole = sources._files

    def noted(modules: frozenset[str], skipped: frozenset[str]) -> tuple[Path, ...]:
        files = whole(modules, skipped)
        found.setdefault("last", set()).update(path.as_posix().rpartition("serving/")[2] for path in files)
        return files

    monkeypatch.setattr(sources, "_files", noted)
    return found


@pytest.mark.parametrize(
    ("name", "has", "has_not"),
    [
        ("fcfs", "engine.py", "vllm_plugin/scheduler.py"),
        ("plas", "baselines/plas.py", "policy/concord.py"),
        ("edf-feasible", "baselines/edf.py", "baselines/plas.py"),
        ("concord", "policy/displace.py", "policy/calm.py"),
        ("calm-thesis", "policy/calm.py", "policy/concord.py"),
    ],
)
def test_a_contender_depends_on_its_own_files(read: dict[str, set[str]], name: str, has: str, has_not: str) -> None:
    code_digest(contender(name))
    names = read["last"]
    assert any(one.endswith(has) for one in names)
    assert not any(one.endswith(has_not) for one in names)
    assert not any(one.endswith(("report.py", "rows.py", "pool.py")) for one in names)


def test_contenders_with_the_same_code_differ_by_parameters_and_knowledge() -> None:
    schedulers = [one for one in ALL if one is not CLAIRVOYANT]  # the oracle, to which less comes
    assert len({code_digest(one) for one in schedulers}) == len(schedulers)
    assert code_digest(Contender("a", Stock())) == code_digest(Contender("b", Stock(), about="the same"))
    assert code_digest(Contender("a", Stock())) != code_digest(Contender("a", Stock(), Knowledge(correlation=0.1)))


def test_a_changed_file_is_another_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "replay" / "engine.py"
    module.parent.mkdir()
    monkeypatch.setattr(sources, "_HERE", tmp_path)
    monkeypatch.setattr(sources, "_files", sources._files.__wrapped__)
    found = []
    for text in ("import os\n", "def f():\n    from benchmarks.replay import extra\n"):
        module.write_text(text)
        found.append(code_digest(Contender("a", Stock())))
    (tmp_path / "replay" / "extra.py").write_text("x = 1\n")
    found.append(code_digest(Contender("a", Stock())))
    assert len(set(found)) == 3, "an import inside a function is followed"


def test_options_that_have_no_order_read_the_same() -> None:
    assert sources._told([{"b", "a"}]) == sources._told([{"a", "b"}])
    assert code_digest(Contender("a", partial(contender("edf").engine, 0.3))) != code_digest(contender("edf"))  # type: ignore[arg-type]


def test_texts_and_layout_are_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_HERE", tmp_path)
    monkeypatch.setattr(sources, "_files", lambda modules, skipped: (tmp_path / "code.py",))
    texts = [
        'def f(x):\n    """Says one thing."""\n    return (x,  1)\n',
        '"""A module."""\n\n\ndef f(x):  # a comment\n    """Another."""\n    return (\n        x, 1,\n    )\n',
        "def f(x):\n    return (x, 2)\n",
    ]
    found = []
    for text in texts:
        (tmp_path / "code.py").write_text(text)
        found.append(sources.modules_digest(["code"]))
    assert found[0] == found[1]
    assert found[0] != found[2]
