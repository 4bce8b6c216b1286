"""Which of our source files a replay's result depends on: what makes and plays it, and what its contender does.

Results are kept under this digest, so that a changed baseline is replayed anew and the others are not. The digest is
over the code: comments, docstrings and layout do not count. Imports are read from the files, also those inside
functions. `policy/table.py` names every policy and `scheduler.py` is in no
replay of vLLM's own scheduler: neither is followed where it decides nothing. Nor is what lies apart: the contenders,
jobs as data, and the clairvoyant's bound and several engines, which jobs.py adds to the keys of those who have them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path

from benchmarks.replay.types import Contender, Stock

_ROOT = "ramify.serving"
_HERE = Path(__file__).resolve().parents[1]
_ENGINE = tuple(f"{_ROOT}.replay.{name}" for name in ("perform", "engine", "made_up", "steps"))
_APART = frozenset(f"{_ROOT}.replay.{name}" for name in ("contenders", "jobs", "bounds.lp", "fleet"))
_FLEET = f"{_ROOT}.replay.fleet"
_TABLE = f"{_ROOT}.policy.table"
_PLUGIN = f"{_ROOT}.vllm_plugin.scheduler"


def code_digest(contender: Contender) -> str:
    """Of the files that decide what `contender` does in a replay, its parameters and what it is told."""
    engine = contender.engine
    if isinstance(engine, Stock):
        modules, skipped, options = set(_ENGINE), _APART | {_TABLE, _PLUGIN}, repr(engine)
    else:
        made = engine()
        factory = engine.func if isinstance(engine, partial) else engine
        modules = {*_ENGINE, type(made).__module__, factory.__module__}
        given = (engine.args, sorted(engine.keywords.items())) if isinstance(engine, partial) else ()
        skipped, options = _APART | {_TABLE}, repr([_told(part) for part in given])
    return modules_digest(modules, f"{options} {contender.knows!r}", skipped)


def fleet_digest() -> str:
    """Of what stands before several engines. They are vLLM's own, whatever the contender is."""
    return modules_digest([_FLEET], skipped=(_APART - {_FLEET}) | {_TABLE, _PLUGIN})


def modules_digest(modules: Iterable[str], also: str = "", skipped: frozenset[str] = frozenset()) -> str:
    """Of the files of `modules` and of what they import, and of `also`."""
    digest = sha256(also.encode())
    for path in _files(frozenset(modules), skipped):
        digest.update(path.relative_to(_HERE).as_posix().encode() + _code(path.read_bytes()).encode())
    return digest.hexdigest()


@lru_cache(maxsize=256)
def _code(source: bytes) -> str:
    """A file's code in one layout, without comments and docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [one for one in node.body if not _is_text(one)]
    return ast.unparse(tree)


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _told(part: Iterable[object]) -> str:
    """Options as text that is the same in every process: a set's order is not."""
    return repr([sorted(map(str, one)) if isinstance(one, set | frozenset) else one for one in part])


@lru_cache(maxsize=64)
def _files(modules: frozenset[str], skipped: frozenset[str]) -> tuple[Path, ...]:
    found: dict[str, Path] = {}
    todo = list(modules - skipped)
    while todo:
        name = todo.pop()
        path = _path(name)
        if path is None or name in found or name in skipped:
            continue
        found[name] = path
        todo += _imports(path)
    return tuple(found[name] for name in sorted(found))


def _path(module: str) -> Path | None:
    if module != _ROOT and not module.startswith(_ROOT + "."):
        return None
    at = _HERE.joinpath(*module.split(".")[2:])
    for path in (at.with_suffix(".py"), at / "__init__.py"):
        if path.is_file():
            return path
    return None


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
