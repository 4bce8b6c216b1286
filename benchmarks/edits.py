"""Kill workflows, edit their code, resume them, and compare the results with what the code says.

    python benchmarks/edits.py [--edits N] [--quick] [--json] [--seed N]

Seven workflows (payments in a list and equal calls, a loop, a fork, a gather, helpers of another module, a question,
a retry) are killed at points after every commit and rename, and then edited: comments, blank lines, black and ruff
with several line lengths, functions and locals that are moved or renamed, a fixed step, added steps, swapped calls,
`patched` blocks, `ramify fork`, and the same program written in another way (`tests/edits/rewrites.py`): blocks
around statements, walrus, nested functions, keyword arguments, type hints, other imports, renamed and moved steps.
Edits that change what a workflow does, or its text, are resumed with and without `accept_changes`. A few runs are
killed by a signal, as processes of the command line. A refused edit is resumed with the original code,
and must finish.

With --json the last line is one object: `edits`; `repeated`, effects that happened twice; `wrong`, results that do
not match the code; `refused`; `refused_layout`, refused edits that change only the layout. The exit status is 1
unless `repeated`, `wrong` and `refused_layout` are 0. Edits that need a missing tool or interpreter are left out with
a message.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "edits"), str(ROOT)]
import trial  # noqa: E402
from changes import EDITS, Edit, Files, has  # noqa: E402
from flows import FLOWS, Flow  # noqa: E402

from benchmarks.arguments import count  # noqa: E402
from benchmarks.machine import machine  # noqa: E402
from benchmarks.rows import row  # noqa: E402

QUICK, USUAL = 60, 1_050
_COMMAND_LINE = "from ramify.cli.start import main; main()"
EDITED_AT_A_POINT = len(EDITS)


@dataclass
class Tally:
    edits: int = 0
    repeated: int = 0
    wrong: int = 0
    refused: int = 0
    refused_layout: int = 0
    by_kind: Counter[str] = field(default_factory=Counter)
    refused_by_kind: Counter[str] = field(default_factory=Counter)
    said: list[str] = field(default_factory=list)
    without: list[str] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--edits", type=count(1), help=f"how many (default {USUAL}, with --quick {QUICK})")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    begun = time.monotonic()
    tally = Tally()
    try:
        measure(tally, given.edits or (QUICK if given.quick else USUAL), given.seed)
    except KeyboardInterrupt:
        tally.without.append("interrupted: the figures are of the edits until then")
    report = _report(tally, given.seed, time.monotonic() - begun)
    print(json.dumps(report) if given.json else _told(report))
    return 1 if tally.repeated or tally.wrong or tally.refused_layout else 0


def measure(tally: Tally, edits: int, seed: int) -> None:
    chance = random.Random(seed)
    memory = Path("/dev/shm")  # a killed process leaves what the kernel has, so no disk is needed
    scratch = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="ramify-edits-", dir=scratch) as made:
        folder = Path(made)
        (folder / "warm").mkdir()
        trial.warm(folder / "warm")
        tally.without += [f"{tool} is not installed: left out" for tool in ("black", "ruff") if not has(tool)]
        if not _interpreters():
            tally.without.append("no other Python is named in $RAMIFY_EDITS_PYTHONS: runs stay with one")
        most = {flow.name: _points(flow, folder / f"whole-{flow.name}") for flow in FLOWS}
        _by_signals(tally, folder, 2 if edits <= QUICK else 8)
        order = list(EDITS)
        while tally.edits < edits:
            for flow in FLOWS:
                chance.shuffle(order)
                chosen = order[: 1 + (edits - tally.edits) // len(FLOWS)][:EDITED_AT_A_POINT]
                if tally.edits < edits and chosen:
                    _at_a_point(tally, flow, chosen, folder, chance, most[flow.name])


def _points(flow: Flow, folder: Path) -> int:
    folder.mkdir()
    trial.write(folder, flow.files)
    return trial.points(folder)


def _at_a_point(tally: Tally, flow: Flow, edits: list[Edit], folder: Path, chance: random.Random, most: int) -> None:
    """Kill a run once, and try edits on copies of what it left."""
    place, killed = folder / "place", folder / "killed"
    place.mkdir(exist_ok=True)
    trial.keep(place, folder / "rest")
    for left in place.iterdir():
        _remove(left)
    trial.write(place, flow.files)
    trial.run(place, chance.randint(most // 4, most))
    if not (place / "home" / "ramify.db").exists():
        return
    trial.keep(place, killed)
    for edit in edits:
        trial.keep(killed, place)
        one(tally, flow, edit, place, chance)
    trial.keep(killed, place)


def _remove(path: Path) -> None:
    import shutil

    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def one(tally: Tally, flow: Flow, edit: Edit, place: Path, chance: random.Random) -> None:
    files = edit.change(dict(flow.files), flow, chance)
    if files is None or files == flow.files:
        return
    before = trial.effects(place)
    if edit.forked:
        _fork(tally, flow, edit, files, place)
        return
    trial.write(place, files)
    left = trial.resume(place, accept=edit.accepted)
    refused = left.status == trial.REFUSED
    if refused:
        trial.write(place, dict(flow.files))
        left = trial.resume(place, accept=edit.accepted)  # the changed code may have been accepted and then refused
    count_one(tally, flow, edit, refused, left, place, before, files)


def _fork(tally: Tally, flow: Flow, edit: Edit, files: Files, place: Path) -> None:
    """Check that a fork executes what comes after its checkpoint: no more and no less than with the original code."""
    aside = place.with_name("aside")
    trial.keep(place, aside)
    wanted = trial.resume(place, forked=True), trial.effects(place)
    trial.keep(aside, place)
    trial.write(place, files)
    left, after = trial.resume(place, forked=True), trial.effects(place)
    tally.edits += 1
    tally.by_kind[edit.name] += 1
    ours, theirs = ([line[:2] for line in lines] for lines in (after, wanted[1]))
    more = len(ours) > len(theirs)
    tally.repeated += more
    refused = left.status == trial.REFUSED != wanted[0].status
    tally.refused, tally.refused_layout = tally.refused + refused, tally.refused_layout + refused
    if refused or more or (left.status, left.result, ours) != (wanted[0].status, wanted[0].result, theirs):
        tally.wrong += not refused and not more
        tally.said.append(f"{flow.name}, {edit.name}: {left} with {ours}, not {wanted[0]} with {theirs}")


def count_one(
    tally: Tally,
    flow: Flow,
    edit: Edit,
    refused: bool,
    left: trial.Left,
    place: Path,
    before: list[list[str]],
    files: Files,
) -> None:
    tally.edits += 1
    tally.by_kind[edit.name] += 1
    if refused:
        tally.refused += 1
        tally.refused_by_kind[edit.name] += 1
        tally.refused_layout += edit.layout
    after = trial.effects(place)
    again = trial.repeated(after)
    tally.repeated += len(again)
    why = list(again)
    if left.status != "done":
        why.append(f"{left.status}: {left.error}")
        tally.wrong += 1
    else:
        swapped = edit.name.startswith("calls swapped") and not refused
        off = trial.judge(flow, before, after, left.result, swapped=swapped)
        wrong = [each for each in off if each not in again]
        tally.wrong += bool(wrong)
        why += wrong
    if why or (refused and edit.layout):
        said = "; ".join(why) or "refused"
        tally.said.append(f"{flow.name}, {edit.name}, after {len(before)} effects: {said}")
        if (keep := os.environ.get("RAMIFY_EDITS_KEEP")) is not None:
            trial.keep(place, Path(keep) / f"{len(tally.said)}")
            trial.write(Path(keep) / f"{len(tally.said)}", {f"edited.{name}": text for name, text in files.items()})


def _by_signals(tally: Tally, folder: Path, times: int) -> None:
    """Do the same with the command line: kill a process by a signal and resume in another, also under another Python
    if `$RAMIFY_EDITS_PYTHONS` names one."""
    ramify = [str(Path(sys.executable).with_name("ramify"))]
    others = [[each, "-c", _COMMAND_LINE] for each in _interpreters()]
    resumes = [ramify] * times + others
    flow, chance = FLOWS[0], random.Random(0)
    for number, resume in enumerate(resumes):
        place = folder / f"signal-{number}"
        place.mkdir()
        env = {**os.environ, "RAMIFY_HOME": str(place / "home"), "RAMIFY_SANDBOX": "copy"}
        trial.write(place, flow.files)
        dies = "\n    import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n    return text.upper()\n"
        app = place / "edited_app.py"
        app.write_text(flow.files["edited_app.py"].replace("\n    return text.upper()\n", dies))
        subprocess.run([*ramify, "run", "-q", f"{app}:flow"], env=env, capture_output=True)
        before = trial.effects(place)
        edit = EDITS[number % 3] if number < times else replace(EDITS[0], name="another Python")
        files = edit.change(dict(flow.files), flow, chance) or dict(flow.files)
        trial.write(place, files)
        ran = subprocess.run([*resume, "resume", "-q"], env=env, capture_output=True, text=True)
        done = ran.returncode == 0
        left = trial.Left("done", json.loads(ran.stdout)) if done else trial.Left("failed", error=ran.stderr)
        count_one(tally, flow, edit, "changed since" in ran.stderr, left, place, before, files)


def _interpreters() -> list[str]:
    """Return the other Python interpreters that can import Ramify."""
    return [each for each in os.environ.get("RAMIFY_EDITS_PYTHONS", "").split(os.pathsep) if each]


def _report(tally: Tally, seed: int, seconds: float) -> dict[str, Any]:
    rows = [
        row("edits", tally.edits, "count"),
        row("repeated", tally.repeated, "count", target=0),
        row("wrong", tally.wrong, "count", target=0),
        row("refused", tally.refused, "count"),
        row("refused_layout", tally.refused_layout, "count", target=0),
    ]
    return {
        "benchmark": "edits",
        "seed": seed,
        "seconds": round(seconds, 1),
        **{str(row["name"]): row["ours"] for row in rows},
        "rows": rows,
        "workflows": [flow.name for flow in FLOWS],
        "by_kind": dict(tally.by_kind),
        "refused_by_kind": dict(tally.refused_by_kind),
        "failures": tally.said[:40],
        "left_out": tally.without,
        "machine": machine(),
    }


def _told(report: dict[str, Any]) -> str:
    lines = [f"{row['name']:<16} {row['ours']:>6}" for row in report["rows"]]
    lines += [f"  {kind}: {times}" for kind, times in report["by_kind"].items()]
    lines += [f"refused: {kind}: {times}" for kind, times in report["refused_by_kind"].items()]
    return "\n".join([*lines, *report["failures"], *report["left_out"]])


if __name__ == "__main__":
    sys.exit(main())
