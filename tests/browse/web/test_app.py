"""What the page is told, over a recorded run; and its work ends when its client has gone, and at a deadline."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.types import Message
from story import STARTED, call
from story import story as recorded

from ramify.browse.web.app import DEADLINE_S, STATIC, Stopped, in_thread
from ramify.browse.web.run_cache import RunCache
from ramify.browse.web.views import changes, moment_row
from ramify.compiler.plan import OpKind
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot
from ramify.inspect.history import Moment
from ramify.inspect.state import StateDiff
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
    for odd in ("nonsense", page["cursor"].partition(".")[0] + "." + "9" * 5000, "%00.%ff"):
        assert (await said(client, f"runs/{run}?since={odd}"))["whole"]


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


async def test_made_up_runs_leave_nothing_behind(client: httpx.AsyncClient, reader: RunCache, run: str) -> None:
    for number in range(20):
        assert (await client.get(f"/api/runs/made-up-{number}")).status_code == 404
    await asyncio.gather(*(said(client, f"runs/{run}") for _ in range(5)))
    assert set(reader._locks) <= {run}


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
    assert (await client.get(f"/api/runs/{run}/search?q={'a' * 1001}")).status_code == 400


async def test_plan_is_compared_with_what_happened(client: httpx.AsyncClient, run: str) -> None:
    plan = await said(client, f"runs/{run}/plan")
    attempts = next(op for op in plan["operations"] if op["step"] == "attempt")
    assert (attempts["done"], attempts["failed"], attempts["effect"]) == (2, 1, "revertible")


@pytest.mark.parametrize(
    "path",
    ["runs/none", "runs/none/plan", "runs/RUN/states/none", "runs/RUN/calls/1", "runs/RUN/moments/99999",
     f"runs/RUN/moments/{'9' * 5000}", "diff/RUN/none/RUN/none", "nothing"],
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


def request(gone: asyncio.Event) -> Request:
    begun = False

    async def receive() -> Message:
        nonlocal begun
        if not begun:
            begun = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    return Request({"type": "http", "method": "GET", "path": "/", "headers": []}, receive)


async def test_work_is_stopped_when_the_client_has_gone() -> None:
    gone, begun = asyncio.Event(), threading.Event()

    def work(stopped: Stopped) -> bool:
        assert not stopped()
        begun.set()
        while not stopped():
            pass
        return True

    answering = asyncio.create_task(in_thread(request(gone), work))
    await asyncio.to_thread(begun.wait)
    assert not answering.done()
    gone.set()
    assert await answering


async def test_work_is_stopped_at_the_deadline() -> None:
    now = [0.0]

    def work(stopped: Stopped) -> list[bool]:
        before = stopped()
        now[0] += DEADLINE_S + 1
        return [before, stopped()]

    assert await in_thread(request(asyncio.Event()), work, clock=lambda: now[0]) == [False, True]


async def test_work_is_stopped_when_the_server_stops() -> None:
    begun, ended = threading.Event(), threading.Event()

    def work(stopped: Stopped) -> None:
        begun.set()
        while not stopped():
            pass
        ended.set()

    answering = asyncio.create_task(in_thread(request(asyncio.Event()), work))
    await asyncio.to_thread(begun.wait)
    answering.cancel()
    assert await asyncio.to_thread(ended.wait, 60)


def test_files_that_were_not_compared_are_named(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path / "store")

    def state(**files: str) -> Snapshot:
        tree = tmp_path / "tree"
        tree.mkdir(exist_ok=True)
        for name, text in files.items():
            (tree / name).write_text(text)
        return store.import_tree(tree).snapshot

    before, after = state(a="1", b="1", c="1"), state(a="2", b="2", c="2")
    answers: Iterator[bool] = iter([False, True, True])
    rows = changes(StateDiff(store, before, after), lambda: next(answers)).files
    assert [row.patch is not None for row in rows] == [True, False, False]
    assert [row.why for row in rows] == [
        "",
        *2 * ["only the first 1 files are compared here; `ramify diff` shows all"],
    ]
