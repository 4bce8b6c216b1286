"""Write the results of `--json` as tables into a document, between the marks of each benchmark.

    python benchmarks/fork.py --json > fork.log
    python benchmarks/result_tables.py docs/measured.md fork=fork.log runtime=runtime.log …

The last line of a log is the object that `--json` prints last. The marks are `<!-- NAME: begin -->` and `<!-- NAME:
end -->`, each on a line of its own. A name without its marks, or a log without its object, is an error.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_VERDICT = {True: "met", False: "**missed**", None: "–"}


class NoFigures(Exception):
    """A log or document is malformed. The message says which one and what is missing."""


def figures(log: Path) -> Mapping[str, Any]:
    """Return the rows and the machine from a log. Raises NoFigures."""
    lines = log.read_text(encoding="utf-8").strip().splitlines()
    try:
        said = json.loads(lines[-1])
        rows, machine = said["rows"], said["machine"]
    except (IndexError, ValueError, TypeError, KeyError) as error:
        raise NoFigures(
            f"{log}: its last line is not what a benchmark with --json ends with ({error!r}); was it cut short?"
        ) from error
    return {"rows": rows, "machine": machine}


def table(said: Mapping[str, Any]) -> str:
    """Return the rows as a Markdown table, preceded by a line about the machine."""
    machine = said["machine"]
    about = [f"{machine['cores']} cores"] if "cores" in machine else []
    about += (
        [f"{machine['cpu']} (the loop of `benchmarks/machine.py`: {machine['loop_ms']} ms)"]
        if "cpu" in machine
        else []
    )
    about += [f"Linux {machine['kernel']}"] if "kernel" in machine else []
    about += [f"Python {machine['python']}"] if "python" in machine else []
    about += [f"as {machine['user']}"] if "user" in machine else []
    lines = [f"{', '.join(about)}:", "", "| row | measured | target | | beside it |", "|---|---|---|---|---|"]
    lines += [_line(row) for row in said["rows"]]
    return "\n".join(lines)


def _line(row: Mapping[str, Any]) -> str:
    ours = "–" if row["ours"] is None else f"{_number(row['ours'])} {row['unit']}"
    if spread := row.get("spread"):
        ours += f" [{_number(spread[0])} to {_number(spread[1])}]"
    target = row["target"]
    limit = "reported" if target is None else target if isinstance(target, str) else _number(target)
    beside = []
    if row["peer_value"] is not None:
        ratio = f", ratio {_number(row['ratio'])}" if row.get("ratio") is not None else ""
        beside.append(f"{row['peer']} {_number(row['peer_value'])}{ratio}")
    beside += [f"floor {row['floor']}"] if row.get("floor") else []
    beside += [row["note"]] if row.get("note") else []
    cells = (row["name"], ours, limit, _VERDICT[row["met"]], "; ".join(beside))
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _number(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 999.95 else f"{value:,.0f}"


def written(text: str, name: str, inside: str) -> str:
    """Return `text` with `inside` between the marks of `name`. Raises NoFigures if they are missing."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    before, opened, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not opened or not closed:
        raise NoFigures(f"the document has no lines {begin.strip()} and {end.strip()}, in this order")
    return f"{before}{begin}\n{inside}\n\n{end}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("document", type=Path)
    parser.add_argument("logs", nargs="+", metavar="NAME=LOG")
    asked = parser.parse_args(arguments)
    try:
        text = asked.document.read_text(encoding="utf-8")
        for given in asked.logs:
            name, _, log = given.partition("=")
            text = written(text, name, table(figures(Path(log))))
    except (NoFigures, OSError) as error:
        print(f"page: {error}", file=sys.stderr)
        return 1
    asked.document.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
