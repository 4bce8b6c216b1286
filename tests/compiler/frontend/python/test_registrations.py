"""Code that is registered or looked up by name belongs to the digest of the workflow that reaches it.

Each case is a program of a few modules and edits of it, with whether the workflow's digest changes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from ramify.compiler.pipeline import compile_workflow

HEAD = "from stand_in import step, workflow\n@step\nasync def pay(x): ...\n"
FLOW = "\n@workflow\nasync def flow(x):\n    return await pay({})\n"
EDIT = "x + 1", "x + 2"  # in the function that is reached
Case = tuple[dict[str, str], str, tuple[tuple[str, str, bool], ...]]

CASES: dict[str, Case] = {
    "a decorator that fills a dict": (
        {},
        """
TOOLS, OTHER = {}, {}
def tool(f):
    TOOLS[f.__name__] = f
    return f
def other(f):
    OTHER[f.__name__] = f
    return f
@tool
def fee(x): return x + 1
@other
def unrelated(x): return x + 10
"""
        + FLOW.format("TOOLS['fee'](x)"),
        ((*EDIT, True), ("x + 10", "x + 20", False), ("def unrelated(x)", "def unrelated( x )", False)),
    ),
    "a decorator with arguments, through a helper and a local name": (
        {},
        """
TOOLS = {}
def _add(kind, f):
    bucket = TOOLS.setdefault(kind, [])
    bucket.append(f)
def tool(kind):
    def deco(f):
        _add(kind, f)
        return f
    return deco
@tool("fees")
def fee(x): return x + 1
"""
        + FLOW.format("TOOLS['fees'][0](x)"),
        ((*EDIT, True), ('tool("fees")', 'tool("rates")', True)),
    ),
    "singledispatch": (
        {},
        """
from functools import singledispatch
@singledispatch
def fee(x): return 0
@fee.register
def _(x: int): return x + 1
@fee.register(str)
def _(x): return len(x) + 10
"""
        + FLOW.format("fee(x)"),
        ((*EDIT, True), ("len(x) + 10", "len(x) + 20", True)),
    ),
    "an object with a register method": (
        {
            "registry.py": "class Registry:\n    def __init__(self): self.known = {}\n    def register(self, name):\n"
            "        def deco(f):\n            self.known[name] = f\n            return f\n        return deco\n"
            "registry = Registry()\nidle = Registry()\n"
        },
        """
from registry import registry, idle
@registry.register("fee")
def fee(x): return x + 1
@idle.register("fee")
def unrelated(x): return x + 10
"""
        + FLOW.format("registry.known['fee'](x)"),
        ((*EDIT, True), ("x + 10", "x + 20", False)),
    ),
    "a class method as decorator": (
        {},
        """
class Base:
    known = {}
    @classmethod
    def register(cls, f):
        cls.known[f.__name__] = f
        return f
@Base.register
def fee(x): return x + 1
"""
        + FLOW.format("Base.known['fee'](x)"),
        ((*EDIT, True),),
    ),
    "plugins of other modules, imported by name": (
        {
            "registry.py": "TOOLS = {}\ndef tool(f):\n    TOOLS[f.__name__] = f\n    return f\n",
            "plugins/__init__.py": "import importlib, pkgutil\nfor each in pkgutil.iter_modules(__path__):\n"
            "    importlib.import_module(f'{__name__}.{each.name}')\n",
            "plugins/fees.py": "from registry import tool\n@tool\ndef fee(x): return x + 1\n"
            "def alone(x): return x * 10\n",
        },
        "\nimport plugins\nimport registry\n" + FLOW.format("registry.TOOLS['fee'](x)"),
        ((*EDIT, True), ("x * 10", "x * 20", False)),
    ),
    "a call at the top level": (
        {"registry.py": "TOOLS = {}\ndef register(name, f): TOOLS[name] = f\n"},
        """
import registry
def fee(x): return x + 1
def rate(x): return x + 10
registry.register("fee", fee)
"""
        + FLOW.format("registry.TOOLS['fee'](x)"),
        ((*EDIT, True), ('("fee", fee)', '("fee", rate)', True), ("x + 10", "x + 20", False)),
    ),
    "a call that is given the table": (
        {},
        """
TABLE = {}
def put(into, name, f): into[name] = f
def fee(x): return x + 1
put(TABLE, "fee", fee)
"""
        + FLOW.format("TABLE['fee'](x)"),
        ((*EDIT, True),),
    ),
    "a decorator made by a function": (
        {},
        """
TABLE = {}
def filling(table):
    def deco(f):
        table[f.__name__] = f
        return f
    return deco
tool = filling(TABLE)
@tool
def fee(x): return x + 1
"""
        + FLOW.format("TABLE['fee'](x)"),
        ((*EDIT, True),),
    ),
    "subclasses that are asked for": (
        {},
        """
class Base: ...
class Other: ...
class Fee(Base):
    def of(self, x): return x + 1
class Unrelated(Other):
    def of(self, x): return x + 10
def found(x): return [one().of(x) for one in Base.__subclasses__()]
"""
        + FLOW.format("found(x)"),
        ((*EDIT, True), ("x + 10", "x + 20", False)),
    ),
    "subclasses that nobody asks for": (
        {},
        """
class Base:
    def of(self, x): return x
class Fee(Base):
    def of(self, x): return x + 1
"""
        + FLOW.format("Base().of(x)"),
        ((*EDIT, False),),
    ),
    "__init_subclass__": (
        {},
        """
KNOWN = {}
class Base:
    def __init_subclass__(cls):
        KNOWN[cls.__name__] = cls
class Fee(Base):
    def of(self, x): return x + 1
"""
        + FLOW.format("KNOWN['Fee']().of(x)"),
        ((*EDIT, True),),
    ),
    "a metaclass": (
        {},
        """
KNOWN = {}
class Meta(type):
    def __init__(cls, *args):
        KNOWN[cls.__name__] = cls
class Fee(metaclass=Meta):
    def of(self, x): return x + 1
"""
        + FLOW.format("KNOWN['Fee']().of(x)"),
        ((*EDIT, True),),
    ),
    "globals()": (
        {},
        """
def handle_fee(x): return x + 1
def other(x): return x + 10
def handled(x): return globals()[f"handle_{x}"](x)
"""
        + FLOW.format("handled(x)"),
        ((*EDIT, True), ("x + 10", "x + 20", False)),
    ),
    "globals() with any name": (
        {},
        """
def fee(x): return x + 1
def handled(x): return globals()[x](x)
"""
        + FLOW.format("handled(x)")
        + "# end\n",
        ((*EDIT, True), ("# end", "\n\n# the end", False)),
    ),
    "getattr of the own module": (
        {},
        """
import sys
def handle_fee(x): return x + 1
def handled(x): return getattr(sys.modules[__name__], "handle_" + x)(x)
"""
        + FLOW.format("handled(x)"),
        ((*EDIT, True),),
    ),
    "getattr of another module": (
        {"handlers.py": "def fee(x): return x + 1\n"},
        "\nimport handlers\ndef handled(x): return getattr(handlers, x)(x)\n" + FLOW.format("handled(x)"),
        ((*EDIT, True),),
    ),
    "a module imported by a computed name": (
        {"handlers/__init__.py": "", "handlers/fee.py": "def run(x): return x + 1\n"},
        "\nfrom importlib import import_module\ndef handled(x): return import_module(f'handlers.{x}').run(x)\n"
        + FLOW.format("handled(x)"),
        ((*EDIT, True),),
    ),
    "setattr and globals() at the top level": (
        {},
        """
import sys
def plain(x): return x + 1
def scaled(x): return x * 10
class Holder: ...
setattr(Holder, "run", staticmethod(plain))
for each in ("one", "two"):
    globals()[each] = scaled
"""
        + FLOW.format("Holder.run(one(x))"),
        ((*EDIT, True), ("x * 10", "x * 20", True), ('("one", "two")', '("one",)', True)),
    ),
    "a patched module": (
        {"fees.py": "def fee(x): return x\n"},
        "\nimport fees\ndef better(x): return x + 1\nfees.fee = better\n" + FLOW.format("fees.fee(x)"),
        ((*EDIT, True),),
    ),
    "a table built from globals()": (
        {},
        """
def tool_fee(x): return x + 1
def other(x): return x + 10
TOOLS = {name: f for name, f in globals().items() if name.startswith("tool_")}
"""
        + FLOW.format("TOOLS['tool_fee'](x)"),
        ((*EDIT, True),),
    ),
    "a main program and a logger": (
        {},
        """
import logging
SEEN = []
log = logging.getLogger()
def noted(f):
    log.info("defined %s", f)
    return f
@noted
def unrelated(x): return x + 10
def main():
    SEEN.append(unrelated(1))
def fee(x):
    log.info("fee")
    return x + len(SEEN) + 1
if __name__ == "__main__":
    main()
"""
        + FLOW.format("fee(x)"),
        (("+ 1\nif", "+ 2\nif", True), ("x + 10", "x + 20", False)),
    ),
}


def digests(folder: Path, files: dict[str, str], load: Any, monkeypatch: Any, version: int | None = None) -> str:
    monkeypatch.syspath_prepend(folder)
    for name in {name.partition("/")[0].removesuffix(".py") for name in files}:
        for loaded in [each for each in sys.modules if each == name or each.startswith(f"{name}.")]:
            monkeypatch.delitem(sys.modules, loaded)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    flow = load(folder / "app.py").flow
    given = {} if version is None else {"version": version}
    return str(compile_workflow(flow, ref="app.py:flow", **given).plan.code_digest)


@pytest.mark.parametrize("name", CASES)
def test_registered_code_belongs_to_the_digest(name: str, load: Any, tmp_path: Path, monkeypatch: Any) -> None:
    others, app, edits = CASES[name]
    files = {**others, "app.py": HEAD + app}
    before = digests(tmp_path / "before", files, load, monkeypatch)
    for number, (old, new, noticed) in enumerate(edits):
        edited = {file: text.replace(old, new) for file, text in files.items()}
        assert edited != files
        after = digests(tmp_path / str(number), edited, load, monkeypatch)
        assert (before != after) is noticed, (old, new)


def test_moving_a_registered_function_is_no_change(load: Any, tmp_path: Path, monkeypatch: Any) -> None:
    fee, rate = "@tool\ndef fee(x): return x\n", "@tool\ndef rate(x): return -x\n"
    begin = "TOOLS = {}\ndef tool(f):\n    TOOLS[f.__name__] = f\n    return f\n"
    flow = FLOW.format("TOOLS['fee'](x)")
    found = {
        digests(tmp_path / str(number), {"app.py": HEAD + begin + order + flow}, load, monkeypatch)
        for number, order in enumerate((fee + rate, rate + "# moved\n\n" + fee))
    }
    assert len(found) == 1


def test_format_6_digests_stay_as_they_were(load: Any, tmp_path: Path, monkeypatch: Any) -> None:
    _, app, _ = CASES["a decorator that fills a dict"]
    found = [
        digests(tmp_path / str(number), {"app.py": HEAD + text}, load, monkeypatch, 6)
        for number, text in enumerate((app, app.replace(*EDIT)))
    ]
    assert found[0] == found[1]
