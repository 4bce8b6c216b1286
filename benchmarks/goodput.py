"""Goodput of Concord and of every other scheduler, replayed on vLLM's own scheduler (docs/evaluation.md).

    python benchmarks/goodput.py [--quick] [--json] [--trace PATH] [--only load …] [--seeds 5] [--minutes N]
        [--page PAGE.md] [--report PAGE.md] [--results FILE] [--out FOLDER] [--fresh] [--verify N]

The run can be stopped, and goes on later: each replay's result is stored in FOLDER under its configuration
(scheduler, trace, load, seed, limits, step model). A result names the version of the code that computed it. A
stored result is used whatever that version is; the command says how many are of another one. `--fresh` uses only
those of the present version.

`--page docs/evaluation.md` only writes the page by which users pick a policy, from the stored results.

`--report PAGE.md` writes the tables into PAGE.md, between its marks, and beside it the results (PAGE.jsonl.gz) and a
plot (PAGE.png). `--results FILE` takes the stored results from such a file. `--verify N` replays N of them, chosen at
random, and compares each figure; it ends with status 1 if one differs. Without `--results` it verifies
benchmarks/data/evaluation.jsonl.gz. With `--json` the last line is one object.

`--quick` is load 1.1, 150 s, two seeds, every policy. RAMIFY_TRACE names the trace if `--trace` does not. With
neither, arrivals and lengths are generated (benchmarks/replay/inputs/synthetic_traces.py).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from math import inf
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
STORED = ROOT / "benchmarks" / "data" / "evaluation.jsonl.gz"
sys.path.insert(0, str(ROOT))

from benchmarks.arguments import count, to_write, within, writable  # noqa: E402
from benchmarks.machine import machine  # noqa: E402
from benchmarks.replay import evaluation  # noqa: E402
from benchmarks.replay.baselines.contenders import contender  # noqa: E402
from benchmarks.replay.bounds.shares import Bounds  # noqa: E402
from benchmarks.replay.errors import ReplayError  # noqa: E402
from benchmarks.replay.inputs.step_times import SHIPPED, load  # noqa: E402
from benchmarks.replay.inputs.synthetic_traces import read_workload, write_workload  # noqa: E402
from benchmarks.replay.inputs.traces import Trace  # noqa: E402
from benchmarks.replay.inputs.workload import programs  # noqa: E402
from benchmarks.replay.jobs import Job, Result  # noqa: E402
from benchmarks.replay.pool import run_all, stored_result, worker  # noqa: E402
from benchmarks.replay.report import decision_page  # noqa: E402
from benchmarks.replay.report.comparisons import FIGURES, Row, by_class  # noqa: E402
from benchmarks.replay.report.html_report import write_page  # noqa: E402
from benchmarks.replay.report.markdown_report import BEGIN, END, around, update, where  # noqa: E402
from benchmarks.replay.report.target_rows import bounds_needed, rows_of  # noqa: E402
from benchmarks.replay.report.thesis_rows import thesis_rows_of  # noqa: E402
from benchmarks.replay.results import code_version, pack, read_packed, unpack  # noqa: E402
from benchmarks.replay.verification import of_these_files, sample, verify  # noqa: E402
from ramify.serving.policy.types import SloClass  # noqa: E402


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="load 1.1, 150 s, two seeds, every policy")
    parser.add_argument("--json", action="store_true", help="the last line is one object")
    parser.add_argument("--trace", type=Path, help="arrivals and lengths: Azure CSV, Mooncake JSON lines, sessions")
    parser.add_argument("--steps", type=Path, default=SHIPPED, help="a step-time model's file")
    parser.add_argument("--only", action="append", help="only this section; repeatable")
    parser.add_argument("--contender", action="append", help="only this one; repeatable")
    parser.add_argument("--load", action="append", type=float, help="only this load; repeatable")
    parser.add_argument("--replicas", action="append", type=int, help="only so many engines; repeatable")
    parser.add_argument("--seeds", type=count(1), help="so many (5; 2 with --quick)")
    parser.add_argument("--seconds", type=within(1, 86_400), help="of arrivals in a replay (600; 150 with --quick)")
    parser.add_argument("--workers", type=count(1), default=min(2, os.cpu_count() or 1))
    parser.add_argument("--report", type=to_write, help="write the tables between this page's marks; see above")
    parser.add_argument("--page", type=to_write, help="only write the page for users, from stored results")
    parser.add_argument("--results", type=Path, help="use the stored results of this file (*.jsonl.gz)")
    parser.add_argument(
        "--fresh", action="store_true", help="use no result that another version of the code computed"
    )
    parser.add_argument("--verify", type=count(1), metavar="N", help="replay N stored results and compare; no report")
    parser.add_argument("--minutes", type=within(0, inf), default=inf, help="then start no other replay, and report")
    parser.add_argument("--out", type=Path, help="results, plots, raw JSON (build/goodput; with --quick -quick)")
    asked = parser.parse_args()
    asked.out = asked.out or ROOT / "build" / ("goodput-quick" if asked.quick else "goodput")
    return asked


def main() -> int:
    asked = arguments()
    try:
        if asked.page:
            results = list(read_packed(asked.results or STORED).values())
            asked.page.write_text(decision_page.page(results), encoding="utf-8")
            return 0
        if asked.verify:
            return verified(asked)
        base, wanted = prepared(asked)
        jobs = [job for section in wanted for job in section.jobs if among(job, asked)]
        if not jobs:
            loads = sorted({job.load for section in wanted for job in section.jobs})
            raise ReplayError(f"no replay is of {said(asked)}: loads are {', '.join(map(str, loads))}")
        bounds = Bounds(asked.out / "results")
        results = replayed(jobs, asked, bounds.missing(bounds_needed(jobs, base)))
        if not results:
            raise ReplayError(f"no replay was done in {asked.minutes:g} minutes: ask for more --minutes")
        table = evaluation.ResultTable(results)
        rows = [*rows_of(table, base, bounds), *thesis_rows_of(table, base)]
        page = write_page(asked.out, results, rows, wanted)
        if asked.report:
            pack(asked.report.with_suffix(".jsonl.gz"), results)
            update(asked.report, results, rows, pictured(asked, wanted, results))
        report(results, rows, page, asked)
    except (ReplayError, OSError) as error:
        print(f"goodput: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            "goodput: stopped; the results so far are stored, and the same command goes on from there",
            file=sys.stderr,
        )
        return 130
    return 0


def prepared(asked: argparse.Namespace) -> tuple[Job, list[evaluation.Section]]:
    """Return the base job and the sections. Whatever would fail only after hours of replays fails here."""
    for package in ("matplotlib", "scipy"):
        if importlib.util.find_spec(package) is None:
            raise ReplayError(f"{package} is not installed: pip install 'ramify[bench,serve]' has it")
    load(asked.steps)
    for name in asked.contender or ():
        contender(name)
    if asked.report:
        if not asked.report.exists():
            asked.report.write_text(f"# The evaluation's tables\n\n{BEGIN}\n{END}\n", encoding="utf-8")
        around(asked.report)
        for beside in (".jsonl.gz", ".png"):
            writable(asked.report.with_suffix(beside))
    (asked.out / "results").mkdir(parents=True, exist_ok=True)
    if asked.results:
        print(f"{unpack(asked.results, asked.out / 'results')} results taken from {asked.results}", flush=True)
    trace = named_trace(asked) or write_workload(asked.out / "made-up.json")
    workload = read_workload(trace)
    seconds = asked.seconds or (150.0 if asked.quick else 600.0)
    base = Job("concord", str(trace), seconds=seconds, steps=str(asked.steps))
    sections = (
        evaluation.quick(base, range(asked.seeds or 2))
        if asked.quick
        else evaluation.sections(base, range(asked.seeds or 5))
    )
    names = [section.name for section in sections]
    if unknown := [name for name in asked.only or () if name not in names]:
        raise ReplayError(f"no section is called {', '.join(unknown)}: there are {', '.join(names)}")
    sections = [section for section in sections if not asked.only or section.name in asked.only]
    if jobs := [job for section in sections for job in section.jobs if among(job, asked)]:
        print(repetition(workload, jobs), end="", flush=True)
    return base, sections


def named_trace(asked: argparse.Namespace) -> Path | None:
    return asked.trace or (Path(os.environ["RAMIFY_TRACE"]) if "RAMIFY_TRACE" in os.environ else None)


def verified(asked: argparse.Namespace) -> int:
    """Replay some of the stored results. Returns 1 if one of their figures differs now."""
    trace, packed = named_trace(asked), asked.results or STORED
    if trace is None:
        raise ReplayError("--verify needs the trace that the stored results are of: name it with --trace")
    read_workload(trace)
    base = Job("concord", str(trace), steps=str(asked.steps))
    stored = [one for one in of_these_files(read_packed(packed), base) if among(one.job, asked)]
    chosen = sample(stored, asked.verify, Random())
    print(f"{len(chosen)} of {len(stored)} stored results, chosen at random; this is {code_version()}", flush=True)
    differ = 0
    with worker() as process:

        def replay(job: Job) -> Result:
            return Result.from_json(json.dumps(process.ask({"replay": json.loads(job.to_json())})))

        for one, figures in verify(chosen, replay):
            differ += bool(figures)
            verdict = f"DIFFERS in {len(figures)} figures" if figures else "the same"
            print(f"{one.job.contender}, {where(one.job)}, seed {one.job.seed} ({one.code}): {verdict}", flush=True)
            for figure in figures:
                print(f"    {figure}", flush=True)
    print(f"{len(chosen) - differ} of {len(chosen)} give the same figures now")
    return 1 if differ else 0


def repetition(trace: Trace, jobs: Sequence[Job]) -> str:
    """Return a line that says how often a replay repeats the trace's single requests; "" if it does not repeat them.

    Workflows of a trace with sessions are drawn from those, and may repeat by chance.
    """

    def taken(job: Job) -> int:
        made = programs(trace, job.workload, job.setting)
        return sum(len(one.calls) for one in made if not (trace.sessions and one.kind is SloClass.COMPOUND))

    needs = {job: taken(job) for job in dict.fromkeys(one.but(contender="", seed=0, slo="loose") for one in jobs)}
    most = max(needs, key=needs.__getitem__)
    needed, there = needs[most], len(trace.arrivals)
    if needed <= there:
        return ""
    cached = any(arrival.call.blocks for arrival in trace.arrivals)
    also = "; a repeated request finds its blocks in the prefix cache" if cached else ""
    return (
        f"{trace.name}: {there:,} requests, of which a replay at {where(most)} takes {needed:,}: "
        f"they come {needed / there:.1f} times over{also}\n"
    )


def said(asked: argparse.Namespace) -> str:
    parts = {"--only": asked.only, "--contender": asked.contender, "--load": asked.load, "--replicas": asked.replicas}
    return " and ".join(f"{option} {', '.join(map(str, given))}" for option, given in parts.items() if given)


def among(job: Job, asked: argparse.Namespace) -> bool:
    given = ((asked.contender, job.contender), (asked.load, job.load), (asked.replicas, job.replicas))
    return all(not wanted or one in wanted for wanted, one in given)


def replayed(jobs: Sequence[Job], asked: argparse.Namespace, bounds: Sequence[Job]) -> list[Result]:
    """Return the results of the jobs. `bounds` are computed afterwards, and count in the expected time."""
    kept = asked.out / "results"
    jobs = sorted(dict.fromkeys(jobs), key=lambda job: job.seed)  # a stopped run is complete for fewer seeds
    code = code_version() if asked.fresh else None
    found = {job: stored_result(job, kept, code) for job in jobs}
    todo = [job for job, one in found.items() if one is None]
    expected = evaluation.expected_s(todo, asked.workers)
    after = sum(job.seconds * evaluation.BOUND_S for job in bounds)
    also = f", and then {len(bounds)} LP bounds, about {lasting(after)}" if bounds else ""
    kept_before = f"{len(jobs)} replays, {len(jobs) - len(todo)} stored before"
    if other := sum(one is not None and one.code != code_version() for one in found.values()):
        kept_before += f" ({other} of them by another version of the code: --verify compares, --fresh replays them)"
    print(f"{kept_before}; about {lasting(expected)} on idle cores{also}", flush=True)
    begun, done = time.perf_counter(), 0

    def told(result: Result, old: bool) -> None:
        nonlocal done
        if old:
            return
        done += 1
        job, score = result.job, result.score
        took = time.perf_counter() - begun
        classes = " ".join(f"{kind} {share:.2f}" for kind, share in score.attained.items())
        print(
            f"[{done}/{len(todo)}, {took:5.0f} s] {job.contender:<26} load {job.load} seed {job.seed} {job.slo:<5} "
            f"requests {score.request:.3f} tokens {score.token:.3f} workflows {score.workflow:.3f} | {classes} | "
            f"{score.simulated_s / result.cpu_s:.1f} × simulated time",
            flush=True,
        )

    return list(run_all(jobs, kept, told, asked.workers, within_s=asked.minutes * 60, code=code).values())


def lasting(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def pictured(
    asked: argparse.Namespace, sections: Sequence[evaluation.Section], results: Sequence[Result]
) -> str | None:
    """Copy the plot of goodput against load beside the report; None if these results have none."""
    drawn, beside = asked.out / "load.png", asked.report.with_suffix(".png")
    there = {result.job for result in results}
    made = any(section.name == "load" and not there.isdisjoint(section.jobs) for section in sections)
    if not made or not drawn.exists():  # a plot there may be of an older run
        return None
    shutil.copyfile(drawn, beside)
    return beside.name


def report(results: Sequence[Result], rows: Sequence[Row], page: Path, asked: Any) -> None:
    print()
    for row in rows:
        verdict = {True: "met", False: "MISSED", None: "-"}[row["met"]]
        ours = "-" if row["ours"] is None else f"{row['ours']:.4g}"
        peer = "" if row["peer_value"] is None else f"{row['peer']} {row['peer_value']:.4g}"
        print(f"{row['name']:<72} {ours:>9} {row['unit']:<8} {row['target']:<18} {verdict:<7} {peer}")
        if row.get("note"):
            print(f"    {row['note']}")
    raw = asked.out / "evaluation.json"
    raw.write_text(json.dumps([json.loads(result.to_json()) for result in results]), encoding="utf-8")
    print(f"\nraw results: {raw}\npage: {page}")
    if asked.json:
        print(json.dumps({"rows": list(rows), "goodput": shown(results), "machine": machine()}, allow_nan=False))


def shown(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return means over the seeds for each contender and circumstances: all goodputs, and the share of each class."""
    table = evaluation.ResultTable(results)
    found = []
    for job in dict.fromkeys(result.job.but(seed=0) for result in results):
        scores = table.scores(job)
        found.append(
            {
                "contender": job.contender,
                "where": where(job),
                "seeds": len(scores),
                **{name: fmean(FIGURES[name](score) for score in scores) for name in FIGURES},
                "attained": by_class(scores),
            }
        )
    return found


if __name__ == "__main__":
    sys.exit(main())
