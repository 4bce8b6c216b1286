"""Ramify: fork, roll back, merge and resume the whole state of an agent.

This package is the public interface. Start with `decorators` (`@step`, `@workflow`), `run_functions` (what a workflow
calls: `fork`, `llm`, `interrupt`), `session` (`Runtime`) and `graph` (LangGraph graphs). The package `inspect` reads
recorded runs; `cli` and `browse` show them.

`import ramify` itself imports none of these modules: behind most public names are SQLAlchemy, httpx or LangGraph. A
name is imported when it is first used (PEP 562). Type checkers and editors read the imports under `TYPE_CHECKING`.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # `typing` is not imported: it is slow, and Ctrl-C is handled only after these imports
if TYPE_CHECKING:
    from ramify.decorators import Step as Step
    from ramify.decorators import Workflow as Workflow
    from ramify.decorators import step as step
    from ramify.decorators import workflow as workflow
    from ramify.fleet.fleet import Fleet as Fleet
    from ramify.graph import compile as compile
    from ramify.run_functions import Choice as Choice
    from ramify.run_functions import current_sandbox as current_sandbox
    from ramify.run_functions import fork as fork
    from ramify.run_functions import idempotency_key as idempotency_key
    from ramify.run_functions import interrupt as interrupt
    from ramify.run_functions import llm as llm
    from ramify.run_functions import patched as patched
    from ramify.run_functions import sleep as sleep
    from ramify.run_functions import time_left as time_left
    from ramify.runtime.effects.fence import DidNotHappen as DidNotHappen
    from ramify.runtime.effects.fence import Happened as Happened
    from ramify.runtime.execution.forks import Branch as Branch
    from ramify.runtime.execution.forks import Branches as Branches
    from ramify.runtime.execution.forks import Outcome as Outcome
    from ramify.runtime.execution.forks import Outcomes as Outcomes
    from ramify.runtime.langgraph.checkpointer import Saver as Saver
    from ramify.runtime.user_code.call_slo import slo as slo
    from ramify.runtime.user_code.sandbox import Sandbox as Sandbox
    from ramify.runtime.user_code.sandbox import SyncSandbox as SyncSandbox
    from ramify.sandboxes.contract import RunResult as RunResult
    from ramify.sandboxes.egress.settings import Egress as Egress
    from ramify.sandboxes.egress.settings import Header as Header
    from ramify.session import Runtime as Runtime
    from ramify.tools import Tool as Tool
    from ramify.tools import tool as tool
    from ramify.tree_search.search import MCTS as MCTS
    from ramify.tree_search.search import Beam as Beam
    from ramify.tree_search.search import BestOf as BestOf
    from ramify.tree_search.search import search as search
    from ramify.warm_worlds import WarmWorlds as WarmWorlds
    from ramify.worlds.blocking import SyncWorld as SyncWorld
    from ramify.worlds.world import World as World

__version__ = "0.2.0"

_EXPORTS = {
    "ramify.decorators": ("Step", "Workflow", "step", "workflow"),
    "ramify.fleet.fleet": ("Fleet",),
    "ramify.graph": ("compile",),
    "ramify.run_functions": (
        "Choice",
        "current_sandbox",
        "fork",
        "idempotency_key",
        "interrupt",
        "llm",
        "patched",
        "sleep",
        "time_left",
    ),
    "ramify.runtime.effects.fence": ("DidNotHappen", "Happened"),
    "ramify.runtime.execution.forks": ("Branch", "Branches", "Outcome", "Outcomes"),
    "ramify.runtime.langgraph.checkpointer": ("Saver",),
    "ramify.runtime.user_code.call_slo": ("slo",),
    "ramify.runtime.user_code.sandbox": ("Sandbox", "SyncSandbox"),
    "ramify.sandboxes.contract": ("RunResult",),
    "ramify.sandboxes.egress.settings": ("Egress", "Header"),
    "ramify.session": ("Runtime",),
    "ramify.tools": ("Tool", "tool"),
    "ramify.tree_search.search": ("Beam", "BestOf", "MCTS", "search"),
    "ramify.warm_worlds": ("WarmWorlds",),
    "ramify.worlds.blocking": ("SyncWorld",),
    "ramify.worlds.world": ("World",),
}
"""The public names, by the module that defines them."""

_MODULES = ("graph", "metrics", "telemetry")
"""Modules that users reach after `import ramify` alone, as in `ramify.graph.saver()`."""

__all__ = [name for names in _EXPORTS.values() for name in names]  # each name is written once, above
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'ramify' has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, *_MODULES])
