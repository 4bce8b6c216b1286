"""The table of targets: what is compared with what, and what each row says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isnan
from pathlib import Path

import pytest

from benchmarks.replay import evaluation
from benchmarks.replay.baselines.contenders import REFUSING
from benchmarks.replay.bounds.shares import Bounds, Share
from benchmarks.replay.evaluation import ResultTable
from benchmarks.replay.jobs import Job, Result
from benchmarks.replay.report.comparisons import MET, Row
from benchmarks.replay.report.html_report import write_page
from benchmarks.replay.report.target_rows import rows_of
from tests.benchmarks.replay.sample_results import result

BOUNDS = Bounds()  # kept: most tests ask for the same

# Row; who is judged and against whom; what of a score; what the peer has of it; the target; what meets it barely.
LOAD_11, LOAD_13 = "load 1.1, loose", "load 1.3, loose"
TARGETS = [
    (f"{LOAD_11}: requests against FCFS", "concord", "fcfs", "request", 0.2, ">= 2.2 x", 0.44),
    (f"{LOAD_13}: requests against FCFS", "concord", "fcfs", "request", 0.1, ">= 5 x", 0.5),
    (f"{LOAD_11}: requests against PLAS", "concord", "plas", "request", 0.5, ">= 1.2 x", 0.6),
    (f"{LOAD_13}: requests against PLAS", "concord", "atlas", "request", 0.5, ">= 1.2 x", 0.6),
    (f"{LOAD_11}: requests against LTR", "concord", "ltr", "request", 0.5, ">= 1.12 x", 0.56),
    (f"{LOAD_11}: share of the gap to the LP bound closed", "concord", "edf-plan", "request", 0.5, ">= 0.8", 0.9),
    (
        f"{LOAD_11}: share of the gap to the LP bound closed, whole run",
        *("concord", "edf-plan", "whole", 0.5, ">= 0.8", 0.9),
    ),
    (f"{LOAD_13}: not behind program-level SRPT", "concord", "program-srpt-paced", "request", 0.5, ">= 0", 0.5),
    (f"{LOAD_11}: share of the LP bound, request goodput", "concord", "", "request", 0.0, ">= 0.97", 0.97),
    (f"{LOAD_11}: share of the LP bound, request goodput, whole run", "concord", "", "whole", 0.0, ">= 0.97", 0.97),
    ("load 1.6, loose: share of the LP bound, token goodput", "concord", "", "token", 0.0, ">= 0.9", 0.9),
    (
        f"{LOAD_11}: share of the LP bound, token goodput, by the form for it",
        *("concord-tokens", "", "token", 0.0, ">= 0.9", 0.9),
    ),
    (f"{LOAD_11}: oracle less predicted lengths", "concord", "concord-oracle", "request", 0.9, "<= 0.01", 0.89),
    (
        "load 1.1, tight: oracle less predicted lengths",
        *("concord", "concord-oracle", "request", 0.9, "<= 0.02", 0.88),
    ),
    (
        f"{LOAD_13}: oracle less predicted lengths, token goodput, by the form for it",
        *("concord-tokens", "concord-tokens-oracle", "token", 0.9, "<= 0.01", 0.89),
    ),
    (f"{LOAD_11}: the plan's worth", "concord", "concord, stages hidden", "request", 0.5, ">= 0.04", 0.54),
    ("load 0.9, loose: throughput against FCFS", "concord", "fcfs", "throughput", 1000.0, ">= 0.98 x", 980.0),
    ("load 0.9: behind no baseline", "concord", "edf", "request", 0.5, ">= -0.005", 0.495),
    (f"{LOAD_11}: latency-sensitive attainment", "concord", "", "latency", 0.0, ">= 0.95", 0.95),
]


def test_rows_and_page_say_what_was_missed(base: Job, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need the extra `bench`")
    results = [result(base.but(seed=i), 0.9) for i in range(2)]
    results += [result(base.but(contender=name, seed=i), 0.6) for name in ("fcfs", "edf-plan") for i in range(2)]
    rows = rows_of(ResultTable(results), base, BOUNDS)
    by_name = {row["name"]: row for row in rows}
    fcfs = by_name["load 1.1, loose: requests against FCFS"]
    assert fcfs["ours"] == fcfs["ratio"] == pytest.approx(1.5) and fcfs["met"] is False
    assert fcfs["note"].startswith("by seed 1.500 to 1.500")
    gap = by_name["load 1.1, loose: share of the gap to the LP bound closed"]
    assert gap["ours"] == pytest.approx(0.3 / 0.4) and gap["met"] is False
    assert gap["ratio"] == pytest.approx(1.5), "of what the two attain, and not of a share of a gap to that"
    section = evaluation.Section("load", (base, base.but(load=1.3), base.but(contender="fcfs")))
    page = write_page(tmp_path, results, rows, [section]).read_text()
    assert "missed" in page and "data:image/png;base64," in page and "<script" not in page
    assert (tmp_path / "over-time-1.1.png").exists()


@pytest.mark.parametrize(("targets_s", "short"), [(600.0, True), (20.0, False)])
def test_a_short_run_says_that_its_targets_are_for_a_longer_one(
    base: Job, monkeypatch: pytest.MonkeyPatch, targets_s: float, short: bool
) -> None:
    """The row keeps its verdict: a miss is not hidden."""
    monkeypatch.setattr("benchmarks.replay.report.target_rows._TARGETS_S", targets_s)
    rows = rows_of(ResultTable([result(base, 0.9), result(base.but(contender="fcfs"), 0.6)]), base, BOUNDS)
    fcfs = next(row for row in rows if row["name"] == "load 1.1, loose: requests against FCFS")
    assert fcfs["met"] is False
    assert ("the target is for 600 s, this is of 20" in fcfs["note"]) is short


def test_a_contender_with_fewer_seeds_is_compared_over_those(base: Job) -> None:
    """FCFS and EDF did not run the second, harder seed: they must not gain by that."""
    results = [result(base.but(seed=0), 0.9), result(base.but(seed=1), 0.3)]
    results += [result(base.but(contender=name, seed=0), 0.6) for name in ("fcfs", "edf-plan")]
    results += [result(base.but(contender="plas", seed=i), level) for i, level in enumerate((0.7, 0.1))]
    by_name = {row["name"]: row for row in rows_of(ResultTable(results), base, BOUNDS)}
    assert by_name["load 1.1, loose: requests against FCFS"]["ours"] == pytest.approx(0.9 / 0.6)
    assert by_name["load 1.1, loose: throughput against FCFS"]["ours"] == pytest.approx(1.0)
    gap = by_name["load 1.1, loose: share of the gap to the LP bound closed"]
    assert (gap["peer"], gap["peer_value"]) == ("plas", pytest.approx(0.4))
    assert gap["ours"] == pytest.approx((0.6 - 0.4) / (1.0 - 0.4))


def test_a_multiple_is_given_by_seed_where_the_peer_has_something(base: Job) -> None:
    results = [result(base.but(seed=i), 0.9) for i in range(3)]
    results += [result(base.but(contender="fcfs", seed=i), level) for i, level in enumerate((0.6, 0.3, 0.0))]
    row = {row["name"]: row for row in rows_of(ResultTable(results), base, BOUNDS)}
    fcfs = row["load 1.1, loose: requests against FCFS"]
    assert fcfs["ours"] == pytest.approx(3.0)
    assert fcfs["note"].startswith("by seed 1.500 to 3.000; the other has less than half a point on 1 of 3 seeds")


def test_the_gap_is_given_by_seed(base: Job) -> None:
    """The bound of every seed is 1 here; on the third there is no gap."""
    pairs = [(0.9, 0.8), (0.8, 0.2), (1.0, 0.999)]
    results = [result(base.but(seed=i), ours) for i, (ours, _) in enumerate(pairs)]
    results += [result(base.but(contender="edf-plan", seed=i), theirs) for i, (_, theirs) in enumerate(pairs)]
    rows = {row["name"]: row for row in rows_of(ResultTable(results), base, BOUNDS)}
    note = rows["load 1.1, loose: share of the gap to the LP bound closed"]["note"]
    assert "by seed 0.500 to 0.750; no gap on 1 of 3 seeds;" in note


@pytest.mark.parametrize(("name", "ours", "peer", "field", "theirs", "target", "barely"), TARGETS)
def test_a_target_is_missed_just_below_it(
    monkeypatch: pytest.MonkeyPatch,
    base: Job,
    name: str,
    ours: str,
    peer: str,
    field: str,
    theirs: float,
    target: str,
    barely: float,
) -> None:
    bounded = "whole" if "whole run" in name else "token" if "token" in name else "request"
    share = Share(**{one: 1.0 if one == bounded else 0.95 for one in ("request", "token", "whole")})
    monkeypatch.setattr(Bounds, "of", lambda self, job, seeds: share)
    load, slo = float(name.split()[1].rstrip(",:")), "tight" if ", tight" in name else "loose"

    def row(value: float) -> Row:
        made = []
        for who, has in ((ours, value), (peer, theirs), ("concord", 0.5)):
            if who and who not in [one.job.contender for one in made]:
                part = {"attained": {"latency": has}} if field == "latency" else {field: has}
                made.append(result(base.but(contender=who, load=load, slo=slo), 0.5))
                made[-1] = replace(made[-1], score=replace(made[-1].score, **part))
        (found,) = [row for row in rows_of(ResultTable(made), base, BOUNDS) if row["name"] == name]
        return found

    hair = barely * 1e-6
    above, below = row(barely + hair), row(barely - hair)
    assert (above["met"], below["met"]) == (True, False)
    assert above["target"] == below["target"] == target


def test_a_seeds_gap_is_to_its_own_bound(base: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def of(self: Bounds, job: Job, seeds: Sequence[int]) -> Share:
        return Share(*[sum((0.6, 1.0)[seed] for seed in seeds) / len(seeds)] * 3)

    monkeypatch.setattr(Bounds, "of", of)
    made = [result(base, 0.5), result(base.but(seed=1), 0.8)]
    made += [result(base.but(contender="edf-plan", seed=seed), 0.4) for seed in range(2)]
    rows = {row["name"]: row for row in rows_of(ResultTable(made), base, BOUNDS)}
    for name in ("", ", whole run"):
        row = rows[f"load 1.1, loose: share of the gap to the LP bound closed{name}"]
        assert row["ours"] == pytest.approx((0.65 - 0.4) / (0.8 - 0.4))
        assert "by seed 0.500 to 0.667" in row["note"]


def test_no_multiple_is_given_of_next_to_nothing(base: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for the mean nor for a seed."""
    monkeypatch.setattr("benchmarks.replay.report.target_rows._TARGETS_S", base.seconds)
    rows = rows_of(ResultTable([result(base, 0.9), result(base.but(contender="fcfs"), 0.004)]), base, BOUNDS)
    row = next(row for row in rows if row["name"] == "load 1.1, loose: requests against FCFS")
    assert (row["ours"], row["ratio"], row["met"]) == (None, None, True)
    assert row["note"] == "concord 0.900; fcfs has less than half a point, of which no multiple is said"
    levels = {"concord": (0.9, 0.8, 0.7), "fcfs": (0.3, 0.2, 0.004)}
    made = [result(base.but(contender=c, seed=i), has) for c, seeds in levels.items() for i, has in enumerate(seeds)]
    row = next(
        row for row in rows_of(ResultTable(made), base, BOUNDS) if row["name"].endswith("requests against FCFS")
    )
    assert row["note"] == "by seed 3.000 to 4.000; the other has less than half a point on 1 of 3 seeds"
    two = [one for one in made if one.job.seed]
    row = next(
        row for row in rows_of(ResultTable(two), base, BOUNDS) if row["name"].endswith("requests against FCFS")
    )
    assert row["note"] == "the other has less than half a point on 1 of 2 seeds", "of one seed there is no spread"


def test_the_best_refusing_form_counts(base: Job) -> None:
    levels = {"concord": 0.9, "plas, refusing": 0.7, "plas-plan, refusing": 0.75, "fcfs-drop": 0.5}
    levels["fcfs-drop, 0.5 s"] = 0.6
    table = ResultTable([result(base.but(contender=name), level) for name, level in levels.items()])
    rows = {row["name"]: row for row in rows_of(table, base, BOUNDS)}
    of = "load 1.1, loose: requests against"
    assert rows[f"{of} PLAS that refuses what is late"]["peer"] == "plas-plan, refusing"
    assert rows[f"{of} FCFS that drops what has waited"]["peer"] == "fcfs-drop, 0.5 s"
    assert f"{of} LTR that refuses what is late" not in rows


@pytest.mark.parametrize("form", [one.name for one in REFUSING if one.name != "least-laxity, by medians"])
def test_every_refusing_form_can_be_the_best(base: Job, form: str) -> None:
    table = ResultTable([result(base, 0.9), result(base.but(contender=form), 0.6)])
    (row,) = [row for row in rows_of(table, base, BOUNDS) if row["peer"] == form and "against" in row["name"]]
    assert row["ours"] == pytest.approx(1.5) and row["met"] is None


def test_the_worth_of_lengths_in_tokens_comes_with_each_classs_attainment(base: Job) -> None:
    made = [result(base.but(contender=name), 0.8) for name in ("concord", "concord-tokens", "concord-tokens-oracle")]
    rows = {row["name"]: row for row in rows_of(ResultTable(made), base, BOUNDS)}
    row = rows["load 1.1, loose: oracle less predicted lengths, token goodput, by the form for it"]
    assert "; met of latency 1.000; " in row["note"]


def test_latency_sensitive_attainment_has_a_target_at_load_1_1_only(base: Job) -> None:
    made = [result(base.but(load=load), 0.8) for load in (1.1, 1.3)]
    names = [row["name"] for row in rows_of(ResultTable(made), base, BOUNDS) if "attainment" in row["name"]]
    assert names == ["load 1.1, loose: latency-sensitive attainment"]


def test_a_refusing_baseline_has_a_row_and_counts_for_the_gap(
    base: Job,
) -> None:
    levels = {"concord": 0.9, "edf-plan": 0.6, "ltr, refusing": 0.8, "plas, refusing": 0.5, "fcfs-drop": 0.3}
    table = ResultTable([result(base.but(contender=name), level) for name, level in levels.items()])
    rows = {row["name"]: row for row in rows_of(table, base, BOUNDS)}
    against = [rows[f"load 1.1, loose: requests against {name}"] for name in (
        "LTR that refuses what is late", "PLAS that refuses what is late", "FCFS that drops what has waited",
    )]  # fmt: skip
    assert [row["ours"] for row in against] == [pytest.approx(0.9 / level) for level in (0.8, 0.5, 0.3)]
    assert rows["load 1.1, loose: share of the gap to the LP bound closed"]["peer"] == "ltr, refusing"


def test_a_class_without_programs_has_no_row(base: Job) -> None:
    one = result(base, 0.7)
    one = replace(one, score=replace(one.score, attained={"compound": 0.7}))
    assert not [row for row in rows_of(ResultTable([one]), base, BOUNDS) if "attainment" in row["name"]]
    assert isnan(MET["latency"](one.score)) and isnan(MET["deadline"](one.score))


def test_program_srpt_with_true_lengths_is_compared_with_both_forms(base: Job) -> None:
    levels = {"concord": 0.80, "concord-oracle": 0.85, "program-srpt-oracle": 0.83}
    table = ResultTable([result(base.but(contender=name), level) for name, level in levels.items()])
    found = {row["name"]: row for row in rows_of(table, base, BOUNDS)}
    for name, ahead in (
        ("ahead of program-level SRPT that is told true lengths", -0.03),
        ("oracle ahead of program-level SRPT, both told true lengths", 0.02),
    ):
        row = found[f"load 1.1, loose: {name}"]
        assert (row["ours"], row["met"]) == (pytest.approx(ahead), None)


def test_the_oracle_is_compared_with_measured_lengths_too(base: Job) -> None:
    levels = {"concord-oracle": 0.90, "concord": 0.895, "concord, lengths as measured": 0.85}
    table = ResultTable([result(base.but(contender=name), level) for name, level in levels.items()])
    found = {row["name"]: row for row in rows_of(table, base, BOUNDS)}
    told = found["load 1.1, loose: oracle less predicted lengths"]
    measured = found["load 1.1, loose: oracle less lengths as well told as measured"]
    assert (told["met"], measured["met"]) == (True, False)
    assert measured["ratio"] == pytest.approx(0.85 / 0.90)


def test_the_form_that_refuses_nothing_has_a_throughput_row_with_its_cost(base: Job) -> None:
    forms = {"concord": 0.9, "concord, nothing refused": 0.8, "fcfs": 0.6}
    rows = rows_of(ResultTable([result(base.but(contender=name), met) for name, met in forms.items()]), base, BOUNDS)
    row = next(
        row for row in rows if row["name"].endswith("throughput against FCFS, by the form that refuses nothing")
    )
    assert row["met"] is True
    assert row["note"].startswith("requests met less those of the default: -0.100 (one seed)")


def test_throughput_is_given_by_seed_or_says_why_not(base: Job) -> None:
    name = "load 1.1, loose: throughput against FCFS"

    def made(contender: str, seed: int, tokens_s: float) -> Result:
        one = result(base.but(contender=contender, seed=seed), 0.9)
        return replace(one, score=replace(one.score, throughput=tokens_s))

    some = [made("concord", 0, 90.0), made("concord", 1, 99.0), made("fcfs", 0, 100.0), made("fcfs", 1, 100.0)]
    row = {row["name"]: row for row in rows_of(ResultTable(some), base, BOUNDS)}[name]
    assert "by seed 0.900 to 0.990" in row["note"]
    none = [made("concord", 0, 90.0), made("fcfs", 0, 0.0)]
    row = {row["name"]: row for row in rows_of(ResultTable(none), base, BOUNDS)}[name]
    assert (row["ours"], row["met"]) == (None, True) and "fcfs has less than half a point" in row["note"]


def test_the_clairvoyant_is_compared_with_the_same_baseline(base: Job) -> None:
    levels = {"concord": 0.8, "edf-plan": 0.6, "clairvoyant": 0.85}
    results = [result(base.but(contender=name), level) for name, level in levels.items()]
    by_name = {row["name"]: row for row in rows_of(ResultTable(results), base, BOUNDS)}
    reached = by_name["load 1.1, loose: share of the gap to what a clairvoyant reached closed, whole run"]
    assert reached["ours"] == pytest.approx(0.8) and reached["met"] is None
    assert base.but(contender="clairvoyant").key != base.but(contender="concord-oracle").key


def test_no_gap_is_given_without_the_strongest_baseline(base: Job) -> None:
    levels = {"concord": 0.9, "fcfs": 0.1, "edf-feasible": 0.5, "clairvoyant": 0.95}
    rows = rows_of(
        ResultTable([result(base.but(contender=name), level) for name, level in levels.items()]), base, BOUNDS
    )
    assert rows and not [row["name"] for row in rows if "gap" in row["name"]]


def test_the_better_form_of_a_baseline_counts(base: Job) -> None:
    levels = {"concord": 0.9, "ltr": 0.75, "ltr-preempting": 0.8, "plas": 0.6, "atlas": 0.5}
    results = [result(base.but(contender=name), level) for name, level in levels.items()]
    by_name = {row["name"]: row for row in rows_of(ResultTable(results), base, BOUNDS)}
    ltr, plas = (by_name[f"load 1.1, loose: requests against {name}"] for name in ("LTR", "PLAS"))
    assert (ltr["peer"], ltr["ours"]) == ("ltr-preempting", pytest.approx(0.9 / 0.8))
    assert (plas["peer"], plas["ours"]) == ("plas", pytest.approx(1.5))


@pytest.mark.parametrize("form", ["concord-tokens", "concord, calls"])
def test_every_objective_has_a_latency_sensitive_row(base: Job, form: str) -> None:
    starved = result(base.but(contender=form), 0.9)
    starved = replace(starved, score=replace(starved.score, attained={"latency": 0.5}))
    rows = [
        row for row in rows_of(ResultTable([result(base, 0.8), starved]), base, BOUNDS) if "attainment" in row["name"]
    ]
    assert [(row["name"].partition("by the form")[1] != "", row["met"]) for row in rows] == [
        (False, True),
        (True, False),
    ]


def test_behind_program_level_srpt_is_missed_however_few_the_seeds(base: Job) -> None:
    results = [result(base.but(seed=i), level) for i, level in enumerate((0.80, 0.85))]
    results += [result(base.but(contender="program-srpt", seed=i), level) for i, level in enumerate((0.82, 0.89))]
    rows = {row["name"]: row for row in rows_of(ResultTable(results), base, BOUNDS)}
    row = rows["load 1.1, loose: not behind program-level SRPT"]
    assert (row["ours"], row["met"]) == (pytest.approx(-0.03), False)
