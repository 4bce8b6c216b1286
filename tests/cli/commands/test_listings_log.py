from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ramify.cli.commands.listings import what
from ramify.compiler.plan import OpKind


def test_log_draws_the_branches_newest_first(home: Any, ramify: Any) -> None:
    said = ramify("log")
    assert said.status == 0
    lines = [re.sub(r" \d+ days ago$", "", line) for line in said.out.splitlines()]
    assert lines == [
        "● c4ec0014ff (root) merge root/fork.1.0.1",
        "├┐",
        "│● c4ec0012ff (root/fork.1.0.1 merged) merge",
        "│● c4ec0008ff try_edit",
        "├┘",
        "● c4ec0000ff workspace",
    ]


def test_log_of_a_state_lists_its_ancestors(home: Any, ramify: Any) -> None:
    assert [one["seq"] for one in ramify("log", "@:fork.1.0.1", "--json").json] == [12, 8, 0]
    assert [one["seq"] for one in ramify("log", "--json", "-n", "2").json] == [14, 12]
    assert len(ramify("log", "-n", "1").out.splitlines()) == 1


def test_log_as_json_tells_what_made_each(home: Any, ramify: Any) -> None:
    newest, inner, *_, base = ramify("log", "--json").json
    assert (newest["kind"], newest["parents"]) == ("MERGE", [base["id"], inner["id"]])
    assert (inner["branch"], inner["branch_end"]) == ("root/fork.1.0.1", "merged")
    assert (base["kind"], base["label"]) == (None, "workspace")


def test_log_of_a_bare_snapshot_is_refused(home: Any, ramify: Any) -> None:
    said = ramify("log", home.story.run.base_snapshot[:12])
    assert (said.status, said.out) == (1, "")
    assert f"ramify --home {home.path} ls" in said.err


@pytest.mark.parametrize(
    ("summary", "said"),
    [
        ("{'notes': ['report written']}", "report: {'notes': ['report written']}"),  # only what it wrote has the name
        ("reported: 3", "report: reported: 3"),  # another word
        ("report", "report"),
        ("", "report"),
    ],
)
def test_checkpoint_is_described_by_its_moment(summary: str, said: str) -> None:
    one = SimpleNamespace(label="report")
    made = SimpleNamespace(kind=OpKind.SEAL, name="report", summary=summary)
    assert what(cast(Any, SimpleNamespace(made_by=lambda _: made)), cast(Any, one)) == said
