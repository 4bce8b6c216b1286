"""A plan is kept until something that it is made from changes."""

from __future__ import annotations

import importlib
import inspect
import linecache
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ramify.compiler.errors import SourceError
from ramify.compiler.estimates import Unmeasured
from ramify.compiler.kept_plans import KeptPlans
from ramify.compiler.plan import Plan
from ramify.compiler.spec import Spec

SEEN = Unmeasured()
CODE = """
from ramify import step, workflow

class Tools:
    pass

@step
async def one(): ...

@step
async def other(): ...

TOOLS = Tools()
TOOLS.call = one
helper = one
NAMES = set()
made = (lambda value: lambda: value)

@workflow
async def flow():
    import kept_later
    import kept_deep.in_.it
    await helper()
    for name in NAMES:
        await other()
    await TOOLS.call()
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "kept_code.py").write_text(CODE)
    linecache.clearcache()
    importlib.invalidate_caches()
    yield importlib.import_module("kept_code")
    sys.modules.pop("kept_code")


def rebind(module: ModuleType, _: Path) -> None:
    module.helper = module.other


def change_an_object(module: ModuleType, _: Path) -> None:
    module.TOOLS.call = module.other


def add_a_file(_: ModuleType, folder: Path) -> None:
    (folder / "kept_later.py").write_text("x = 1")


def add_a_package(_: ModuleType, folder: Path) -> None:
    (folder / "kept_later").mkdir()
    (folder / "kept_later" / "__init__.py").write_text("x = 1")


def add_a_file_deep_inside(_: ModuleType, folder: Path) -> None:
    (folder / "kept_deep" / "in_").mkdir(parents=True)
    (folder / "kept_deep" / "in_" / "it.py").write_text("x = 1")


def edit_the_file(_: ModuleType, folder: Path) -> None:
    (folder / "kept_code.py").write_text(CODE + "\n\n\nlater = 1\n")
    linecache.clearcache()


def replace_code(module: ModuleType) -> None:
    async def flow() -> None: ...

    inspect.unwrap(module.flow).__code__ = flow.__code__.replace(co_filename=module.__file__)


def fill_a_set(module: ModuleType, _: Path) -> None:
    module.NAMES.add("a")


CHANGES = [rebind, change_an_object, add_a_file, add_a_package, add_a_file_deep_inside, edit_the_file, fill_a_set]


@pytest.mark.parametrize("change", CHANGES)
def test_a_plan_is_made_again_when_its_code_changes(
    change: Callable[[ModuleType, Path], None], module: ModuleType, tmp_path: Path
) -> None:
    kept = KeptPlans()

    def plan(**how: bool) -> Plan:
        return kept.plan(module.flow, ref="kept_code:flow", deadline_s=None, estimates=SEEN, **how)

    first = plan()
    assert plan() is first
    assert plan(by_files=True) is not first
    again = plan()
    change(module, tmp_path)
    assert plan() is not again


def test_code_that_is_replaced_in_place_is_read_again(module: ModuleType) -> None:
    kept = KeptPlans()
    kept.plan(module.flow, ref="kept_code:flow", deadline_s=None, estimates=SEEN)
    replace_code(module)
    with pytest.raises(SourceError, match=r"not in .* at that line"):  # the file has no such code
        kept.plan(module.flow, ref="kept_code:flow", deadline_s=None, estimates=SEEN)


def test_a_plan_is_made_again_for_other_estimates(module: ModuleType) -> None:
    kept = KeptPlans()
    one, other = (
        kept.plan(module.flow, ref="kept_code:flow", deadline_s=None, estimates=seen) for seen in (SEEN, Unmeasured())
    )
    assert one is not other
    assert one == other


def test_code_is_read_again_only_after_a_change_or_for_another_format(module: ModuleType, tmp_path: Path) -> None:
    kept = KeptPlans()

    def spec(**how: Any) -> Spec:
        return kept.spec(module.flow, ref="kept_code:flow", deadline_s=None, **how)

    kept.plan(module.flow, ref="kept_code:flow", deadline_s=None, estimates=SEEN)
    first = spec()
    assert spec() is first
    assert spec(version=8) is not first
    again = spec()
    rebind(module, tmp_path)
    assert spec().code_digest != again.code_digest
