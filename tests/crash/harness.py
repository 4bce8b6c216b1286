"""Kills a scenario at its nth crash point, resumes it, and holds what is left against an unkilled run.

All of it happens in forks of one warm process, which has no thread and no event loop of its own. A trial takes 0.3 s
of CPU, where a new interpreter takes 2 s. Worlds are scripted (real trees, no processes): test_kill.py in
runtime/execution kills runs with real ones. Homes may be in memory, because SIGKILL leaves what the kernel has.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import io
import itertools
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

import alembic.operations
import alembic.runtime.migration
import alembic.script  # noqa: F401  warm: imported before the first fork

sys.path.insert(0, str(Path(__file__).parent))
import scenarios
from lives import MADE_AGAIN, Left, Scenario, live, lose

import ramify.runtime.execution.driver  # noqa: F401  warm
from ramify.compiler.pipeline import compile_graph, compile_workflow  # noqa: F401  warm
from ramify.fork_engine import crash_points
from ramify.runtime.records import RunStatus

_OURS = ("ramify", "harness", "scenarios", "lives")
TELLS = {"hello": 1, "bye": 1}
Kill = tuple[str, str, int]
"""The file that records the kill, the crash point, and at which passage of that point to kill."""
Wholes = dict[tuple[Scenario, str], "Trial"]
"""The unkilled run of each scenario on each database."""


@dataclass
class Trial:
    scenario: Scenario
    database: str  # "sqlite" or "postgresql"
    point: str = ""  # the crash point at which it is killed; "": not killed
    nth: int = 0  # at which passage of that point
    again: str = ""  # the crash point at which the resuming process is killed; "": not killed
    again_nth: int = 0
    killed_at: str = ""  # the point's name; empty if the run ended before
    killed_again: bool = False
    resumed: bool = False
    in_doubt: int = 0  # effects in doubt that were reported, and resolved by asking the receiver
    passed: list[str] = field(default_factory=list)  # the names of the points that it passed, in order
    left: Left | None = None
    wrong: list[str] = field(default_factory=list)
    lost: int = 0
    duplicated: int = 0
    error: str = ""
    took_s: float = 0.0  # duration of the process that is to be killed


def run(trial: Trial, folder: Path, address: str | None, delay_s: float | None = None) -> Trial:
    """Run one trial in its own folder. `address`: a PostgreSQL database that trials share."""
    (folder / "workspace").mkdir(parents=True)
    (folder / "workspace" / "hello").write_text("hello\n")
    database = address or f"sqlite:///{folder}/home/ramify.db"
    if trial.scenario in MADE_AGAIN and _fork(lambda: _child(trial, folder, database, begins=True), None) != 0:
        trial.error = (folder / "error").read_text()
        return trial
    began = time.monotonic()
    first, then = ("killed", trial.point, trial.nth), ("killed again", trial.again, trial.again_nth)
    killed = _fork(lambda: _child(trial, folder, database, first), delay_s)
    trial.took_s = time.monotonic() - began
    point = folder / "killed"
    trial.killed_at = point.read_text() if point.exists() else ""
    if killed == -signal.SIGKILL and delay_s is not None:
        trial.killed_at = "random"
    if killed not in (0, -signal.SIGKILL):
        trial.error = (folder / "error").read_text()
        return trial
    if killed != 0:
        trial.resumed = True
        ended = _fork(lambda: _child(trial, folder, database, then), None)
        trial.killed_again = (folder / "killed again").exists()
        if trial.killed_again:
            ended = _fork(lambda: _child(trial, folder, database), None)
        if ended != 0:
            trial.error = (folder / "error").read_text() if (folder / "error").exists() else "killed"
            return trial
    said = json.loads((folder / "left").read_text())
    trial.left, trial.in_doubt, trial.passed = Left(**said["left"]), said["in_doubt"], said["passed"]
    shutil.rmtree(folder)
    return trial


def judge(trial: Trial, whole: Left) -> Trial:
    """Return what differs from the unkilled run, and what the receiver got too rarely or too often."""
    if trial.left is None:
        trial.wrong.append(f"no end: {trial.error[-2000:]}")
        return trial
    for name, expected in asdict(whole).items():
        if (found := getattr(trial.left, name)) != expected:
            trial.wrong.append(f"{name}: {found} instead of {expected}")
    if whole.outbox:
        trial.lost = sum(max(0, n - trial.left.outbox.get(text, 0)) for text, n in TELLS.items())
        trial.duplicated = sum(max(0, n - TELLS.get(text, 0)) for text, n in trial.left.outbox.items())
    return trial


def _fork(work: Callable[[], None], delay_s: float | None) -> int:
    pid = os.fork()
    if not pid:
        try:
            work()
        finally:
            os._exit(1)
    if delay_s is not None:
        time.sleep(delay_s)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _child(trial: Trial, folder: Path, database: str, kill: Kill | None = None, *, begins: bool = False) -> None:
    """`begins`: what exists before the first process that is killed."""
    passed: list[str] = []

    def at(name: str) -> None:
        passed.append(name)
        if kill is not None and (name, passed.count(name)) == kill[1:]:
            (folder / kill[0]).write_text(name)
            os.kill(os.getpid(), signal.SIGKILL)

    scenarios.OUTBOX = folder / "outbox"
    crash_points.at = at
    try:
        if begins:
            lose(trial.scenario, folder, database)
            os._exit(0)
        left, doubts = live(trial.scenario, folder, database)
        (folder / "left").write_text(json.dumps({"left": asdict(left), "in_doubt": doubts, "passed": passed}))
        os._exit(0)
    except BaseException:  # noqa: BLE001  # told to the parent
        text = io.StringIO()
        traceback.print_exc(file=text)
        (folder / "error").write_text(text.getvalue())
        os._exit(1)


def wholes(databases: dict[str, str | None], folder: Path) -> Wholes:
    """Run each scenario unkilled on each database: the others are compared with it, and it counts the crash
    points."""
    made = {}
    _warm(folder)
    for scenario, database in itertools.product(Scenario, databases):
        trial = run(Trial(scenario, database), folder / f"whole-{scenario.name}-{database}", databases[database])
        if trial.left is None:
            raise RuntimeError(f"{scenario} on {database} does not end unkilled:\n{trial.error}")
        if trial.left.status != RunStatus.DONE:
            raise RuntimeError(f"{scenario} on {database} is {trial.left.status}")
        made[scenario, database] = trial
    return made


def _warm(folder: Path) -> None:
    """Run each scenario in this process, so that its forks begin with every module, plan and statement loaded."""
    for scenario in Scenario:
        place = folder / f"warm-{scenario.name}"
        (place / "workspace").mkdir(parents=True)
        scenarios.OUTBOX = place / "outbox"
        if scenario in MADE_AGAIN:
            lose(scenario, place, f"sqlite:///{place}/home/ramify.db")
        live(scenario, place, f"sqlite:///{place}/home/ramify.db")
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.join(10)  # a database's thread, which ends shortly after the database was closed
    if (threads := threading.enumerate()) != [threading.main_thread()]:
        raise RuntimeError(f"threads outlive their run, and would be missing in a fork: {threads}")
    gc.collect()
    gc.freeze()  # the collector ignores existing objects, so that forks share their memory


def plan(known: Wholes, points: int, seed: int) -> list[Trial]:
    """Return `points` trials: first each point name of each scenario, then every passage of every point, in random
    order and repeated as needed. Every second trial is killed again while it resumes."""
    chance = random.Random(seed)
    first, surely, every = [], [], []
    for (scenario, database), whole in known.items():
        for name, count in sorted(Counter(whole.passed).items()):
            times = [Trial(scenario, database, name, nth) for nth in range(1, count + 1)]
            first.append(
                chance.choice(times[: (count + 1) // 2])
            )  # late passages may be missing: siblings share commits
            surely += [time for time in times[:1] if time != first[-1]]  # the first passage always occurs
            every += times
    others = [one for one in every if one not in first and one not in surely]
    drawn = [one for some in (first, surely, others) for one in chance.sample(some, len(some))]
    made = [replace(one, passed=[], wrong=[]) for one in itertools.islice(itertools.cycle(drawn), points)]
    for one in made[1::2]:
        passed = known[one.scenario, one.database].passed
        one.again = chance.choice(passed)
        one.again_nth = chance.randint(1, passed.count(one.again))
    return made


def until_killed(
    known: Wholes,
    databases: dict[str, str | None],
    folder: Path,
    *,
    points: int,
    seed: int,
    workers: int,
    log: Path,
) -> list[Trial]:
    """Run trials until `points` of them were killed. A trial that missed its point, because siblings shared a commit,
    is replaced by another. Stops early if a whole round of trials missed their points."""
    asked, missing, killed = 0, points, -1
    while missing > 0:
        asked += missing
        done = list(in_parallel(plan(known, asked, seed), known, databases, folder, workers, log))
        before, killed = killed, sum(bool(trial.killed_at) for trial in done)
        if killed == before:
            break
        missing = points - killed
    return done


class OtherLog(Exception):
    """The log belongs to other code, or to another plan of kills."""


def begin_log(log: Path, known: Wholes, seed: int) -> None:
    """Bind a log by its first line to the code, the seed and the databases. It also keeps the points from which kills
    are drawn: their number varies a little (siblings share commits), and a continued series must draw the same.

    If the log exists, `known` gets its points. Raises `OtherLog` if the log belongs to something else.
    """
    of: dict[str, object] = {"code": _code(), "seed": seed, "databases": sorted({where for _, where in known})}
    if not log.exists() or not log.stat().st_size:
        passed = {f"{scenario} {where}": whole.passed for (scenario, where), whole in known.items()}
        log.write_text(json.dumps({"of": of, "passed": passed}) + "\n")
        return
    with log.open() as file, contextlib.suppress(ValueError):
        first = json.loads(file.readline())
        there = first.get("of", {}) if isinstance(first, dict) else {}
        other = sorted(name for name in of if there.get(name) != of[name])
        if not other:
            for (scenario, where), whole in known.items():
                whole.passed = first["passed"][f"{scenario} {where}"]
            return
        raise OtherLog(f"{log} was begun with other {', '.join(other)}: name a new file, or remove it to begin anew")
    raise OtherLog(f"{log} is no log of trials: name a new file")


def _code() -> str:
    """Return the digest of the code that a trial runs: our loaded modules, which after the unkilled runs are all."""
    ours = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in _OURS}
    files = {name: Path(module.__file__) for name, module in ours.items() if getattr(module, "__file__", None)}
    told = [f"{name} {hashlib.sha256(files[name].read_bytes()).hexdigest()}" for name in sorted(files)]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()


def _in(log: Path) -> list[dict[str, Any]]:
    """Return the trials in a log."""
    return [said for line in log.read_text().splitlines() if "number" in (said := json.loads(line))]


def in_parallel(
    trials: Sequence[Trial],
    known: Wholes,
    databases: dict[str, str | None],
    folder: Path,
    workers: int,
    log: Path,
) -> Iterator[Trial]:
    """Yield the judged trials, run by forked workers. `log`: one line per trial; trials that it has are not
    repeated."""
    log.touch()
    done = {said["number"] for said in _in(log)}
    left = [(number, trial) for number, trial in enumerate(trials) if number not in done]
    for worker in range(workers):
        if os.fork() == 0:
            try:
                with log.open("a", buffering=1) as file:
                    _worker(left[worker::workers], known, databases, folder / f"worker{worker}", file)
                os._exit(0)
            except BaseException:  # noqa: BLE001  # a fork must not return to its parent's code
                traceback.print_exc()
            os._exit(1)
    codes = [os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(workers)]  # wait for all of them
    if any(codes):
        raise RuntimeError("a worker failed: see above")
    for said in _in(log):
        if said.pop("number") < len(trials):
            yield Trial(**{**said, "scenario": Scenario(said["scenario"])})


def _worker(
    trials: Sequence[tuple[int, Trial]],
    known: Wholes,
    databases: dict[str, str | None],
    folder: Path,
    log: TextIO,
) -> None:
    folder.mkdir(parents=True, exist_ok=True)  # there since the round before, if trials are made up for
    for number, trial in trials:
        whole = known[trial.scenario, trial.database].left
        assert whole is not None
        judged = judge(run(trial, folder / str(number), databases[trial.database]), whole)
        log.write(json.dumps({"number": number, **asdict(judged), "left": None, "passed": []}) + "\n")
