"""Generated projects of many modules, for tests and benchmarks of compile time."""

from __future__ import annotations

from pathlib import Path

FUNCTIONS = 6


def write_project(folder: Path, name: str, modules: int) -> None:
    """Write a package of modules that import each other, and a workflow `flow` in it that calls a step, a helper and
    a class of every fifth module."""
    package = folder / name
    package.mkdir()
    (package / "__init__.py").touch()
    called = range(4, modules, 5)
    for number in range(modules):
        (package / f"m{number}.py").write_text(_module(number, has_step=number in called))
    lines = ["from ramify import workflow"]
    lines += [f"from .m{number} import s{number}, C{number}, f{number}_1" for number in called]
    lines += ["@workflow", "async def flow() -> int:", "    x = 0"]
    lines += [f"    x = await s{number}(f{number}_1(x) + C{number}().run(x))" for number in called]
    (package / "flow.py").write_text("\n".join([*lines, "    return x", ""]))


def _module(number: int, *, has_step: bool) -> str:
    below = sorted({number - 1, number // 2, number // 3}) if number else []
    lines = ["import json", "from pathlib import Path"]
    lines += [f"from .m{each} import f{each}_0, f{each}_{FUNCTIONS - 1}, K{each}" for each in below]
    lines += [f"K{number} = {{'a': {number}}}"]
    for each in range(FUNCTIONS):
        calls = [f"f{number}_{each - 1}(x)"] * (each > 0) + [f"f{one}_0(K{one}['a'])" for one in below]
        calls += [f"f{one}_{FUNCTIONS - 1}(x)" for one in below[:1]]
        lines += [f"def f{number}_{each}(x):", '    """Doc."""', "    y = [x + n for n in range(3)]"]
        lines += [f"    if y and x:\n        x += {call}" for call in calls] + ["    return x"]
    lines += [f"class C{number}:", f"    limit = K{number}", "    def run(self, x):"]
    lines += [f"        return f{number}_2(x) + self.limit['a']"]
    if has_step:
        lines += ["from ramify import step", "@step(effect='pure')", f"async def s{number}(x: int) -> int:"]
        lines += [f"    return C{number}().run(x) + f{number}_3(x)"]
    return "\n".join([*lines, ""])
