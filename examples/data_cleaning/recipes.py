"""The recipes that the agent may try on a column, and the rules for valid cells.

It is sent into a world as text, and needs only Python. `python3 recipes.py COLUMN.txt RECIPE` rewrites a file with
one cell a line, and prints a `Verdict` as JSON.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

MISSING = ""

# A pattern for the cells of each column. An empty cell is a missing value; some patterns allow it.
VALID: dict[str, str] = {
    "name": r"[A-Z][a-z]+( [A-Z][a-z]+)+",
    "email": r"[a-z0-9.]+@[a-z0-9-]+(\.[a-z]+)+",
    "joined": r"\d{4}-\d{2}-\d{2}|",
    "spent": r"\d+\.\d{2}|",
    "country": r"[A-Z]{2}",
}


def dates(form: str) -> Callable[[str], str]:
    def to_iso(cell: str) -> str:
        try:
            return datetime.strptime(cell, form).date().isoformat()
        except ValueError:
            return cell

    return to_iso


def two_places(cell: str) -> str:
    return f"{float(cell):.2f}" if re.fullmatch(r"\d+(\.\d+)?", cell) else cell


RECIPES: dict[str, Callable[[str], str]] = {
    "strip spaces": lambda cell: " ".join(cell.split()),
    "lower case": str.lower,
    "upper case": str.upper,
    "title case": str.title,
    "blank out n/a and -": lambda cell: MISSING if cell.lower() in {"n/a", "-"} else cell,
    "dates written 31.12.2021": dates("%d.%m.%Y"),
    "dates written 2021/12/31": dates("%Y/%m/%d"),
    "drop thousands commas": lambda cell: re.sub(r",(?=\d{3}\b)", "", cell),
    "decimal commas to points": lambda cell: re.sub(r",(\d\d)$", r".\1", cell),
    "two decimal places": two_places,
    "(at) to @": lambda cell: cell.replace("(at)", "@"),
    "country names to codes": lambda cell: {"U.S.": "US", "USA": "US"}.get(cell, cell),
    "keep letters only": lambda cell: re.sub(r"[^A-Za-z]", "", cell),
    "blank out everything": lambda cell: MISSING,
}


def wrong(column: str, cells: list[str]) -> list[str]:
    return [cell for cell in cells if not re.fullmatch(VALID[column], cell)]


def verdict(column: str, before: list[str], after: list[str]) -> dict[str, int]:
    """Count wrong and harmed cells. Harmed are valid cells with another value now, and cells whose content was
    deleted.
    """
    harmed = sum(
        new != old and (not wrong(column, [old]) or (not new and len(old) > 3))
        for old, new in zip(before, after, strict=True)
    )
    return {"wrong_before": len(wrong(column, before)), "wrong_after": len(wrong(column, after)), "harmed": harmed}


def main(path: Path, recipe: str) -> None:
    before = path.read_text().split("\n")[:-1]
    after = [RECIPES[recipe](cell) for cell in before]
    path.write_text("".join(f"{cell}\n" for cell in after))
    print(json.dumps(verdict(path.stem, before, after)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
