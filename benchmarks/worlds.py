"""Measure worlds as sandboxes of agents, next to Docker and bubblewrap (docs/how-to/worlds.md, harnesses.md).

    python benchmarks/worlds.py [--quick] [--json] [--sdists DIR] [--projects N] [--only start|rollouts|…]

The work is real: projects of the package index with seeded bugs and their own tests, driven by mini-swe-agent's loop
with a scripted model, so that all backends run the same commands over the same bytes. Run it as an ordinary user who
may use Docker (`$DOCKER_HOST`). Without an engine or bubblewrap, the peers' figures are missing, and without
mini-swe-agent the rollouts; each row says why. The source distributions are fetched by pip, once (`--sdists`).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.arguments import count
from benchmarks.rollouts import backends, disk, latencies, memory, projects, task_images, throughput
from benchmarks.rollouts.bed import Bed
from benchmarks.rows import Row, not_measured, options, printed, report
from benchmarks.scratch import scratch
from ramify.sandboxes.errors import SandboxError
from ramify.worlds.blocking_home import shared_home

PARTS: dict[str, Callable[[Bed], list[Row]]] = {
    "start": latencies.start_rows,
    "exec": latencies.exec_rows,
    "fork": latencies.fork_rows,
    "branch": latencies.branch_rows,
    "rollouts": throughput.rollout_rows,
    "best": throughput.best_of_rows,
    "disk": disk.rows,
    "memory": memory.rows,
}
_CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ramify-bench" / "sdists"


def missing_agent() -> str:
    """Why no rollouts can be run; empty if mini-swe-agent is installed."""
    if importlib.util.find_spec("minisweagent") is None:
        return "needs mini-swe-agent: pip install 'ramify[mini-swe-agent]'"
    return ""


def missing_docker() -> str:
    """Why no Docker Engine can be measured; empty if one answers."""
    if shutil.which("docker") is None:
        return "needs Docker, which is not installed"
    try:
        asked = subprocess.run(["docker", "info"], capture_output=True, timeout=20)
    except subprocess.TimeoutExpired:
        return "needs Docker, whose engine does not answer"
    return "" if asked.returncode == 0 else "needs Docker: no engine answers (start one, or set DOCKER_HOST)"


def missing_bubblewrap(root: Path) -> str:
    if shutil.which("bwrap") is None:
        return "needs bubblewrap, which is not installed"
    done = subprocess.run(["bwrap", *backends.isolation(root), "true"], capture_output=True, text=True)
    return done.stderr.strip()


def bed(folder: Path, sdists: Path, count: int, quick: bool, rollouts: int) -> Bed:
    """Prepare projects and images, and import them into each backend."""
    tasks = projects.prepared(sdists, folder / "projects", count)
    images = task_images.build(tasks, folder)
    missing = {"Docker": missing_docker(), "bubblewrap": missing_bubblewrap(folder / "root")}
    with shared_home(folder / "home") as home:
        ids = {image.name: home.portal.call(home.home.images.pull, str(image.archive)).id for image in images}
    if not missing["Docker"]:
        backends.load(images)
    return Bed(folder, images, ids, missing, quick, rollouts, missing_agent())


def measured(asked: list[str], made: Bed) -> list[Row]:
    rows = []
    with shared_home(made.home):
        for part in asked:
            try:
                found = PARTS[part](made)
            except SandboxError as error:
                found = [not_measured(part, "", str(error))]
            for row in found:
                print(printed(row), flush=True)
            rows += found
    return rows


def main() -> None:
    parser = options(__doc__, "two projects, few rounds: a minute in all once the source distributions are there")
    parser.add_argument("--sdists", type=Path, default=_CACHE, help="where the source distributions are kept")
    parser.add_argument("--projects", type=count(1), metavar="N", help="how many; default 6, with --quick 2")
    parser.add_argument("--rollouts", type=count(1), metavar="N", help="for their rate; default 64, with --quick 4")
    parser.add_argument("--scratch", type=Path, help="a folder on the file system to measure")
    parser.add_argument("--only", choices=tuple(PARTS), action="append", help="only this part; repeatable")
    asked = parser.parse_args()
    os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")
    before = os.getloadavg()[0]
    tasks = asked.projects or (2 if asked.quick else len(projects.PROJECTS))
    rollouts = asked.rollouts or (4 if asked.quick else 64)
    with scratch(asked.scratch) as folder:
        try:
            rows = measured(asked.only or list(PARTS), bed(folder, asked.sdists, tasks, asked.quick, rollouts))
        except projects.NoProjects as error:
            sys.exit(f"worlds: {error}")
    if asked.json:
        print(report(rows, load=[round(one, 1) for one in (before, os.getloadavg()[0])]))


if __name__ == "__main__":
    main()
