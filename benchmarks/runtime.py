"""Measure what durable execution costs and what reuse saves, next to LangGraph and DBOS.

    python benchmarks/runtime.py [--quick] [--json] [--sandbox NAME] [--postgres URL] [--trace PATH]
                                 [--only steps|nodes|traces|reuse|runs|large]

Peers run in the same process, on the same disk, with the same durability. They need langgraph-checkpoint-sqlite,
langgraph-checkpoint-postgres and dbos (`pip install -e '.[bench]'`); a row says if one is missing. Recorded traces
(see `durability/trace_hit_rates.py`) are files or folders, given by `--trace` or RAMIFY_TRACES. `--quick` takes fewer
steps and branches. docs/decisions/017 says which targets a durable superstep misses, by how much, and why.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "tests"))

import postgres

from benchmarks.durability import large_runs, reuse, supersteps, trace_hit_rates, whole_runs, worldless_nodes
from benchmarks.rows import Row, options, printed, report, run

PARTS = ("steps", "nodes", "traces", "reuse", "runs", "large")


@contextmanager
def _server(given: str | None) -> Iterator[str | None]:
    """Yield the address of the given PostgreSQL server, or of a temporary one if PostgreSQL is installed."""
    if given or postgres.why_not():
        yield given
        return
    with postgres.server(durable=True) as server:
        yield postgres.new_database(server)


def main() -> None:
    parser = options(__doc__, "fewer steps and branches: a minute in all")
    parser.add_argument("--sandbox", default="namespaces", help="the backend of the worlds [default: namespaces]")
    parser.add_argument("--postgres", metavar="URL", help="a server for new tables [default: a temporary one]")
    parser.add_argument("--trace", metavar="PATH", type=Path, action="append", help="recorded traces; repeatable")
    parser.add_argument("--only", choices=PARTS, action="append", help="only this part; repeatable")
    asked = parser.parse_args()
    traces = asked.trace or [Path(one) for one in [os.environ.get(trace_hit_rates.ENVIRONMENT)] if one]
    rows: list[Row] = []
    for part in asked.only or PARTS:
        if part == "steps":
            with _server(asked.postgres) as address:
                made = supersteps.rows(asked.quick, address)
        elif part == "nodes":
            made = worldless_nodes.rows(asked.quick)
        elif part == "traces":
            made = trace_hit_rates.rows(traces)
        elif part == "reuse":
            made = reuse.rows(asked.quick, asked.sandbox)
        elif part == "large":
            made = large_runs.rows(asked.quick)
        else:
            made = whole_runs.rows(asked.quick, asked.sandbox)
        for row in made:
            print(printed(row), flush=True)
        rows += made
    if asked.json:
        print(report(rows))


if __name__ == "__main__":
    run(main)
