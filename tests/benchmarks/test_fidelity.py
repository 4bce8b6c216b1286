"""The command line of fidelity.py: impossible requests are refused before an engine starts or a run is replayed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import fidelity as benchmark
from benchmarks import live_fidelity as live
from benchmarks.replay.errors import BadProbe
from benchmarks.replay.fidelity.live import Ask, Pace
from benchmarks.replay.fidelity.measured_run import Served
from benchmarks.replay.fidelity.step_probe import Profile
from ramify.serving.policy.types import StepModel

ERROR = {"measured": 0.1, "replayed": 0.1, "mean_absolute": 0.0}
FOUND = {"run": "a run", "fitted_on": 4, "step": "Timing()", "still": True, "moved": 0.0}
FOUND |= {"tpot": ERROR, "ttft": ERROR, "residuals": [[0.1, 0.2, 0.3, 0.4]]}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Record what a child process was asked; its answers are made up."""
    questions: list[Any] = []

    @contextmanager
    def worker() -> Iterator[SimpleNamespace]:
        def ask(question: Any) -> dict[str, Any]:
            questions.append(question)
            return FOUND

        yield SimpleNamespace(ask=ask)

    monkeypatch.setattr(benchmark, "worker", worker)
    return questions


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["fidelity.py", *map(str, arguments)])
    return benchmark.main()


@pytest.mark.parametrize(
    "wrong",
    [("--load", "nan"), ("--load", "inf"), ("--load", "0"), ("--requests", "0"), ("--repeats", "1"), ("--seed", "x")],
)
def test_impossible_live_runs_are_wrong_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrong: tuple[str, str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, "--live", *wrong)
    assert ended.value.code == 2
    assert f"argument {wrong[0]}:" in capsys.readouterr().err


@pytest.mark.parametrize(
    "of_live", ["--quick", "--trace t.csv", "--requests 9", "--repeats 2", "--load 0.4", "--seed 0"]
)
def test_live_options_are_refused_for_a_measured_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], asked: list[Any], of_live: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, "--run", "somewhere", *of_live.split())
    assert ended.value.code == 2 and not asked
    assert f"{of_live.split()[0]} is of --live" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["--run", "--live"])
@pytest.mark.parametrize("file", ["nowhere/residuals.csv", "."])
def test_unwritable_residuals_are_refused_first(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    asked: list[Any],
    kind: str,
    file: str,
) -> None:
    monkeypatch.setattr(benchmark, "_live", lambda _: pytest.fail("an engine was started"))
    arguments = [kind, tmp_path] if kind == "--run" else [kind]
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, *arguments, "--residuals", tmp_path / file)
    assert ended.value.code == 2 and not asked
    assert f"argument --residuals: {tmp_path / file} cannot be written" in capsys.readouterr().err


def test_residuals_cover_every_judged_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, asked: list[Any]
) -> None:
    file = tmp_path / "residuals.csv"
    assert run(monkeypatch, "--run", tmp_path, "--residuals", file, "--json") == 0
    assert asked == [{"fidelity": str(tmp_path)}]
    head = "run,ttft_measured,tpot_measured,ttft_replayed,tpot_replayed"
    assert file.read_text().split() == [head, "1,0.1,0.2,0.3,0.4"]
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["met"] for row in found["rows"]] == [True, True] and "cores" in found["machine"]


@pytest.mark.parametrize(
    ("tpot", "ttft", "met"),
    [(1.0099, 1.0399, True), (0.9901, 0.9601, True), (1.0101, 1.0401, False), (0.9899, 0.9599, False)],
)
def test_targets_are_one_percent_in_tpot_and_four_in_ttft(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    asked: list[Any],
    tpot: float,
    ttft: float,
    met: bool,
) -> None:
    for name, off in (("tpot", tpot), ("ttft", ttft)):
        monkeypatch.setitem(FOUND, name, {**ERROR, "replayed": ERROR["measured"] * off})
    assert run(monkeypatch, "--run", tmp_path, "--json") == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert [(row["target"], row["met"]) for row in rows] == [("<= 0.01", met), ("<= 0.04", met)]


def test_a_failed_run_leaves_residuals_unchanged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(_: object) -> None:
        raise BadProbe("the engine is gone")

    monkeypatch.setattr(benchmark, "_live", broken)
    there, new = tmp_path / "there.csv", tmp_path / "new.csv"
    there.write_text("of a run before")
    for file in (there, new):
        assert run(monkeypatch, "--live", "--residuals", file) == 1
    assert there.read_text() == "of a run before" and not new.exists()


def test_a_run_that_is_interrupted_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(benchmark, "_live", interrupted)
    assert run(monkeypatch, "--live") == 130
    assert capsys.readouterr().err == "fidelity: cut short; nothing is kept\n"


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ("", {"requests": 100, "runs": 5, "load": 0.8, "seed": 0, "probes": live.PROBES}),
        ("--quick", {"requests": 8, "runs": 2, "load": 0.8, "seed": 0, "probes": live.BRIEF}),
        ("--requests 9 --repeats 3 --load 0.4 --seed 7", {"requests": 9, "runs": 3, "load": 0.4, "seed": 7}),
    ],
)
def test_a_live_run_gets_its_options(monkeypatch: pytest.MonkeyPatch, arguments: str, wanted: dict[str, Any]) -> None:
    def measure(trace: Path | None, **more: Any) -> live.Compared:
        assert trace is None and {name: more[name] for name in wanted} == wanted
        raise BadProbe("as far as this test goes")

    monkeypatch.setattr(live, "measure", measure)
    assert run(monkeypatch, "--live", *arguments.split()) == 1


class Engine:
    """No engine: nothing is sent to its address."""

    base_url = "http://engine/v1"

    def __init__(self, *_: object, **__: object) -> None: ...

    async def __aenter__(self) -> Engine:
        return self

    async def __aexit__(self, *_: object) -> None: ...


def test_each_live_run_is_replayed_with_the_probes_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements, requests and replays are made up; the test checks which of them goes where."""
    probes = iter([Profile(StepModel(base, 1.0, 1.0, 0.5), (), 0.01, base / 10_000) for base in (40.0, 44.0, 60.0)])
    sent: list[Sequence[Ask]] = []
    paces: list[Pace] = []

    async def profile(*_: object) -> Profile:
        return next(probes)

    async def serve(_: object, asks: Sequence[Ask]) -> list[Served]:
        sent.append(asks)
        late = 0.1 * len(sent)
        return [Served(ask.prompt, ask.output, ask.at, ask.at + late, ask.at + 2 * late) for ask in asks]

    def ask(question: Any) -> dict[str, Any]:
        asked = question["live"]
        paces.append(Pace(StepModel(**asked["pace"]["step"]), asked["pace"]["way_s"]))
        assert asked["frame"] == asdict(live.FRAME)
        served = [Served(a["prompt"], a["output"], a["at"], a["at"] + 0.15, a["at"] + 90.0) for a in asked["asks"]]
        return {"served": [asdict(one) for one in served]}

    @contextmanager
    def worker() -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(ask=ask)

    monkeypatch.setattr(live, "VllmEngine", Engine)
    monkeypatch.setattr(live.models, "locate", lambda _: Path("model.gguf"))
    for name, made in (("profile", profile), ("serve", serve), ("worker", worker)):
        monkeypatch.setattr(live, name, made)
    found = live.measure(None, requests=4, runs=2, load=0.8, seed=0, told=lambda _: None)
    assert sent[0] == sent[1] and len(sent[0]) >= 4, "the same requests"
    assert [pace.step.base_ms for pace in paces] == [42.0, 52.0]
    assert [pace.way_s for pace in paces] == pytest.approx([0.0042, 0.0052])
    assert found.full_ms == pytest.approx([40.0 + 8 + 1.6, 44.0 + 8 + 1.6, 60.0 + 8 + 1.6])
    ttft, tpot, _ = live.rows(found)
    assert (ttft["live"], ttft["replayed"]) == (pytest.approx([0.1, 0.2]), pytest.approx([0.15, 0.15]))
    assert (ttft["ours"], ttft["peer_value"], ttft["met"]) == (pytest.approx(0.0, abs=1e-9), pytest.approx(0.1), True)
    assert (ttft["replays_apart"], ttft["runs_apart"]) == (pytest.approx(0.05), pytest.approx(0.1))
    assert "33.3% off its own run, two runs are 66.7% apart" in ttft["note"]
    assert tpot["met"] is False
    first, *_, last = found.residuals()
    assert (first[0], first[1], first[3]) == pytest.approx((1, 0.1, 0.15))
    assert (last[0], last[1], last[3]) == pytest.approx((2, 0.2, 0.15))
