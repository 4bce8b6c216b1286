"""What the page is told, over a recorded run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from story import STARTED, call
from story import story as recorded

from ramify.browse.web.app import STATIC
from ramify.browse.web.views import moment_row
from ramify.compiler.plan import OpKind
from ramify.inspect.history import Moment
from ramify.runtime.records import ROOT
from ramify.serving.types import Ledger


@pytest.fixture
def run(looked_at: tuple[Path, str]) -> str:
    return looked_at[1]


async def said(client: httpx.AsyncClient, path: str) -> Any:
    answer = await client.get(f"/api/{path}")
    assert answer.status_code == 200, answer.text
    return {name: objects(value) for name, value in told.items()} if isinstance(told := answer.json(), dict) else told


def objects(value: Any) -> Any:
    """A table's rows, each with its names; anything else as it is."""
    if not (isinstance(value, dict) and value.keys() == {"fields", "rows"}):
        return value
    return [dict(zip(value["fields"], row, strict=True)) for row in value["rows"]]


async def test_the_runs(client: httpx.AsyncClient, run: str) -> None:
    (row,) = await said(client, "runs")
    shown = {
        name: row[name] for name in ("id", "name", "status", "forks", "merges", "failed", "llm_calls", "deadline_s")
    }
    assert shown == {
        "id": run, "name": "browsed", "status": "done", "forks": 3, "merges": 1, "failed": 1, "llm_calls": 1,
        "deadline_s": 300.0,
    }  # fmt: skip


def test_a_stream_has_its_quality_of_experience() -> None:
    rows = [call(2, Ledger(0.1, 0.2, 2.0, qoe=0.8125), stage=0, width=1), *recorded().llm[:1]]
    moments = [Moment(row.seq, ROOT, OpKind.CALL_LLM, "", "", STARTED, STARTED, llm=row) for row in rows]
    told = [moment_row(one).call for one in moments]
    assert [one and one.qoe for one in told] == [0.8125, None]


async def test_history_page_and_then_only_new_rows(client: httpx.AsyncClient, run: str) -> None:
    page = await said(client, f"runs/{run}")
    assert page["whole"]
    assert [line["end"] for line in page["lines"]] == ["open", "released", "released", "merged"]
    (call,) = [one for one in page["moments"] if one["call"]]
    assert (call["summary"], call["kind"]) == ("B", "CALL_LLM")
    assert {one["status"] for one in page["moments"]} == {"done", "failed"}
    again = await said(client, f"runs/{run}?since={page['cursor']}")
    assert (again["whole"], again["moments"], again["lines"], again["checkpoints"]) == (False, [], [], [])
    assert again["cursor"] == page["cursor"]
    earlier = page["cursor"].partition(".")[0] + ".5"
    part = await said(client, f"runs/{run}?since={earlier}")
    assert [one["seq"] for one in part["moments"]] == [one["seq"] for one in page["moments"] if one["seq"] > 5]
    assert (await said(client, f"runs/{run}?since=nonsense"))["whole"]


async def test_state_and_diff_of_two_states(client: httpx.AsyncClient, run: str) -> None:
    states = (await said(client, f"runs/{run}"))["checkpoints"]
    base, last = states[0]["id"], states[-1]["id"]
    assert (await said(client, f"runs/{run}/states/{base}"))["changes"] is None
    state = await said(client, f"runs/{run}/states/{last}")
    assert [(file["path"], file["change"], file["added"]) for file in state["changes"]["files"]] == [
        ("end.txt", "added", 1)
    ]
    diff = await said(client, f"diff/{run}/{base}/{run}/{last}")
    patches = {file["path"]: file["patch"] for file in diff["changes"]["files"]}
    assert sorted(patches) == ["end.txt", "notes.txt"]
    assert "+attempt 3" in patches["notes.txt"]
    changed = {key["name"]: (key["before"], json.loads(key["after"])) for key in diff["keys"]}
    assert changed == {name: (None, value) for name, value in state["channels"].items()} != {}
    back = await said(client, f"diff/{run}/{last}/{run}/{base}")
    assert {file["change"] for file in back["changes"]["files"]} == {"removed"}


async def test_a_call_a_step_and_a_search(client: httpx.AsyncClient, run: str) -> None:
    moments = (await said(client, f"runs/{run}"))["moments"]
    call = next(one["seq"] for one in moments if one["call"])
    failed = next(one["seq"] for one in moments if one["status"] == "failed")
    told = await said(client, f"runs/{run}/calls/{call}")
    assert told["answer"] == "B"
    assert "Which way?" in told["messages"][-1]["content"]
    assert "the second attempt is not to be" in (await said(client, f"runs/{run}/moments/{failed}"))["error"]
    hits = await said(client, f"runs/{run}/search?q=WHICH%20way")
    assert [(hit["seq"], hit["where"]) for hit in hits] == [(call, "messages")]
    assert await said(client, f"runs/{run}/search?q=%20") == []


async def test_plan_is_compared_with_what_happened(client: httpx.AsyncClient, run: str) -> None:
    plan = await said(client, f"runs/{run}/plan")
    attempts = next(op for op in plan["operations"] if op["step"] == "attempt")
    assert (attempts["done"], attempts["failed"], attempts["effect"]) == (2, 1, "revertible")


@pytest.mark.parametrize(
    "path",
    ["runs/none", "runs/none/plan", "runs/RUN/states/none", "runs/RUN/calls/1", "runs/RUN/moments/99999",
     "diff/RUN/none/RUN/none", "nothing"],
)  # fmt: skip
async def test_missing_rows_are_reported(client: httpx.AsyncClient, run: str, path: str) -> None:
    answer = await client.get(f"/api/{path.replace('RUN', run)}")
    assert answer.status_code == 404
    assert answer.json()["error"]


@pytest.mark.parametrize(
    "path", ["/../app.py", "/..%2fapp.py", "/%2e%2e/app.py", "/app.py", "/static/app.js", "//etc/passwd"]
)
async def test_only_the_pages_own_files_are_served(client: httpx.AsyncClient, path: str) -> None:
    assert (await client.get(path)).status_code == 404


async def test_every_file_that_the_page_names_is_served_and_none_comes_from_elsewhere(
    client: httpx.AsyncClient,
) -> None:
    assert (await client.get("/")).headers["content-type"].startswith("text/html")
    named = set(re.findall(r'(?:href|src)="([\w.]+)"', (STATIC / "index.html").read_text()))
    for file in STATIC.iterdir():
        text = file.read_text()
        named |= set(re.findall(r"from '\./([\w.]+)'", text))
        assert set(re.findall(r"https?://[^\s'\"]+", text)) <= {"http://www.w3.org/2000/svg"}
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|url\(", text), file.name
    for name in named:
        assert (await client.get(f"/{name}")).status_code == 200, name
    assert named | {"index.html"} == {file.name for file in STATIC.iterdir()}
