from __future__ import annotations

from pathlib import Path

from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot
from ramify.sandboxes.contract import WorldSpec
from ramify.sandboxes.testing import Answer, ScriptedBackend


async def test_a_mapping_answers_and_edits(
    store: SnapshotStore, scratch: Path, base: Snapshot, spec: WorldSpec
) -> None:
    script = {
        "pytest -q": Answer(1, stdout="1 failed\n", stderr=b"\xff"),
        "fix it": Answer(edits={"readme.txt": "fixed\n", "run.sh": None, "new/file": "new\n"}),
    }
    async with ScriptedBackend(store, scratch, script) as backend:
        world = await backend.materialise(base, spec)
        result = await world.run(["pytest", "-q"])
        assert (result.exit_code, result.stdout, result.stderr_bytes) == (1, "1 failed\n", b"\xff")
        assert (await world.run("fix it")).ok
        unknown = await world.run("rm -rf /")
        assert (unknown.exit_code, "rm -rf /" in unknown.stderr) == (127, True)
        changes = {change.path: change.kind.value for change in store.changes(base, await world.seal())}
        assert changes.items() >= {"readme.txt": "modified", "run.sh": "removed", "new/file": "added"}.items()
        assert backend.commands == [(world.id, "pytest -q"), (world.id, "fix it"), (world.id, "rm -rf /")]


async def test_a_function_answers_by_the_tree(
    store: SnapshotStore, scratch: Path, base: Snapshot, spec: WorldSpec
) -> None:
    def script(tree: Path, command: str) -> Answer:
        if command == "fix":
            (tree / "fixed").touch()
        return Answer(0 if (tree / "fixed").exists() else 1)

    async with ScriptedBackend(store, scratch, script) as backend:
        left, right = await backend.materialise(base, spec), await backend.materialise(base, spec)
        assert [(await left.run(c)).exit_code for c in ("test", "fix", "test")] == [1, 0, 0]
        assert (await right.run("test")).exit_code == 1
