"""A search whose states are worlds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ramify import World, search
from ramify.sandboxes import doctor
from ramify.tree_search.command_turns import CommandTurns
from ramify.tree_search.types import Turn


async def test_the_best_edit_is_merged(tmp_path: Path) -> None:
    folder = tmp_path / "repo"
    folder.mkdir()
    (folder / "add.py").write_text("def add(a, b):\n    return a - b\n")
    sandbox = "namespaces" if doctor.namespaces(tmp_path).available else "copy"

    async def edits(environment: CommandTurns, history: Sequence[Turn[str]], n: int) -> list[str]:
        return [f"sed -i 's/a . b/a {sign} b/' add.py" for sign in "*+-"][:n]

    async def passes(environment: CommandTurns, history: Sequence[Turn[Any]]) -> float:
        result = await environment.world.exec("python3 -Bc 'from add import add; assert add(2, 3) == 5'")
        return float(result.ok)

    async with World.create(folder, home=tmp_path / "home", sandbox=sandbox) as world:
        async with search(CommandTurns(world), edits, width=3, depth=2, score=passes) as found:
            assert found.best.score == 1.0
            await world.merge(found.best.environment.world)
        assert (await world.read("add.py")).decode().endswith("return a + b\n")
