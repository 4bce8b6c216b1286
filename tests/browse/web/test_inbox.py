"""The inbox of the page: what waits in all runs, and an answer that only the page itself can store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asking_app
import httpx
import pytest
import pytest_asyncio

from ramify import Runtime, paths
from ramify.browse.web.app import LONGEST_ANSWER, create_app
from ramify.browse.web.guard import TOKEN_HEADER, Guard, hosts
from ramify.browse.web.run_cache import RunCache
from ramify.browse.web.server import serving
from ramify.fork_engine.store import SnapshotStore
from ramify.runtime.errors import RunWaiting
from ramify.runtime.store import RunStore
from ramify.runtime.store.reader import reading

TOKEN = "t0ken-of-a-test"
SENT = {"host": "127.0.0.1:8123", "content-type": "application/json", TOKEN_HEADER: TOKEN}
ANSWERS = f"/{TOKEN}/api/answers"


@pytest.fixture
def asking(tmp_path: Path) -> tuple[Path, str]:
    """A home in which a run asks two questions; its id."""

    async def run() -> str:
        asking_app.DONE.clear()
        async with Runtime(home=tmp_path / "home", sandbox="copy") as runtime:
            with pytest.raises(RunWaiting):
                await runtime.run(asking_app.drops_databases, ["staging", "production"])
            return str(runtime.last_run_id)

    return tmp_path / "home", asyncio.run(run())


@pytest.fixture
async def client(asking: tuple[Path, str]) -> AsyncIterator[httpx.AsyncClient]:
    """What a browser sends to the page, through its guard."""
    home, _ = asking
    async with RunStore(paths.database(home), clock=time.time) as store:
        reader = RunCache(store, SnapshotStore(paths.snapshots(home)), lambda run: run.status.value)
        app = Guard(create_app(reader), TOKEN, hosts(8123))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8123") as opened:
            yield opened


async def inbox(client: httpx.AsyncClient) -> dict[str, Any]:
    told = (await client.get(f"/{TOKEN}/api/inbox")).json()
    return {item["question"].split()[2]: item for item in told}


async def test_an_answer_is_stored_for_the_question_that_it_names(
    client: httpx.AsyncClient, asking: tuple[Path, str]
) -> None:
    home, run = asking
    items = await inbox(client)
    assert {name: (item["kind"], item["run"], item["workflow"]) for name, item in items.items()} == dict.fromkeys(
        ["staging", "production"], ("question", run, "drops_databases")
    )
    id = items["production"]["id"]
    stored = await client.post(ANSWERS, json={"id": id, "answer": {"no": [1]}}, headers=SENT)
    assert (stored.status_code, stored.json()) == (200, {"id": id, "run": run, "left": 1})
    assert list(await inbox(client)) == ["staging"]
    second = await client.post(ANSWERS, json={"id": id, "answer": "yes"}, headers=SENT)
    assert second.status_code == 409 and "answered already" in second.json()["error"]
    assert "browse --web" in second.json()["error"]
    async with Runtime(home=home, sandbox="copy") as runtime:
        assert await runtime.resume(run, answer="no") == ["no", {"no": [1]}]


@pytest.mark.parametrize(
    ("text", "answer"),
    [("12345678901234567890", 12345678901234567890), ("yes, do", "yes, do"), ('"1"', "1"), ("", "")],
)
async def test_text_answer_is_parsed_as_on_the_command_line(
    text: str, answer: object, client: httpx.AsyncClient, asking: tuple[Path, str]
) -> None:
    id = (await inbox(client))["staging"]["id"]
    assert (await client.post(ANSWERS, json={"id": id, "text": text}, headers=SENT)).status_code == 200
    async with Runtime(home=asking[0], sandbox="copy") as runtime:
        assert await runtime.resume(asking[1], answer=None) == [answer, None]


ATTACKS: dict[str, dict[str, str | None]] = {
    "a form": {"content-type": "application/x-www-form-urlencoded"},
    "a form that says it is text": {"content-type": "text/plain"},
    "no type": {"content-type": None},
    "no token in a header": {TOKEN_HEADER: None},
    "another token": {TOKEN_HEADER: TOKEN[:-1]},
    "an empty token": {TOKEN_HEADER: ""},
    "a page elsewhere": {"origin": "http://evil.test"},
    "a page of another port": {"origin": "http://127.0.0.1:9000"},
    "a page without an origin": {"origin": "null"},
    "what a browser says of a page elsewhere": {"sec-fetch-site": "cross-site"},
    "another program's page here": {"sec-fetch-site": "same-site"},
    "a name that leads here": {"host": "evil.test:8123"},
}


@pytest.mark.parametrize("attack", ATTACKS)
async def test_answers_need_the_token_and_our_origin(attack: str, client: httpx.AsyncClient) -> None:
    id = (await inbox(client))["staging"]["id"]
    merged = {**SENT, **ATTACKS[attack]}
    headers = {name: value for name, value in merged.items() if value is not None}
    body = f'{{"id": "{id}", "answer": "yes, staging"}}'.encode()
    refused = await client.post(ANSWERS, content=body, headers=headers)
    assert refused.status_code in (403, 415, 421), refused.text
    assert len(await inbox(client)) == 2
    ours = {**SENT, "origin": "http://127.0.0.1:8123", "sec-fetch-site": "same-origin"}
    assert (await client.post(ANSWERS, content=body, headers=ours)).status_code == 200


async def test_the_address_without_the_token_takes_no_answer(client: httpx.AsyncClient) -> None:
    assert (await client.post("/api/answers", json={}, headers=SENT)).status_code == 404
    assert (await client.post(f"/{TOKEN}x/api/answers", json={}, headers=SENT)).status_code == 404
    for path in ("api/runs", "api/inbox", "", "api/answers/", "api/answers/x"):
        assert (await client.post(f"/{TOKEN}/{path}", json={}, headers=SENT)).status_code == 405, path
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
        assert (await client.request(method, ANSWERS, headers=SENT)).status_code == 405


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("", 400), ("{", 400), ("[]", 400), ('{"id": 1, "answer": 1}', 400), ('{"id": "12345678"}', 400),
        ('{"id": "12345678", "text": 1}', 400), ('{"id": "12345678", "text": "1", "answer": 1}', 400),
        ('{"id": "12345678", "answer": 1}', 404), ('{"id": "", "answer": 1}', 404), ("[" * 100_000, 400),
        (f'{{"id": "12345678", "answer": "{"x" * LONGEST_ANSWER}"}}', 413),
    ],
)  # fmt: skip
async def test_malformed_answers_are_refused(body: str, status: int, client: httpx.AsyncClient) -> None:
    refused = await client.post(ANSWERS, content=body.encode(), headers=SENT)
    assert (refused.status_code, "error" in refused.json()) == (status, True)
    assert len(await inbox(client)) == 2


async def test_read_only_home_refuses_answers(asking: tuple[Path, str]) -> None:
    home, _ = asking
    with reading(paths.database(home)) as store:
        reader = RunCache(store, SnapshotStore(paths.snapshots(home)), lambda run: run.status.value)
        (first, _) = await reader.inbox()
        transport = httpx.ASGITransport(create_app(reader))
        async with httpx.AsyncClient(transport=transport, base_url="http://page") as client:
            refused = await client.post("/api/answers", json={"id": first.id, "answer": 1})
    assert refused.status_code == 404 and "home is read-only here" in refused.json()["error"]


@pytest_asyncio.fixture
async def page(chromium: str) -> AsyncIterator[Any]:
    from playwright.async_api import async_playwright

    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        tab = await browser.new_page()
        wrong: list[str] = []
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        tab.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
        tab.set_default_timeout(40_000)
        yield tab
        await browser.close()
        assert wrong == []


@pytest.mark.browser
async def test_a_person_answers_on_the_page(asking: tuple[Path, str], page: Any) -> None:
    home, run = asking
    async with (
        RunStore(paths.database(home), clock=time.time) as store,
        serving(store, SnapshotStore(paths.snapshots(home)), lambda run: run.status.value) as address,
    ):
        await page.goto(address)
        await page.get_by_role("link", name="Inbox").click()
        row = page.locator("#inbox tbody tr").filter(has_text="drop the production database?")
        await row.get_by_role("textbox").fill("no")
        await row.get_by_role("button", name="Answer").click()
        await row.wait_for(state="detached")
        left = page.locator("#inbox tbody tr")
        assert "drop the staging database?" in await left.inner_text()
        await left.get_by_role("textbox").fill('{"no": "JSON"}')
        await page.keyboard.press("Enter")
        await page.get_by_text("Nothing waits for a person.").wait_for()
        await page.goto("about:blank")  # before its server ends
    async with Runtime(home=home, sandbox="copy") as runtime:
        assert await runtime.resume(run) == [{"no": "JSON"}, "no"]
