"""The error for a started container whose agent does not connect."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from ramify.sandboxes.backends.docker import container_link
from ramify.sandboxes.backends.docker.engine import End, Engine, Plan
from ramify.sandboxes.contract import Limits
from ramify.sandboxes.errors import WorldStartFailed


class Silent:
    """An engine whose containers never connect."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.removed: list[str] = []

    def start(self, plan: Plan) -> None:
        pass

    def pid(self, container: str) -> int:
        return self._pid

    def end(self, container: str, patience_s: float) -> End:
        return End(3, False, "no such thing")

    def remove(self, container: str) -> None:
        self.removed.append(container)


@pytest.mark.parametrize(
    ("pid", "why"),
    [(0, "ended with exit code 3: no such thing"), (77, "runs, but its agent did not connect within 0.3 s")],
)
async def test_ended_and_slow_containers_get_different_errors(
    pid: int, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container_link, "PATIENCE_S", 0.3)
    engine = Silent(pid)
    plan = Plan("image", "name", [], {}, {}, False, Limits())
    with pytest.raises(WorldStartFailed, match=why):
        await container_link.launch(cast(Engine, engine), plan, tmp_path)
    assert engine.removed == ["name"]
