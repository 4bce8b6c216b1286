"""Lost and damaged snapshots are recomputed by repeating the operations that made them, or refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import recovery_app

from ramify import Runtime, paths
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import SnapshotId
from ramify.runtime.errors import RunFailed, Unrecoverable
from ramify.runtime.estimates.cost_model import regrets
from ramify.runtime.events import Event, Level, Recovered
from ramify.serving.client import LLMClient


@pytest.fixture(autouse=True)
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "log"
    path.touch()
    monkeypatch.setattr(recovery_app, "LOG", path)
    recovery_app.BROKEN[:] = ["not yet"]
    yield path
    recovery_app.BROKEN.clear()


async def stopped(home: Path, model: LLMClient, workflow: Any, workspace: Path) -> str:
    """A run that stopped before its last step."""
    async with Runtime(home=home, sandbox="copy", llm=model) as runtime:
        with pytest.raises(RunFailed, match="not yet"):
            await runtime.run(workflow, workspace=workspace)
    recovery_app.BROKEN.clear()
    return str(runtime.last_run_id)


async def resumed(home: Path, model: LLMClient, run: str) -> tuple[Any, list[Recovered]]:
    heard: list[Recovered] = []

    def hear(event: Event) -> None:
        if isinstance(event, Recovered):
            heard.append(event)

    async with Runtime(home=home, sandbox="copy", llm=model, observer=hear) as runtime:
        return await runtime.resume(run), heard


async def states(home: Path, run: str) -> list[SnapshotId]:
    async with Runtime(home=home, sandbox="copy") as runtime:
        return [one.snapshot_id for one in await runtime.store.checkpoints(run)]  # type: ignore[arg-type]


def lose(home: Path, *ids: SnapshotId) -> None:
    for id in set(ids):
        (paths.snapshots(home) / "snapshots" / f"{id}.json").unlink()


async def test_a_lost_state_is_recomputed(home: Path, model: LLMClient, workspace: Path, log: Path) -> None:
    run = await stopped(home, model, recovery_app.line, workspace)
    lose(home, *(await states(home, run))[2:])
    result, heard = await resumed(home, model, run)
    assert result == ["hello.txt", "one", "three", "two"]
    assert [one.level for one in heard] == [Level.LINEAGE]
    assert "step 'put', step 'put'" in heard[0].why and "is not in the store" in heard[0].why
    assert log.read_text() == "ppp" + "pp"


async def test_a_lost_state_is_fetched_from_the_homes_bucket(
    home: Path, model: LLMClient, workspace: Path, tmp_path: Path, log: Path
) -> None:
    pytest.importorskip("obstore", reason="needs obstore (ramify[remote])")
    from ramify.fork_engine.remote.push import push
    from ramify.fork_engine.remote.remote_store import RemoteStore

    run = await stopped(home, model, recovery_app.line, workspace)
    made = await states(home, run)
    store, bucket = SnapshotStore(paths.snapshots(home)), tmp_path / "bucket"
    with RemoteStore(store, paths.remote(home), bucket, create=True) as remote:
        push(remote, made)
    lose(home, *made)
    result, heard = await resumed(home, model, run)
    assert result == ["hello.txt", "one", "three", "two"] and log.read_text() == "ppp"
    assert [one.level for one in heard] == [Level.FETCH, Level.RESTORE] and "is not in the store" in heard[0].why


async def test_a_lost_state_is_recomputed_from_one_that_the_bucket_has(
    home: Path, model: LLMClient, workspace: Path, tmp_path: Path, log: Path
) -> None:
    pytest.importorskip("obstore", reason="needs obstore (ramify[remote])")
    from ramify.fork_engine.remote.push import push
    from ramify.fork_engine.remote.remote_store import RemoteStore

    run = await stopped(home, model, recovery_app.line, workspace)
    made = await states(home, run)
    store, bucket = SnapshotStore(paths.snapshots(home)), tmp_path / "bucket"
    with RemoteStore(store, paths.remote(home), bucket, create=True) as remote:
        push(remote, made[:-1])
    lose(home, *made)
    result, heard = await resumed(home, model, run)
    assert result == ["hello.txt", "one", "three", "two"] and log.read_text() == "ppp" + "p"
    assert [one.level for one in heard] == [Level.FETCH, Level.LINEAGE] and "has no snapshot" in heard[1].why


async def test_a_state_with_a_damaged_layer_is_recomputed(
    home: Path, model: LLMClient, workspace: Path, log: Path
) -> None:
    run = await stopped(home, model, recovery_app.line, workspace)
    last = (await states(home, run))[-1]
    async with Runtime(home=home, sandbox="copy") as runtime:
        top = runtime.snapshots.lower_dirs(runtime.snapshots.get(last))[-1]
    top.parent.rename(home / "gone")
    result, _ = await resumed(home, model, run)
    assert result == ["hello.txt", "one", "three", "two"]
    assert log.read_text() == "ppp" + "p"


async def test_a_lost_state_that_is_not_needed_is_not_recomputed(
    home: Path, model: LLMClient, workspace: Path, log: Path
) -> None:
    run = await stopped(home, model, recovery_app.line, workspace)
    lose(home, *(await states(home, run))[1:-1])
    result, heard = await resumed(home, model, run)
    assert result == ["hello.txt", "one", "three", "two"]
    assert [one.level for one in heard] == [Level.RESTORE]
    assert log.read_text() == "ppp"


async def test_a_lost_merge_is_recomputed(home: Path, model: LLMClient, workspace: Path, log: Path) -> None:
    run = await stopped(home, model, recovery_app.merging, workspace)
    lose(home, *(await states(home, run))[1:])
    result, _ = await resumed(home, model, run)
    assert result == ["hello.txt", "left", "one", "right"]


async def refused(home: Path, model: LLMClient, run: str) -> str:
    with pytest.raises(RunFailed) as caught:
        await resumed(home, model, run)
    assert isinstance(caught.value.__cause__, Unrecoverable)
    return str(caught.value.__cause__)


async def test_irreversible_steps_are_not_repeated(home: Path, model: LLMClient, workspace: Path, log: Path) -> None:
    run = await stopped(home, model, recovery_app.sending, workspace)
    lose(home, (await states(home, run))[-1])
    assert "step 'send' would have to be repeated, and it is irreversible" in await refused(home, model, run)
    assert log.read_text() == "ps"


async def test_a_recomputed_state_with_other_content_is_refused(
    home: Path, model: LLMClient, workspace: Path
) -> None:
    run = await stopped(home, model, recovery_app.oddly, workspace)
    lose(home, (await states(home, run))[-1])
    assert "left other files than before" in await refused(home, model, run)


async def test_without_the_workspace_nothing_is_recomputed(home: Path, model: LLMClient, workspace: Path) -> None:
    run = await stopped(home, model, recovery_app.line, workspace)
    lose(home, *(await states(home, run)))
    assert "including the workspace" in await refused(home, model, run)


@pytest.mark.parametrize(
    ("lost", "level", "chose"), [(0, "restored", "restore"), (1, "computed again", "compute again")]
)
async def test_the_level_of_recovery_is_reported_and_recorded(
    home: Path, model: LLMClient, workspace: Path, log: Path, lost: int, level: str, chose: str
) -> None:
    """The cheapest possible level: restoring if the state is complete; its cost is recorded beside the prediction."""
    run = await stopped(home, model, recovery_app.line, workspace)
    lose(home, *(await states(home, run))[4 - lost :])
    _, heard = await resumed(home, model, run)
    assert [one.level for one in heard] == [Level(level)]
    assert "complete" in heard[0].why or "repeated" in heard[0].why
    async with Runtime(home=home, sandbox="copy") as runtime:
        (choice,) = [one for one in regrets(await runtime.journal(run)) if one.what == "finish"]
    assert choice.chose == chose
    assert choice.predicted_s is not None
    assert (choice.instead_s is None) == bool(lost)
