"""Traces, workloads, length hints and step-time models."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import rows
from benchmarks.replay import worker
from benchmarks.replay.errors import BadSteps, BadTrace, TooFew, TooMany
from benchmarks.replay.inputs import step_times as steps
from benchmarks.replay.inputs import synthetic_traces
from benchmarks.replay.inputs.client_tags import LengthHints, tags_of
from benchmarks.replay.inputs.step_times import Span, fit
from benchmarks.replay.inputs.traces import Trace, read, response_pairs
from benchmarks.replay.inputs.workload import ARTIFACT, Arrivals, Mix, Workload, gpu_seconds, programs
from benchmarks.replay.jobs import Job
from benchmarks.replay.types import Call, Knowledge, Lengths, ProgramId, Setting, Structure
from ramify.serving.policy.types import SloClass, StepModel

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""
MOONCAKE = '{{"timestamp": {at}, "input_length": {length}, "output_length": 7}}\n'


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return read(synthetic_traces.write(tmp_path_factory.mktemp("trace") / "made-up.jsonl", count=600, seconds=180.0))


def test_an_azure_csv_is_read_to_the_tenth_of_a_microsecond(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv.gz"
    path.write_bytes(gzip.compress(AZURE.encode()))
    first, second = read(path).arrivals
    assert (first.at, first.call.prompt, first.call.output) == (0.0, 374, 44)
    assert second.at == pytest.approx(4.314579, abs=1e-5)


def test_a_text_with_a_line_separator_is_not_cut(tmp_path: Path) -> None:
    path = tmp_path / "mooncake.jsonl"
    line = '{"timestamp": 1, "input_length": 6, "output_length": 9, "note": "a\u2028b"}'
    path.write_text(f"{line}\r\n\n{line}\n", "utf-8")
    assert len(read(path).arrivals) == 2


def test_pairs_of_prompt_and_response_are_read_or_refused_by_line(tmp_path: Path) -> None:
    path = tmp_path / "model.jsonl.gz"
    path.write_bytes(gzip.compress('{"prompt": "p\u2028", "response": "", "dataset": "d"}\n\n'.encode()))
    assert [dict(pair) for pair in response_pairs(path)] == [{"prompt": "p\u2028", "response": "", "dataset": "d"}]
    for bad in ('{"prompt": "p"}', '{"prompt": "p", "response": null}', "[1]", '{"prompt', "null"):
        path.write_bytes(gzip.compress(f'{{"prompt": "p", "response": "r"}}\n{bad}'.encode()))
        with pytest.raises(BadTrace, match="line 2"):
            list(response_pairs(path))


def test_a_later_azure_csv_names_its_time_zone(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    text = AZURE.replace("46.6805900", "46.680590+00:00").replace("50.9951690", "50+00:00")
    path.write_text(text)
    assert read(path).arrivals[1].at == pytest.approx(3.31941, abs=1e-5)


def test_mooncakes_lines_carry_their_prefix_blocks(tmp_path: Path) -> None:
    path = tmp_path / "mooncake.jsonl"
    lines = [{"timestamp": 2000 * i, "input_length": 600, "output_length": 9, "hash_ids": [0, i]} for i in range(2)]
    path.write_text("\n".join(map(json.dumps, lines)))
    first, second = read(path).arrivals
    assert second.at == 2.0
    assert (first.call.blocks, second.call.blocks, first.call.block_tokens) == ((0, 0), (0, 1), 512)


def test_hash_ids_may_be_null(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 90, "output_length": 20, "hash_ids": null}\n' * 3)
    assert [arrival.call.blocks for arrival in read(path).arrivals] == [(), (), ()]


def test_calls_of_a_session_that_overlap_are_one_turn(tmp_path: Path) -> None:
    inner = [{"t": t, "in": 50, "out": 5, "hash_ids": [9], "api_time": 2.0} for t in (0.0, 1.0)]
    requests = [
        {"t": 0.0, "type": "n", "in": 100, "out": 10, "hash_ids": [1], "api_time": 3.0},
        {"t": 5.0, "type": "subagent", "requests": inner},
    ]
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(json.dumps({"block_size": 64, "requests": requests}))
    one, other = read(tmp_path).sessions
    assert [len(turn.calls) for turn in one.turns] == [1, 2]
    assert one.turns[1].gap_s == 2.0
    assert one.turns[0].calls[0].blocks != other.turns[0].calls[0].blocks, "block names are local to a session"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n", "neither JSON nor a CSV"),
        ('{"timestamp": 1}\n', "line 1"),
        (AZURE.replace("374", "many"), "line 2"),
        (AZURE.replace("374", "-5"), "line 2: a length of -5"),
        (AZURE.replace("374", "nan"), "line 2"),
        (MOONCAKE.format(at="NaN", length=5), "line 1.*not a time"),
        (MOONCAKE.format(at="Infinity", length=5), "line 1.*not a time"),
        (MOONCAKE.format(at="-1", length=5), "line 1.*not a time"),
        (MOONCAKE.format(at="1", length=10**12), "line 1.*a length of"),
        (MOONCAKE.format(at="1", length="Infinity"), "line 1"),
        ('{"requests": [{"t": "soon", "in": 1, "out": 1}]}', "not an agent session"),
        ('{"requests": [{"t": NaN, "in": 1, "out": 1}]}', "not an agent session.*not a time"),
        ('{"block_size": 0, "requests": [{"t": 1, "in": 1, "out": 1}]}', "not an agent session"),
        ('{"requests": []}', "0 calls"),
        ("", "neither JSON nor a CSV"),
        (AZURE.splitlines()[0], "0 arrivals"),
        (AZURE.replace("396,109", "396"), "line 3: fewer than the header's 3 columns"),
        ('TIMESTAMP,ContextTokens,GeneratedTokens\n"' + "x" * 200_000, "line 2: field larger"),
        ('TIMESTAMP,"' + "x" * 200_000, "neither JSON nor a CSV"),
        ('{"a": ' + "[" * 100_000, "line 1"),
        ('{"requests": [{"t": 0, "in": 1, "out": 1}, {"t": 1, ', "not an agent session"),
    ],
)
def test_a_malformed_trace_is_refused_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(BadTrace, match=said) as caught:
        read(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "written",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "\ufeff" + text,
        lambda text: text.replace(",", " , ", 2),
        lambda text: text.replace("TIMESTAMP", "Model,TIMESTAMP").replace("2023", "x,2023"),
        lambda text: "\n".join([text.splitlines()[0], *text.splitlines()[:0:-1]]),
        lambda text: text + "\n\n",
    ],
    ids=["CRLF", "BOM", "spaces in the header", "a column more", "unsorted", "blank lines"],
)
def test_other_csv_dialects_are_read(tmp_path: Path, written: Callable[[str], str]) -> None:
    (tmp_path / "plain").write_text(AZURE)
    (tmp_path / "other").write_bytes(written(AZURE).encode())
    assert read(tmp_path / "other").arrivals == read(tmp_path / "plain").arrivals


def test_a_session_is_recognised_by_its_requests(tmp_path: Path) -> None:
    requests = [{"t": t, "in": 10, "out": 5} for t in (0.0, 9.0)]
    (tmp_path / "late.json").write_text(json.dumps({"about": "x" * 9000, "requests": requests}))
    assert len(read(tmp_path / "late.json").sessions[0].turns) == 2


@pytest.mark.parametrize("name", ["trace.gz", "session.json.gz"])
@pytest.mark.parametrize("broken", ["cut", "garbled"])
def test_a_broken_gzip_is_refused(tmp_path: Path, name: str, broken: str) -> None:
    whole = gzip.compress(AZURE.encode() * 50)
    (tmp_path / name).write_bytes(whole[:-20] if broken == "cut" else whole[:20] + b"\xff" * 40 + whole[60:])
    with pytest.raises(BadTrace):
        read(tmp_path if name.startswith("session") else tmp_path / name)


def test_a_trace_of_almost_empty_calls_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty-calls.csv"
    header = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    path.write_text(header + "".join(f"2023-11-16 18:{i:02d}:00,0,0\n" for i in range(60)))
    with pytest.raises(TooMany, match=r"load 1\.1 for 600 s is [0-9,]+ programs .* fewer --seconds"):
        worker.run(Job("concord", str(path)), tmp_path)


def test_a_trace_without_counted_programs_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "at-once.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "2023-11-16 18:15:00,500,100\n" * 60)
    with pytest.raises(TooFew, match="none arrives between 2 and 18 s"):
        worker.run(Job("concord", str(path), seconds=20.0), tmp_path)


@pytest.mark.parametrize("arrivals", list(Arrivals))
def test_the_load_is_gpu_time_per_second(trace: Trace, arrivals: Arrivals) -> None:
    setting = Setting(seconds=200.0)
    made = programs(trace, Workload(load=1.2, arrivals=arrivals), setting)
    work = sum(sum(gpu_seconds(program.stages, setting.step, setting.slots)) for program in made)
    assert work / setting.seconds == pytest.approx(1.2, rel=0.1)
    half = programs(trace, Workload(load=0.6, arrivals=arrivals), setting)
    assert len(half) == pytest.approx(len(made) / 2, abs=1)
    assert all(0 <= program.at < setting.seconds for program in made)


def test_a_generated_workload_has_the_lengths_of_table_6_1(tmp_path: Path) -> None:
    """Median and 95th percentile: of single calls, and of all calls of a compound request together."""
    path = synthetic_traces.write_workload(tmp_path / "made-up.json")
    assert path.read_bytes() == synthetic_traces.write_workload(tmp_path / "again.json").read_bytes()
    generated = synthetic_traces.read_workload(path)
    compound = Workload(mix=Mix(0.0, 0.0, 1.0))
    for place, one in enumerate(synthetic_traces.APPLICATIONS):
        alone = replace(generated, sessions=generated.sessions[place :: len(synthetic_traces.APPLICATIONS)])
        made = [program.calls for program in programs(alone, compound, Setting(seconds=4000.0))]
        for whole, wanted in (
            ([sum(call.prompt for call in calls) for calls in made], one.all_prompts),
            ([sum(call.output for call in calls) for calls in made], one.all_answers),
        ):
            whole.sort()
            assert whole[len(whole) // 2] == pytest.approx(wanted.median, rel=0.25)
            assert whole[len(whole) * 95 // 100] == pytest.approx(wanted.p95, rel=0.25)
    answers = sorted(arrival.call.output for arrival in generated.arrivals)
    assert 225 < answers[len(answers) // 2] < 410, "between the two applications' medians"


def test_a_truncated_generated_trace_is_refused(tmp_path: Path) -> None:
    path = synthetic_traces.write_workload(tmp_path / "made-up.json", count=5)
    path.write_text(path.read_text()[:-100])
    with pytest.raises(BadTrace, match="generated again"):
        synthetic_traces.read_workload(path)
    (tmp_path / "azure.csv").write_text(AZURE)
    assert synthetic_traces.read_workload(tmp_path / "azure.csv") == read(tmp_path / "azure.csv")


def test_the_seed_fixes_the_programs(trace: Trace) -> None:
    setting = Setting(seconds=30.0)
    first, again, other = (programs(trace, Workload(seed=seed), setting) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_programs_have_the_mix_and_slos(trace: Trace) -> None:
    made = programs(trace, Workload(mix=Mix(0.0, 0.0, 1.0), slo=ARTIFACT.scaled(0.5)), Setting(seconds=60.0))
    assert {program.kind for program in made} == {SloClass.COMPOUND}
    assert all(program.deadline_s == 4.0 * len(program.stages) for program in made)
    assert any(len(stage.calls) > 1 for program in made for stage in program.stages)
    assert all(stage.tool_s > 0 for program in made for stage in program.stages[1:])


def test_predictions_are_calibrated_and_sharper_with_more_correlation() -> None:
    lengths = [10 * (i % 100 + 1) for i in range(1000)]
    told = LengthHints(lengths, seed=3)
    widths = []
    for correlation in (0.2, 0.9):
        knows = Knowledge(correlation=correlation)
        sketches = [(told.sketch(knows, ProgramId(i), 0, Call(1, n)), n) for i, n in enumerate(lengths)]
        below = [n <= sketch.quantile(0.9) for sketch, n in sketches if sketch is not None]
        assert fmean(below) == pytest.approx(0.9, abs=0.03)
        widths.append(fmean(s.quantile(0.9) - s.quantile(0.1) for s, _ in sketches if s is not None))
    assert widths[1] < widths[0] / 1.5


@given(st.integers(1, 2000), st.integers(0, 5))
def test_an_oracle_knows_the_length_and_none_knows_nothing(length: int, seed: int) -> None:
    told = LengthHints([5, 50, 500], seed)
    oracle = told.sketch(Knowledge(Lengths.ORACLE), ProgramId(1), 0, Call(1, length))
    assert oracle is not None
    assert oracle.quantile(0.5) == length
    assert told.sketch(Knowledge(Lengths.NONE), ProgramId(1), 0, Call(1, length)) is None
    assert told.sketch(Knowledge(Lengths.MEAN), ProgramId(1), 0, Call(1, length)) == told.sketch(
        Knowledge(Lengths.MEAN), ProgramId(2), 0, Call(1, 7)
    )


def test_later_stages_are_told_only_with_the_plan(trace: Trace) -> None:
    made = programs(trace, Workload(mix=Mix(0.0, 0.0, 1.0)), Setting(seconds=30.0))
    program = next(program for program in made if len(program.stages) == 3)
    told = LengthHints([1, 2], 0)
    tags = {
        structure: tags_of(program, 0, 0, program.at, replace(Knowledge(), structure=structure), told)
        for structure in Structure
    }
    assert "plan_rest" not in tags[Structure.HIDDEN] and "compound_stages" not in tags[Structure.HIDDEN]
    planned, true = tags[Structure.PLAN]["plan_rest"], tags[Structure.ORACLE]["plan_rest"]
    assert isinstance(planned, list) and isinstance(true, list) and len(planned) == len(true) == 8
    last = program.stages[-1]
    assert true[4:] == [len(last.calls), *(fmean(x) for x in _lengths(last.calls)), last.tool_s]
    assert planned[5:7] == [last.typical_prompt, last.typical_output]


def _lengths(calls: tuple[Call, ...]) -> tuple[list[int], list[int]]:
    return [call.prompt for call in calls], [call.output for call in calls]


def test_a_fit_finds_the_model_that_made_the_times() -> None:
    model = StepModel(12.0, 0.02, 0.09, 0.05)
    spans = []
    for i in range(1, 40):
        steps, sequences, kcontext, prefill = 10.0 * i, 640.0 * (i % 7 + 1), 900.0 * (i % 5 + 1), 800.0 * (i % 11)
        ms = model.base_ms * steps + model.per_seq_ms * sequences
        ms += model.per_kctx_ms * kcontext + model.per_prefill_ms * prefill
        spans.append(Span(ms / 1000, steps, sequences, kcontext, prefill))
    found = fit(spans, StepModel())
    assert found.step_ms(64, 64_000, 500) == pytest.approx(model.step_ms(64, 64_000, 500), rel=0.01)
    with pytest.raises(BadSteps, match="2 measured spans"):
        fit(spans[:2], StepModel())


def test_the_shipped_model_is_the_policys_default_and_one_written_reads_back(tmp_path: Path) -> None:
    shipped = steps.load()
    assert shipped.step == StepModel()
    shipped.write(tmp_path / "copy.json")
    assert steps.load(tmp_path / "copy.json") == shipped
    (tmp_path / "bad.json").write_text('{"step": {"base_ms": 1}}')
    with pytest.raises(BadSteps, match="per_seq_ms"):
        steps.load(tmp_path / "bad.json")


def test_a_benchmark_says_what_is_wrong_with_its_trace_without_a_traceback(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no-trace: cannot be read"):
        rows.run(lambda: bool(read(tmp_path / "no-trace")))
