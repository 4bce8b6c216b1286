"""`benchmarks/goodput.py`: errors come before any replay, and stored results are not computed again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import goodput
from benchmarks.replay import pool
from benchmarks.replay.baselines.contenders import HIDDEN
from benchmarks.replay.errors import BadTrace
from benchmarks.replay.evaluation import names
from benchmarks.replay.inputs.synthetic_traces import read_workload
from benchmarks.replay.inputs.traces import text
from benchmarks.replay.jobs import Job
from benchmarks.replay.report import plots
from benchmarks.replay.report.markdown_report import BEGIN, END
from benchmarks.replay.results import pack
from tests.benchmarks.replay.sample_results import result

KEY = "0123456789abcdef01234567"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(f'{{"timestamp": {i}, "input_length": 90, "output_length": 20}}\n' for i in range(9)))
    return path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Job]:
    """The replays that were asked for; their results are made up."""
    jobs: list[Job] = []

    class WorkerProcess:
        def __init__(self, log: Path | None = None) -> None: ...

        def ask(self, question: dict[str, Any]) -> dict[str, Any]:
            job = Job.from_json(json.dumps(question["replay"]))
            jobs.append(job)
            found: dict[str, Any] = json.loads(result(job, 0.0 if job.contender == "fcfs" else 0.9).to_json())
            return found

        def close(self) -> None: ...

    monkeypatch.setattr(pool, "WorkerProcess", WorkerProcess)
    monkeypatch.setattr(plots, "_picture", lambda *_, **__: "<img>")  # test_report.py draws
    return jobs


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["goodput.py", *map(str, arguments)])
    status: int = goodput.main()
    return status


def test_a_stopped_run_goes_on(
    asked: list[Job], trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="plots need the extra `bench`")
    some = ["--trace", trace, "--out", tmp_path / "out", "--only", "load", "--load", 1.1, "--seconds", 20]
    assert run(monkeypatch, *some, "--contender", "fcfs", "--seeds", 2) == 0
    assert [(job.contender, job.seed) for job in asked] == [("fcfs", 0), ("fcfs", 1)]
    (tmp_path / "out" / "results" / f"{asked[1].key}.json").write_text('{"job": ')  # as a full disk leaves it
    capsys.readouterr()
    assert run(monkeypatch, *some, "--contender", "fcfs", "--contender", "concord", "--seeds", 2, "--json") == 0
    assert [(job.contender, job.seed) for job in asked[2:]] == [("concord", 0), ("fcfs", 1), ("concord", 1)]
    *said, last = capsys.readouterr().out.splitlines()
    assert said[0].startswith("trace.") and "they come" in said[0]
    assert (
        said[1].startswith("4 replays, 1 stored before")
        and " s on idle cores, and then 2 LP bounds, about" in said[1]
    )
    assert any("requests 0.900 tokens 0.900 workflows 0.900 | latency 1.00" in line for line in said)
    found = json.loads(last, parse_constant=lambda text: pytest.fail(f"{text} is no JSON"))
    by_name = {row["name"]: row for row in found["rows"]}
    fcfs = by_name["load 1.1, loose: requests against FCFS"]
    assert (fcfs["ours"], fcfs["met"]) == (None, True) and "less than half a point" in fcfs["note"]
    ours = next(one for one in found["goodput"] if one["contender"] == "concord")
    assert (ours["request"], ours["token"], ours["workflow"], ours["attained"]) == (0.9, 0.9, 0.9, {"latency": 1.0})
    assert (tmp_path / "out" / "index.html").exists() and (tmp_path / "out" / "evaluation.json").exists()


def test_without_a_trace_calls_and_sessions_are_generated(
    asked: list[Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib", reason="plots need the extra `bench`")
    monkeypatch.delenv("RAMIFY_TRACE", raising=False)
    assert run(monkeypatch, "--quick", "--contender", "fcfs", "--out", tmp_path / "out") == 0
    (trace,) = {job.trace for job in asked}
    made = read_workload(Path(trace))
    assert made.arrivals and made.sessions


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--contender", "magic"], "no contender is called 'magic': there are fcfs"),
        (["--only", "loads"], "no section is called loads: there are load, tight"),
        (["--load", "5"], "no replay is of --load 5.0: loads are"),
        (["--steps", "nowhere.json"], "nowhere.json: not a step-time model"),
        (["--trace", "nowhere.csv"], "nowhere.csv: cannot be read"),
        (["--minutes", "0", "--seconds", "20"], "no replay was done in 0 minutes"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_replayed(
    asked: list[Job],
    trace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    pytest.importorskip("matplotlib", reason="plots need the extra `bench`")
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "--trace", trace, "--out", tmp_path / "out", *arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith("goodput: ") and said in error
    assert not asked


@pytest.mark.parametrize(
    "wrong",
    [
        "--seconds 0",
        "--seconds inf",
        "--seeds 0",
        "--workers 0",
        "--minutes nan",
        "--minutes -3",
        "--report /no/a.md",
    ],
)
def test_out_of_range_numbers_are_wrong_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrong: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, *wrong.split())
    assert ended.value.code == 2 and f"argument {wrong.split()[0]}:" in capsys.readouterr().err


def test_an_interrupted_run_says_how_to_go_on(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="plots need the extra `bench`")

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(goodput, "run_all", interrupted)
    assert run(monkeypatch, "--quick", "--trace", trace, "--out", tmp_path / "out") == 130
    assert "the same command goes on" in capsys.readouterr().err


def test_the_report_is_written_between_its_marks(
    asked: list[Job], trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib", reason="plots need the extra `bench`")
    page = tmp_path / "evaluation.md"
    page.write_text(f"words\n{BEGIN}\n{END}\n")
    some = ["--quick", "--seconds", 20, "--trace", trace, "--out", tmp_path / "out"]
    assert run(monkeypatch, *some, "--report", page) == 0
    assert {job.seed for job in asked} == {0, 1} and {job.load for job in asked} == {1.1}
    assert {job.contender for job in asked} == {*names(), HIDDEN.name}, "every policy"
    text = page.read_text()
    for part in ("Figures", "What did not hold", "Goodput and attainment", "Near-oracle", "Over time", "By type of"):
        assert f"## {part}" in text
    assert "First come, first served attains 0.000 at loose, load 1.1." in text


def test_results_of_a_report_are_reused_elsewhere_for_the_same_trace(
    asked: list[Job], trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="plots need the extra `bench`")
    page, moved = tmp_path / "evaluation.md", tmp_path / "elsewhere" / trace.name
    page.write_text(f"{BEGIN}\n{END}\n")
    some = ["--only", "load", "--load", 1.1, "--contender", "fcfs", "--seeds", 2, "--seconds", 20]
    assert run(monkeypatch, *some, "--trace", trace, "--out", tmp_path / "out", "--report", page) == 0
    results = tmp_path / "evaluation.jsonl.gz"
    once = results.read_bytes()
    assert len(asked) == 2 and str(tmp_path) not in text(results)
    moved.parent.mkdir()
    moved.write_bytes(trace.read_bytes())
    again = [*some, "--trace", moved, "--out", tmp_path / "other", "--results", results, "--report", page]
    assert run(monkeypatch, *again) == 0
    assert len(asked) == 2 and "2 results taken from" in capsys.readouterr().out
    assert results.read_bytes() == once
    other = tmp_path / "changed" / trace.name
    other.parent.mkdir()
    other.write_text(trace.read_text() * 2)
    changed = [*some, "--trace", other, "--out", tmp_path / "third", "--results", results]
    assert run(monkeypatch, *changed) == 0
    assert len(asked) == 4, "of another trace: by its content, whatever its name"


@pytest.mark.parametrize(
    "line", ["no JSON", "[]", '{"key": "../../a", "result": RESULT}', f'{{"key": "{KEY}", "result": {{}}}}']
)
def test_malformed_results_are_refused_as_a_whole(
    asked: list[Job],
    trace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: str,
) -> None:
    pytest.importorskip("matplotlib", reason="plots need the extra `bench`")
    good = result(Job("fcfs", "trace.jsonl"), 0.9).to_json()
    results = tmp_path / "results.jsonl.gz"
    results.write_text(f'{{"key": "{KEY}", "result": {good}}}\n' + line.replace("RESULT", good))
    out = tmp_path / "out"
    assert run(monkeypatch, "--quick", "--trace", trace, "--out", out, "--results", results) == 1
    assert f"{results}: line 2 is no replay's result" in capsys.readouterr().err
    assert not asked and not list((out / "results").iterdir())


def test_quick_takes_a_number_of_seeds(
    asked: list[Job], trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib", reason="plots need the extra `bench`")
    some = ["--quick", "--trace", trace, "--out", tmp_path / "out", "--contender", "fcfs"]
    assert run(monkeypatch, *some, "--seeds", 1) == 0
    assert [job.seed for job in asked] == [0]


def test_a_quick_run_keeps_its_own_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shared folder would mix both in one page."""
    for quick in ([], ["--quick"]):
        monkeypatch.setattr("sys.argv", ["goodput.py", *quick])
        assert goodput.arguments().out == goodput.ROOT / "build" / ("goodput-quick" if quick else "goodput")


def test_a_plot_of_an_earlier_run_is_not_put_beside_a_report(
    asked: list[Job], trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib", reason="plots need the extra `bench`")
    page, out = tmp_path / "evaluation.md", tmp_path / "out"
    page.write_text(f"{BEGIN}\n{END}\n")
    out.mkdir()
    (out / "load.png").write_bytes(b"an earlier run's")
    some = ["--trace", trace, "--out", out, "--seconds", 20, "--seeds", 1, "--report", page, "--contender", "fcfs"]
    assert run(monkeypatch, *some, "--only", "mix") == 0
    assert not page.with_suffix(".png").exists() and "load.png" not in page.read_text()
    assert run(monkeypatch, *some, "--only", "load") == 0
    assert page.with_suffix(".png").read_bytes() == b"an earlier run's", "drawn anew, had not the test taken the pen"


@pytest.mark.parametrize("beside", [".jsonl.gz", ".png"])
def test_unwritable_files_beside_a_report_are_refused_first(
    asked: list[Job],
    trace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    beside: str,
) -> None:
    pytest.importorskip("matplotlib", reason="plots need the extra `bench`")
    page = tmp_path / "evaluation.md"
    page.write_text(f"{BEGIN}\n{END}\n")
    page.with_suffix(beside).mkdir()
    assert run(monkeypatch, "--quick", "--trace", trace, "--out", tmp_path / "out", "--report", page) == 1
    assert str(page.with_suffix(beside)) in capsys.readouterr().err and not asked


def test_a_page_that_cannot_be_written_is_one_line(
    asked: list[Job], trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="plots need the extra `bench`")
    (tmp_path / "out" / "evaluation.json").mkdir(parents=True)
    some = ["--quick", "--trace", trace, "--out", tmp_path / "out", "--contender", "fcfs"]
    assert run(monkeypatch, *some) == 1
    assert capsys.readouterr().err.startswith("goodput: ")


@pytest.mark.parametrize(
    "broken", ["[]", "[[0, 9, 9], [1, -5, 9]]", '[[0, 9, 9], [1, 9, "a"]]', "[[0, 9, 9], [1, NaN, 9]]"]
)
def test_a_damaged_generated_trace_is_refused(tmp_path: Path, broken: str) -> None:
    path = tmp_path / "made-up.json"
    path.write_text(f'{{"generated": "x", "arrivals": {broken}, "sessions": []}}')
    with pytest.raises(BadTrace, match="delete it, and it is generated again"):
        read_workload(path)


def test_verify_replays_stored_results_and_fails_if_a_figure_differs(
    asked: list[Job], trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [Job(name, str(trace)) for name in ("fcfs", "concord")]  # replayed, these get 0 and 0.9
    for level, status, verdict in ((0.9, 0, "1 of 1 give the same figures now"), (0.8, 1, "stored 0.8, now 0.9")):
        packed = tmp_path / f"{level}.jsonl.gz"
        pack(packed, [result(job, level) for job in jobs])
        arguments = ["--trace", trace, "--results", packed, "--verify", 5, "--contender", "concord"]
        assert run(monkeypatch, *arguments) == status
        assert verdict in capsys.readouterr().out
    assert [job.contender for job in asked] == ["concord", "concord"]


def test_fresh_uses_no_result_of_other_code(
    asked: list[Job], trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="plots need the extra `bench`")
    some = ["--trace", trace, "--out", tmp_path / "out", "--only", "load", "--load", 1.1, "--seconds", 20]
    some += ["--contender", "fcfs", "--seeds", 1]
    for fresh in ([], [], ["--fresh"]):
        assert run(monkeypatch, *some, *fresh) == 0
    assert len(asked) == 2, "the stored result does not name this code"
    assert "1 stored before (1 of them by another version of the code" in capsys.readouterr().out
