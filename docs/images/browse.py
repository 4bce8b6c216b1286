"""Makes docs/images/browse-*.png and browse-bars.svg: `python docs/images/browse.py`, from the repository root.

The run is a real one: the repair example over three of its programs, with a scripted model behind a real gateway of
two slots, so that calls queue as they do in front of a busy engine, and the pictures can be made on any machine that
has Chromium ($CHROMIUM names another) and ramify[web-test].
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.async_api import Page, async_playwright
from terminal import draw

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))  # the examples are no package that is installed

from examples.repair.workflow import repair  # noqa: E402
from examples.tree_of_thoughts.workflow import solve  # noqa: E402
from ramify import Runtime, paths  # noqa: E402
from ramify.browse.web.server import serving  # noqa: E402
from ramify.compiler.plan import OpKind  # noqa: E402
from ramify.fork_engine.store import SnapshotStore  # noqa: E402
from ramify.runtime.records import RunId  # noqa: E402
from ramify.runtime.store import RunStore  # noqa: E402
from ramify.serving.gateway.server import LocalGateway  # noqa: E402
from ramify.serving.testing import ScriptedModel, ScriptedServer  # noqa: E402
from ramify.serving.types import ChatRequest  # noqa: E402

PROGRAMS = HERE.parents[1] / "examples" / "repair" / "programs"
NAMES = ["binary_search", "lru_cache", "order_pricing"]
SIZE = {"width": 1360, "height": 820}


def script(request: ChatRequest) -> Mapping[str, float]:
    """Likes the options as chance has it, the same ones each time."""
    said = request.messages[-1].content
    chance = random.Random(said)
    return {line[0]: chance.random() for line in said.splitlines() if line[1:3] == ") "} or {"A": 1.0}


async def make_runs(home: Path) -> tuple[RunId, RunId]:
    """The repair's and the search's."""
    model = ScriptedModel(script, slots=2, delay_s=0.25, token_s=0.1)
    async with (
        ScriptedServer(model) as server,
        LocalGateway(home=home, upstream=server.base_url, slots=2) as gateway,
        Runtime(home=home, sandbox="copy", base_url=gateway.base_url) as runtime,
    ):
        await runtime.run(solve, [1, 2, 3, 4], 5)  # so that the next one is expected to take as long
        await runtime.run(solve, [4, 7, 8, 8], 5)
        searched = runtime.last_run_id
        await runtime.run(repair, NAMES, 40, workspace=PROGRAMS, deadline="90s")
        repaired = runtime.last_run_id
    assert searched is not None and repaired is not None
    return RunId(repaired), RunId(searched)


async def shoot(page: Page, address: str, name: str) -> None:
    await page.goto("about:blank")
    await page.goto(address)
    await page.wait_for_load_state("networkidle", timeout=5_000)
    if (whole := page.get_by_role("button", name="Deadline in sight")) and await whole.count():
        await whole.click()
    await page.mouse.click(700, 20)  # nothing has the focus's frame around it
    await page.screenshot(path=HERE / f"browse-{name}.png")


async def main() -> None:
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    with TemporaryDirectory() as folder:
        home = Path(os.environ.get("BROWSE_HOME") or folder)
        repaired, searched = await make_runs(home)
        async with (
            RunStore(paths.database(home), clock=time.time) as store,
            serving(store, SnapshotStore(paths.snapshots(home)), lambda run: run.status.value) as url,
            async_playwright() as driver,
        ):
            ops, llm, states = [await read(repaired) for read in (store.ops, store.llm, store.checkpoints)]
            merge = next(row.seq for row in ops if row.kind is OpKind.MERGE)
            slow = max(llm[:5], key=lambda row: row.ended_at - row.started_at).seq
            found = max(row.seq for row in await store.ops(searched) if row.kind is OpKind.MERGE)
            views = {
                "branches": f"{searched}/graph/{found}",
                "state": f"{repaired}/graph/{merge}",
                "timeline": f"{repaired}/time/{slow}",
                "plan": f"{searched}/plan",
                "diff": f"{repaired}/diff/{states[0].id}/{repaired}/{states[-1].id}",
            }
            browser = await driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
            light = await browser.new_page(viewport=SIZE, color_scheme="light")
            dark = await browser.new_page(viewport=SIZE, color_scheme="dark")
            for name, fragment in views.items():
                await shoot(light, f"{url}#/{fragment}", name)
            await shoot(dark, f"{url}#/{views['state']}", "dark")
            await browser.close()
        await draw(home, searched, "browse-bars", "3a")


if __name__ == "__main__":
    asyncio.run(main())
