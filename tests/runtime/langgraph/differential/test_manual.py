"""Each conversation of `manual.py`, `manual_programs.py` and `manual_callers.py` is the same over worlds as in the
plain graph."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.graph import StateGraph

from tests.runtime.langgraph.differential import manual_callers, manual_programs
from tests.runtime.langgraph.differential.manual import SCENARIOS, Scenario
from tests.runtime.langgraph.differential.observing import Comparable

assert manual_programs.__doc__ and manual_callers.__doc__  # they add their own to SCENARIOS


async def conversation(graph: Any, scenario: Scenario) -> list[Any]:
    same = Comparable()
    return [same(one) for one in await scenario.talk(graph)]


def plain(scenario: Scenario) -> Any:
    graph = scenario.make()
    return graph.compile(**scenario.options()) if isinstance(graph, StateGraph) else graph.copy(scenario.options())


@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_page_of_the_manual(name: str, compile_graph: Any) -> None:
    scenario = SCENARIOS[name]
    expected = await conversation(plain(scenario), scenario)
    app = compile_graph(scenario.make(), **scenario.options())
    assert await conversation(app, scenario) == expected
    assert len(repr(expected)) > 30
