"""The page in headless Chromium: opened, clicked through, watched while a run goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import browsed_app
import pytest
import pytest_asyncio
from story import call, fork_result, op, seal, story

from ramify import Runtime, paths
from ramify.browse.web.server import serving
from ramify.compiler.plan import OpKind
from ramify.fork_engine.store import SnapshotStore
from ramify.runtime.codec import codec
from ramify.runtime.records import ROOT, RunRecord, RunStatus
from ramify.runtime.store import RunStore
from ramify.serving.client import LLMClient
from ramify.serving.testing import ScriptedModel
from ramify.serving.types import ChatRequest, Ledger, user

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

# --no-sandbox: root has no other, and the page is ours. The rest keeps Chromium off the network.
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
MANY = 10_000


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def browser(chromium: str) -> AsyncIterator[Any]:
    from playwright.async_api import async_playwright

    async with async_playwright() as driver:
        opened = await driver.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield opened
        await opened.close()


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser: Any) -> AsyncIterator[Any]:
    """A tab in which every script error and every request elsewhere is a failure."""
    tab = await browser.new_page(viewport={"width": 1280, "height": 760})
    wrong: list[str] = []
    asked: set[str] = set()
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
    tab.on("request", lambda request: asked.add("/".join(request.url.split("/")[:4])))
    tab.set_default_timeout(40_000)
    yield tab
    await tab.close()
    assert wrong == []
    assert len(asked) == 1, asked  # scheme, host, port and token: one origin, and never without the token


def status(run: RunRecord) -> str:
    return run.status.value


@pytest_asyncio.fixture(loop_scope="module")
async def address(looked_at: tuple[Path, str]) -> AsyncIterator[str]:
    home, _ = looked_at
    async with (
        RunStore(paths.database(home), clock=time.time) as store,
        serving(store, SnapshotStore(paths.snapshots(home)), status) as url,
    ):
        yield url


async def test_from_the_runs_through_the_branches_to_a_diff(
    address: str, page: Any, looked_at: tuple[Path, str]
) -> None:
    run = looked_at[1]
    await page.goto(address)
    await page.get_by_role("link", name=run).click()
    graph = page.get_by_role("listbox", name="Rows of the branch graph")
    await graph.get_by_role("option").filter(has_text="model call").click()
    await page.get_by_text("Which way?").wait_for()
    await graph.get_by_role("option").filter(has_text="write").first.click()
    await page.get_by_text("$ cat > notes.txt; echo wrote notes.txt").wait_for()
    await page.get_by_text("wrote notes.txt", exact=True).wait_for()
    await page.get_by_role("heading", name="State", exact=True).wait_for()
    known = await page.locator(".box").filter(has=page.get_by_text("write", exact=True)).inner_text()
    assert '"command": "cat > notes.txt; echo wrote notes.txt"' in known
    assert '"$"' not in known  # the codec's own wrapping is not the user's
    await graph.get_by_role("option").filter(has_text="failed").click()
    await page.get_by_text("the second attempt is not to be").first.wait_for()
    await graph.get_by_role("option").filter(has_text="workspace").click()
    await page.get_by_role("button", name="Compare with another state…").click()
    await page.get_by_role("button", name="Marked: now choose another state").wait_for()
    await graph.get_by_role("option").filter(has_text="merged root/").click()
    await page.get_by_role("heading", name="merge", exact=True).wait_for()
    await page.get_by_role("button", name="Compare with the marked state").click()
    await page.get_by_role("heading", name="What differs").wait_for()
    await page.get_by_text("+<b>first</b>").wait_for()  # as text: what an agent wrote is never markup
    assert await page.locator("b").count() == 0
    assert f"#/{run}/diff/" in page.url
    await page.go_back()
    await graph.wait_for()


async def test_the_timeline_the_plan_and_a_search(address: str, page: Any, looked_at: tuple[Path, str]) -> None:
    await page.goto(f"{address}#/{looked_at[1]}/time")
    bars = page.get_by_role("listbox", name="Steps and model calls by their start").get_by_role("option")
    await bars.last.wait_for()
    names = [await bar.get_attribute("aria-label") for bar in await bars.all()]
    said = [name.partition(",")[0] for name in names if not name.startswith("prefork")]
    assert sorted(said) == sorted([*["write"] * 2, "model call", *["attempt"] * 3, "merge", "wait"])
    await page.get_by_role("button", name="Deadline in sight").click()
    await page.locator(".wall").wait_for(state="attached")
    await page.get_by_role("link", name="Plan").click()
    await page.locator("#plan tbody tr").filter(has_text="attempt").first.wait_for()
    await page.keyboard.press("/")
    await page.keyboard.type("second attempt")
    await page.keyboard.press("Enter")
    await page.locator("#hits mark").first.wait_for()
    await page.locator("#hits a").first.click()
    await page.get_by_role("option", selected=True).filter(has_text="attempt").wait_for()


async def test_keys_walk_the_rows(address: str, page: Any, looked_at: tuple[Path, str]) -> None:
    await page.goto(f"{address}#/{looked_at[1]}/graph")
    await page.get_by_role("option").first.wait_for()
    for key, at in (("ArrowDown", 0), ("ArrowDown", 1), ("End", -1), ("Home", 0)):
        await page.keyboard.press(key)
        chosen = page.get_by_role("option", selected=True)
        rows = int(await chosen.get_attribute("aria-setsize"))
        assert int(await chosen.get_attribute("aria-posinset")) == (at + rows if at < 0 else at) + 1


async def test_without_the_token_there_is_no_page(browser: Any, address: str) -> None:
    tab = await browser.new_page()
    for wrong in (address[:-2] + "/", address.rsplit("/", 2)[0] + "/"):
        answer = await tab.goto(wrong)
        assert answer.status == 404
        assert "ramify browse --web" in await tab.inner_text("body")
    await tab.close()


async def test_another_sites_page_reads_nothing(browser: Any, address: str) -> None:
    """With the token, even: a page of another origin, as on another port, gets no answer that it could read."""

    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\n\r\n<p>elsewhere</p>")
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(other, "127.0.0.1", 0)
    async with server:
        tab = await browser.new_page()
        await tab.goto(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        said = "url => fetch(url, {mode: MODE}).then(r => r.text(), error => 'refused: ' + error.name)"
        for mode, read in (("'cors'", "refused: TypeError"), ("'no-cors'", "refused: TypeError")):
            assert await tab.evaluate(said.replace("MODE", mode), f"{address}api/runs") == read
        await tab.close()


async def merged(store: RunStore, running: asyncio.Task[int]) -> str:
    """The id of the one run, once it has merged and stands still."""
    while not running.done():
        for run in await store.runs():
            if any(row.kind is OpKind.MERGE for row in await store.ops(run.id)):
                return run.id
        await asyncio.sleep(0.05)
    raise AssertionError(f"the run ended first: {running.result()}")


async def test_a_run_that_goes_on_grows_on_the_page(page: Any, tmp_path: Path) -> None:
    home = tmp_path / "home"
    browsed_app.held = asyncio.Event()
    try:
        async with (
            LLMClient("http://model.test/v1", transport=ScriptedModel(lambda request: "B")) as client,
            Runtime(home=home, sandbox="copy", llm=client) as runtime,
            RunStore(paths.database(home), clock=time.time) as store,
            serving(store, SnapshotStore(paths.snapshots(home)), status) as url,
        ):
            running = asyncio.create_task(runtime.run(browsed_app.browsed))
            run = await merged(store, running)
            await page.goto(f"{url}#/{run}/graph")
            await page.locator("#status").get_by_text("running").wait_for()
            await page.get_by_role("option").filter(has_text="merge").first.wait_for()
            assert await page.get_by_role("option").filter(has_text="end.txt").count() == 0
            browsed_app.held.set()
            await page.get_by_role("option").filter(has_text="end.txt").wait_for()
            await page.locator("#status").get_by_text("done").wait_for()
            await running
            await page.goto("about:blank")  # before its server ends
    finally:
        browsed_app.held = None


async def test_ten_thousand_states_scroll(page: Any, tmp_path: Path) -> None:
    """Made-up rows: 200 forks of 50 branches, all released. Only what is in sight is in the document."""
    told = story()
    ops, states = [], [told.checkpoints[0]]
    for fork in range(MANY // 50):
        seq = 1 + fork * 102
        ops.append(op(seq, OpKind.FORK, result_json=fork_result(f"fork.{fork}.0", 50), summary="50 branches"))
        for child in range(50):
            branch = f"{ROOT}/fork.{fork}.0.{child}"
            ops.append(op(seq + 1 + 2 * child, OpKind.RUN, branch, step="try_edit", summary=f"try {fork}.{child}"))
            states.append(seal(seq + 1 + 2 * child, branch, "0dd5" * 16, (0,), "try_edit"))
        ops.append(op(seq + 101, OpKind.RELEASE, result_json=fork_result(f"fork.{fork}.0", 50)))
    run = replace(told.run, status=RunStatus.DONE)
    states = [replace(one, id=f"{at:024x}") for at, one in enumerate(states)]
    async with RunStore(tmp_path / "runs.db", clock=time.time) as store:
        await store.create_run(run)
        await store.commit(run.id, ops=ops, checkpoints=states)
        async with serving(store, SnapshotStore(tmp_path / "store"), status) as url:
            await page.goto(f"{url}#/{run.id}/graph")
            await page.get_by_text("10,001 states on 10,001 branches").wait_for()
            assert await page.get_by_role("option").filter(has_text="50 released branches").count() > 5
            await page.get_by_role("button", name="Fold released").click()
            graph = page.locator("#graph")
            await graph.evaluate("box => { box.scrollTop = box.scrollHeight; }")
            await page.get_by_text("try 199.49").wait_for()
            await graph.evaluate("box => { box.scrollTop = box.scrollHeight / 2; }")
            await page.get_by_text("try 99.49").wait_for()
            assert await page.get_by_role("option").count() < 80
            await page.goto("about:blank")  # before its server ends


async def test_a_stream_says_how_it_was_to_read(page: Any, tmp_path: Path) -> None:
    told, asked = story(), codec.encode(ChatRequest(user("Tell me.")))
    stream = call(1, Ledger(0.1, 0.2, 2.0, qoe=0.8125), stage=0, width=1, request_json=asked)
    async with RunStore(tmp_path / "runs.db", clock=time.time) as store:
        await store.create_run(told.run)
        await store.commit(told.run.id, llm=[stream], checkpoints=told.checkpoints[:1])
        async with serving(store, SnapshotStore(tmp_path / "store"), status) as url:
            await page.goto(f"{url}#/{told.run.id}/graph")
            await page.get_by_role("option").filter(has_text="model call").click()
            await page.get_by_text("0.81 of 1 while it was read").wait_for()
            await page.goto("about:blank")  # before its server ends


async def test_characters_that_nobody_sees_are_written_out(address: str, page: Any) -> None:
    await page.goto(address)
    await page.get_by_role("heading", name="Runs").first.wait_for()
    shown = await page.evaluate(
        """async () => {
            const {h, visible} = await import('./dom.js');
            const made = h('p', {title: 'a\\u202eb', class: 'x'},
                'one\\u202etwo\\u200b\\u001b[31m\\u{e0041}', h('b', {}, 'é\\u200d\\t\\r\\n'));
            return [made.title, made.className, made.textContent, visible('')];
        }"""
    )
    assert shown == [r"a\u202eb", "x", "one\\u202etwo\\u200b\\x1b[31m\\U000e0041é\u200d\t\n", ""]
