"""The names under which Ramify's own types are stored, if they differ from the types' present names.

A stored value names its type by module and qualified name. That name is part of the value's digest, and digests are
part of journal keys. So a type keeps the name under which a release first stored it, wherever its class moves: the
encoder writes the stored name, and the decoder finds the present class for it. A process of an earlier release that
uses the same home can read the values, too.

Add an entry if you move or rename a type that can be stored: an exception that a step may raise, or a dataclass, enum
or named tuple that a step may take or return. `tests/runtime/codec/test_persisted_names.py` fails if an entry is
missing.
"""

from __future__ import annotations

from collections.abc import Mapping

PERSISTED_NAMES: Mapping[str, str] = {
    "ramify.faces:Choice": "ramify.run_functions:Choice",
    "ramify.fork_engine.mend:CannotMend": "ramify.fork_engine.fsck.repair:NoOtherCopy",
    "ramify.fork_engine.scan:TooDeep": "ramify.fork_engine.filesystem.scan:TooDeep",
    "ramify.fork_engine.shells:UnknownShell": "ramify.fork_engine.merge.state:UnknownShell",
    "ramify.runtime.effects:DidNotHappen": "ramify.runtime.effects.fence:DidNotHappen",
    "ramify.runtime.effects:Happened": "ramify.runtime.effects.fence:Happened",
    "ramify.runtime.effects:InFork": "ramify.runtime.effects.fence:InFork",
    "ramify.runtime.langgraph.errors:SessionClosed": "ramify.runtime.langgraph.errors:AppClosed",
    "ramify.runtime.langgraph.saver.tables:SaverVersionError": (
        "ramify.runtime.langgraph.checkpointer.tables:SaverVersionError"
    ),
    "ramify.runtime.pending:StepTimeout": "ramify.runtime.execution.step_call:StepTimeout",
    "ramify.runtime.store.pooler:SessionsShared": "ramify.runtime.store.pooler_check:SessionsShared",
    "ramify.serving.analyzer.errors:AnalyzerDown": "ramify.serving.errors:AnalyzerDown",
    "ramify.serving.analyzer.errors:AnalyzerError": "ramify.serving.errors:AnalyzerError",
    "ramify.serving.analyzer.errors:BadFrame": "ramify.serving.errors:BadFrame",
    "ramify.serving.analyzer.errors:CheckpointCorrupt": "ramify.serving.errors:CheckpointCorrupt",
    "ramify.serving.tags:SLOTags": "ramify.serving.protocol.tags:SLOTags",
    "ramify.serving.wire:Malformed": "ramify.serving.protocol.wire:Malformed",
    "ramify.tree_search.errors:NoScore": "ramify.tree_search.types:NoScore",
    "ramify.tree_search.errors:NothingProposed": "ramify.tree_search.types:NothingProposed",
    "ramify.tree_search.errors:SearchError": "ramify.tree_search.types:SearchError",
}
"""Stored name to present name, each as `module:Qualified.Name`."""

_STORED_NAMES: Mapping[str, str] = {present: stored for stored, present in PERSISTED_NAMES.items()}


def stored_name(present: str) -> str:
    """Return the name under which a type is stored."""
    return _STORED_NAMES.get(present, present)


def present_name(stored: str) -> str:
    """Return the present name of a type that is stored under this name."""
    return PERSISTED_NAMES.get(stored, stored)
