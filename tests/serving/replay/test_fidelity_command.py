"""The command of fidelity: what cannot be is said before an engine is started or a run replayed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import fidelity as benchmark

ERROR = {"measured": 0.1, "replayed": 0.1, "mean_absolute": 0.0}
FOUND = {"run": "a run", "fitted_on": 4, "step": "Timing()", "still": True, "moved": 0.0}
FOUND |= {"tpot": ERROR, "ttft": ERROR, "residuals": [[0.1, 0.2, 0.3, 0.4]]}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a child was asked; what it finds is made up."""
    questions: list[Any] = []

    @contextmanager
    def child() -> Iterator[SimpleNamespace]:
        def ask(question: Any) -> dict[str, Any]:
            questions.append(question)
            return FOUND

        yield SimpleNamespace(ask=ask)

    monkeypatch.setattr(benchmark, "child", child)
    return questions


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["fidelity.py", *map(str, arguments)])
    return benchmark.main()


@pytest.mark.parametrize(
    "wrong",
    [("--load", "nan"), ("--load", "inf"), ("--load", "0"), ("--requests", "0"), ("--repeats", "1"), ("--seed", "x")],
)
def test_what_no_live_run_can_be_made_of_is_wrong_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrong: tuple[str, str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, "--live", *wrong)
    assert ended.value.code == 2
    assert f"argument {wrong[0]}:" in capsys.readouterr().err


@pytest.mark.parametrize("of_live", [("--quick",), ("--trace", "t.csv"), ("--repeats", "2"), ("--load", "0.4")])
def test_what_is_of_live_runs_alone_is_not_taken_for_a_measured_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], asked: list[Any], of_live: tuple[str, ...]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, "--run", "somewhere", *of_live)
    assert ended.value.code == 2 and not asked
    assert f"{of_live[0]} is of --live" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["--run", "--live"])
@pytest.mark.parametrize("file", ["nowhere/residuals.csv", "."])
def test_residuals_that_cannot_be_written_are_refused_before(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    asked: list[Any],
    kind: str,
    file: str,
) -> None:
    monkeypatch.setattr(benchmark, "_live", lambda _: pytest.fail("an engine was started"))
    arguments = [kind, tmp_path] if kind == "--run" else [kind]
    assert run(monkeypatch, *arguments, "--residuals", tmp_path / file) == 1
    error = capsys.readouterr().err
    assert error.startswith("fidelity: ") and str(tmp_path / file) in error and not asked


def test_residuals_are_of_every_judged_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, asked: list[Any]
) -> None:
    file = tmp_path / "residuals.csv"
    assert run(monkeypatch, "--run", tmp_path, "--residuals", file, "--json") == 0
    assert asked == [{"fidelity": str(tmp_path)}]
    assert file.read_text().split() == ["ttft_measured,tpot_measured,ttft_replayed,tpot_replayed", "0.1,0.2,0.3,0.4"]
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["met"] for row in found["rows"]] == [True, True] and "cores" in found["machine"]
