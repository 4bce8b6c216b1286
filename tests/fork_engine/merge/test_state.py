"""Three-way merge of what a snapshot holds beside its files: variables, processes, shells, the directory."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from typing import Any

import pytest

from ramify.fork_engine.errors import MergeConflict
from ramify.fork_engine.manifest import canonical_json
from ramify.fork_engine.merge.state import NAMED
from ramify.fork_engine.types import Conflict, ConflictKind, MergeStrategy, Processes, ProcessTier, Snapshot

OURS, THEIRS, UNION = MergeStrategy.OURS, MergeStrategy.THEIRS, MergeStrategy.UNION


def test_environments_merge_by_variable(bench: Any) -> None:
    base = bench.after(bench.base({"d/a": "1"}), env={"A": "1", "B": "1", "C": "1"})
    one = bench.after(base, env={"A": "2", "B": "1"}, env_unset=("C",), cwd="d")
    two = bench.after(base, env={"A": "1", "B": "1", "C": "1", "D": "4"}, processes=Processes(ProcessTier.DROPPED))
    merged = bench.store.merge(base, one, two)
    assert (merged.env, merged.env_unset, merged.cwd) == ({"A": "2", "B": "1", "D": "4"}, ("C",), "d")
    assert merged.tier is ProcessTier.DROPPED
    assert merged.layers == base.layers


def dumped(bench: Any) -> Processes:
    folder = bench.place()
    folder.mkdir()
    (folder / "core").write_bytes(b"core")
    return Processes(ProcessTier.CRIU, image=bench.store.adopt_process_image(folder))


COMMANDS = Processes(ProcessTier.COMMANDS, commands=("serve",))


def test_processes_of_one_side_continue(bench: Any) -> None:
    base = bench.base({"a": "1"})
    quiet = bench.after(base, {"b": "1"})
    for ran in (dumped(bench), COMMANDS, Processes(ProcessTier.REPL)):
        live = bench.after(base, {"c": "1"}, processes=ran)
        assert bench.store.merge(base, quiet, live).processes == ran
        assert bench.store.merge(base, live, quiet).processes == ran
        later = bench.after(live, {"d": "1"}, processes=ran)
        ended = bench.after(live, {"e": "1"})
        assert bench.store.merge(live, later, ended).processes == Processes()


def test_processes_of_both_sides_are_a_conflict(bench: Any) -> None:
    base = bench.base({"a": "1"})
    live = dumped(bench)
    one = bench.after(base, {"b": "1"}, processes=live)
    two = bench.after(base, {"c": "1"}, processes=COMMANDS)
    with pytest.raises(MergeConflict) as raised:
        bench.store.merge(base, one, two)
    assert [(c.path, c.kind) for c in raised.value.conflicts] == [("processes", ConflictKind.PROCESSES)]
    assert bench.store.merge(base, one, two, strategy=OURS).processes == live
    assert bench.store.merge(base, one, two, strategy=THEIRS).processes == COMMANDS
    assert bench.store.merge(base, one, two, strategy=lambda *_: THEIRS).processes == COMMANDS
    with pytest.raises(MergeConflict):
        bench.store.merge(base, one, two, strategy=UNION)
    more = bench.after(base, {"b": "1"}, processes=Processes(ProcessTier.COMMANDS, commands=("watch", "serve")))
    assert bench.store.merge(base, two, more, strategy=UNION).processes.commands == ("serve", "watch")


def shell(bench: Any, **items: Any) -> Processes:
    """A shell's state, as `ramify.sandboxes.agent.shell_snapshot.ShellSnapshot` writes it."""
    empty: dict[str, Any] = {kind: {} for kind in (*NAMED, "attributes")}
    empty |= {"format": 2, "args": [], "dirs": [], "oldpwd": ""}
    return Processes(shell=bench.store.put_blob(canonical_json(empty | items)))


def known(bench: Any, snapshot: Snapshot) -> Any:
    return json.loads(bench.store.blob(snapshot.processes.shell))


def test_a_shell_changed_on_one_side_is_kept(bench: Any) -> None:
    mine = shell(bench, functions={"f": "f () {\n:\n}\n"})
    base = bench.base({"a": "1"})
    one = bench.after(base, {"b": "1"}, env={"A": "1"}, processes=mine)
    other = bench.after(base, {"c": "1"}, env={"B": "1"})
    for merged in (bench.store.merge(base, other, one), bench.store.merge(base, one, other)):
        assert (merged.processes, dict(merged.env)) == (mine, {"A": "1", "B": "1"})


def test_two_shells_are_merged_item_by_item(bench: Any) -> None:
    began = shell(bench, variables={"i": "1", "gone": "1"}, functions={"f": "f"}, args=["x"])
    base = bench.after(bench.base({"a": "1"}), {"b": "1"}, processes=began)
    ours = shell(
        bench,
        variables={"i": "2", "mine": "1"},
        functions={"f": "f", "g": "g"},
        args=["x"],
        options={"set errexit": "-e"},
    )
    theirs = shell(
        bench,
        variables={"i": "3", "gone": "1"},
        functions={},
        aliases={"ll": "ls"},
        args=["y"],
        limits={"NOFILE": [1, 2]},
    )
    one, two = bench.after(base, {"c": "1"}, processes=ours), bench.after(base, {"d": "1"}, processes=theirs)
    merged = bench.store.merge(base, one, two)
    assert {kind: items for kind, items in known(bench, merged).items() if items} == {
        "format": 2,
        "variables": {"i": "2", "mine": "1"},
        "functions": {"g": "g"},
        "aliases": {"ll": "ls"},
        "options": {"set errexit": "-e"},
        "args": ["y"],
        "limits": {"NOFILE": [1, 2]},
    }
    assert merged.processes.reason == "both shells changed variable i: ours is kept"
    back = bench.after(base, {"e": "1"})  # a new shell again: everything of the base is gone there
    assert "f" not in known(bench, bench.store.merge(base, one, back))["functions"]


def test_an_exported_variable_replaces_the_other_sides_unexported_one(bench: Any) -> None:
    base = bench.base({"a": "1"})
    kept = shell(bench, variables={"MODE": 'declare -- MODE="test"', "R": "declare -rx R", "i": "1"})
    one = bench.after(base, {"b": "1"}, processes=kept)
    two = bench.after(base, {"c": "1"}, env={"MODE": "prod", "R": "1"})
    also = bench.after(base, {"c": "1"}, env={"MODE": "prod"}, processes=shell(bench, functions={"f": "f"}))
    for ours, theirs in ((one, two), (two, one), (one, also), (also, one)):
        merged = bench.store.merge(base, ours, theirs)
        assert merged.env["MODE"] == "prod"
        assert known(bench, merged)["variables"] == {"R": "declare -rx R", "i": "1"}
        assert merged.processes.reason == "the exported value of MODE is kept"


def test_a_record_names_a_limited_number_of_overridden_variables(bench: Any) -> None:
    base = bench.base({"a": "1"})
    one, two = (
        bench.after(base, {at: "1"}, processes=shell(bench, variables={f"v{n:02}": at for n in range(12)}))
        for at in "bc"
    )
    reason = bench.store.merge(base, one, two).processes.reason
    assert reason.endswith("variable v09, and 2 more: ours is kept")


def test_different_changes_in_two_shells_are_a_conflict(bench: Any) -> None:
    base = bench.base({"a": "1"})
    one = bench.after(base, {"b": "1"}, processes=shell(bench, functions={"f": "one"}, options={"umask": "umask 1"}))
    two = bench.after(base, {"c": "1"}, processes=shell(bench, functions={"f": "two"}, options={"umask": "umask 2"}))
    for strategy in (MergeStrategy.FAIL, UNION):
        with pytest.raises(MergeConflict) as raised:
            bench.store.merge(base, one, two, strategy=strategy)
        assert [(c.path, c.kind) for c in raised.value.conflicts] == [
            ("function f", ConflictKind.PROCESSES),
            ("option umask", ConflictKind.PROCESSES),
        ]
    assert known(bench, bench.store.merge(base, one, two, strategy=OURS))["functions"] == {"f": "one"}
    assert known(bench, bench.store.merge(base, one, two, strategy=THEIRS))["functions"] == {"f": "two"}

    def asked(conflict: Conflict, *sides: bytes | None) -> bytes | MergeStrategy:
        return b"".join(side or b"-" for side in sides) if conflict.path == "function f" else THEIRS

    settled = known(bench, bench.store.merge(base, one, two, strategy=asked))
    assert (settled["functions"], settled["options"]) == ({"f": "-onetwo"}, {"umask": "umask 2"})


def test_a_strategy_chooses_between_shells_that_cannot_be_merged(bench: Any) -> None:
    """Otherwise a new one starts; the record says it in either case, next to why processes were dropped."""
    base = bench.base({"a": "1"})
    one, two = (
        bench.after(
            base,
            {name: "1"},
            processes=Processes(
                ProcessTier.DROPPED,
                shell=bench.store.put_blob(b'{"format":1,"functions":"%s"}' % name.encode()),
                dropped=1,
                reason=f"dropped {name}",
            ),
        )
        for name in "bc"
    )
    asked: list[Conflict] = []

    def settle(conflict: Conflict, *_: bytes | None) -> MergeStrategy:
        asked.append(conflict)
        return THEIRS

    dropped = "dropped b; dropped c; two shells in a format that cannot be merged: "
    for strategy, kept, stands in (
        (MergeStrategy.FAIL, "", "a new one starts"),
        (UNION, "", "a new one starts"),
        (OURS, one.processes.shell, "ours is kept"),
        (THEIRS, two.processes.shell, "theirs is kept"),
        (settle, two.processes.shell, "theirs is kept"),
    ):
        ran = bench.store.merge(base, one, two, strategy=strategy).processes
        assert (ran.shell, ran.dropped) == (kept, 1)
        assert ran.reason.startswith(dropped + stands)
    assert [(conflict.path, conflict.kind) for conflict in asked] == [("shell", ConflictKind.PROCESSES)]
    with pytest.raises(MergeConflict, match="shell"):
        bench.store.merge(base, one, two, strategy=lambda *_: b"echo")


def test_a_record_keeps_all_reasons(bench: Any) -> None:
    began = bench.base({"a": "1"})
    base = bench.after(began, {"b": "1"}, processes=shell(bench, functions={"f": "f"}))
    one, two = (
        bench.after(
            base,
            {at: "1"},
            processes=replace(shell(bench, variables={"i": at}), tier=tier, dropped=1, reason=f"dropped {at}"),
        )
        for at, tier in (("c", ProcessTier.DROPPED), ("d", ProcessTier.COMMANDS))
    )
    merged = bench.store.merge(base, one, two).processes
    assert merged.tier is ProcessTier.COMMANDS
    assert merged.reason == "dropped d; dropped c; both shells changed variable i: ours is kept"
    one, two = (
        bench.after(began, {at: "1"}, processes=Processes(ProcessTier.COMMANDS, commands=(at,), reason=f"kept {at}"))
        for at in ("e", "f")
    )
    assert bench.store.merge(began, one, two, strategy=UNION).processes.reason == "kept e; kept f"


def test_a_directory_beside_the_workspace_is_merged(bench: Any) -> None:
    base = bench.base({"a": "1"})
    one, two = bench.after(base, {"b": "1"}, cwd="/tmp/x"), bench.after(base, {"c": "1"})
    assert bench.store.merge(base, one, two).cwd == bench.store.merge(base, two, one).cwd == "/tmp/x"
    with pytest.raises(MergeConflict) as raised:
        bench.store.merge(base, one, bench.after(base, {"c": "1"}, cwd="/"))
    assert [(c.path, c.kind) for c in raised.value.conflicts] == [("cwd", ConflictKind.ENV)]

    def without_x(parent: Snapshot) -> Any:
        outside = bench.place()
        (outside / "tmp").mkdir(parents=True)
        os.mknod(outside / "tmp/x", stat.S_IFCHR, os.makedev(0, 0))
        return bench.store.seal_upper(bench.upper(parent), parent, **bench.seal, outside=outside, move=True)

    with pytest.raises(MergeConflict, match="cwd"):
        bench.store.merge(base, one, without_x(base))


def test_a_directory_that_its_own_side_removed_is_no_conflict(bench: Any) -> None:
    base = bench.base({"a": "1"})
    one, two = bench.after(base, {"b": "1"}, cwd="gone"), bench.after(base, {"c": "1"})
    assert bench.store.merge(base, one, two).cwd == bench.store.merge(base, two, one).cwd == ""
