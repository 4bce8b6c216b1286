"""The repair example: its edits are exact, its screening says what a world would say, and it repairs programs."""

from __future__ import annotations

import ast
import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from examples.repair.edits import apply_edit
from examples.repair.ranking import Candidate, candidates
from examples.repair.report import RepairReport
from examples.repair.screen import screen
from examples.repair.steps import run_tests, survey, write_edit
from examples.repair.suite import Suite as SuiteData
from examples.repair.suite import Survey, Trial, command, environment, find_programs, read_program, read_survey
from examples.repair.workflow import repair
from ramify import Runtime, fork, workflow
from ramify.compiler.plan import OpKind
from tests.samples import PATIENT

PROGRAMS = Path(__file__).parents[3] / "examples" / "repair" / "programs"
NAMES = find_programs(PROGRAMS)


def survey_of(name: str, folder: Path = PROGRAMS) -> Survey:
    program = read_program(folder / name)
    words = command("survey", SuiteData(name, program.tests), program.files)
    shown = subprocess.run(words, cwd=folder, env=environment(), capture_output=True, text=True, check=True)
    return read_survey(program, json.loads(shown.stdout))


def test_there_are_enough_programs_and_each_is_broken() -> None:
    assert len(NAMES) >= 10
    for name in NAMES:
        lines = sum(len(text.splitlines()) for text in read_program(PROGRAMS / name).sources.values())
        assert 10 <= lines <= 150


@pytest.mark.parametrize("name", ["order_pricing", *(["calculator"] if PATIENT else [])])
def test_every_edit_applies_and_leaves_a_file_that_parses(name: str) -> None:
    found = survey_of(name)
    assert found.failures
    head = candidates(found, limit=10_000).head
    assert len(head) > 500
    texts = set()
    for candidate in head:
        text = apply_edit(found.sources[candidate.edit.path], candidate.edit)
        ast.parse(text)
        texts.add((candidate.edit.path, text))
    assert len(texts) == len(head)


def test_an_edit_of_another_text_is_refused() -> None:
    found = survey_of("text_wrap")
    edit = next(c.edit for c in candidates(found).head if any(change.old for change in c.edit.changes))
    with pytest.raises(ValueError, match="does not stand"):
        apply_edit("something else", edit)


@workflow
async def both_ways(name: str, tried: list[Candidate]) -> list[list[Trial]]:
    found = await survey(name)
    screened = list((await screen(found.suite, tried)).trials)
    async with fork(tried) as branches:
        await branches.map(write_edit)
        in_worlds = await asyncio.gather(*(branch.run(run_tests, found.suite) for branch in branches))
    return [screened, list(in_worlds)]


async def test_screening_says_what_a_world_would_say(runtime: Runtime) -> None:
    head = list(candidates(survey_of("order_pricing")).head[:12])
    screened, in_worlds = await runtime.run(both_ways, "order_pricing", head, workspace=PROGRAMS)
    assert [t.passes for t in screened] == [t.passes for t in in_worlds]
    mends = [bool(t.fixed) and not t.broke for t in in_worlds]
    assert [bool(t.fixed) and not t.broke for t in screened] == mends
    assert any(mends)


REPAIRED = {"binary_search": 1, **({"order_pricing": 2} if PATIENT else {})}
"""Programs, each with the number of its edits. What two edits take is also in `test_life.py`."""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    folder = tmp_path / "programs"
    for name in REPAIRED:
        shutil.copytree(PROGRAMS / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "untested").mkdir()
    (folder / "untested" / "program.py").write_text("x = 1\n")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "sandbox", [*(["copy"] if PATIENT else []), pytest.param("namespaces", marks=pytest.mark.linux_ns)]
)
async def test_programs_are_repaired_merged_and_applied(
    programs: Path, home: Path, sandbox: str, model: object
) -> None:
    before = {p: p.read_bytes() for p in programs.rglob("*.py")}
    async with Runtime(home=home, sandbox=sandbox, llm=model) as runtime:  # type: ignore[arg-type]
        report: RepairReport = await runtime.run(repair, find_programs(programs), workspace=programs)
        assert {p: p.read_bytes() for p in programs.rglob("*.py")} == before
        assert {row.program: row.repaired for row in report.rows} == {
            **dict.fromkeys(REPAIRED, True),
            "untested": False,
        }
        assert {row.program: len(row.edits) for row in report.rows if row.repaired} == REPAIRED
        assert "no tests" in report.rows[-1].problem
        merges = [r for r in await runtime.journal() if r.kind is OpKind.MERGE]
        assert len(merges) >= sum(REPAIRED.values())
        assert f"{len(REPAIRED)} of {len(REPAIRED) + 1} repaired" in str(report)
        await runtime.apply()
    for name in REPAIRED:
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", name]
        passed = await asyncio.to_thread(subprocess.run, words, cwd=programs, capture_output=True)
        assert passed.returncode == 0, passed.stdout
