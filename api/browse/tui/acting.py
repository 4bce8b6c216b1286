"""What the browser does to runs, where it is asked to: fork one at a node, go on with one."""

from __future__ import annotations

import asyncio
import json
from abc import abstractmethod

from textual import work
from textual.app import App as Terminal

from ramify.browse.tui.dialogs import Answer, Output, Question
from ramify.browse.tui.nodes import Graph, Node
from ramify.browse.tui.resuming import Resuming, command
from ramify.browse.values import plain
from ramify.cli.app import App
from ramify.fork_engine.errors import ForkEngineError
from ramify.runtime.errors import RunError
from ramify.runtime.questions import open_questions
from ramify.runtime.records import CheckpointId, RunId, RunStatus

_RESUMED = {RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.FORKED, RunStatus.WAITING}


class Acting(Terminal[None]):
    """A browser's actions on runs. What they need of it is abstract here."""

    home: App
    resuming: Resuming | None = None

    @property
    @abstractmethod
    def shown(self) -> Graph | None: ...

    @property
    @abstractmethod
    def node(self) -> Node | None: ...

    @property
    @abstractmethod
    def status(self) -> str: ...

    @abstractmethod
    def open_run(self, run: RunId, at: CheckpointId | None = None) -> None: ...

    @work(exclusive=True, group="fork")
    async def action_fork(self) -> None:
        graph, node = self.shown, self.node
        if graph is None or node is None:
            return
        at = node.id if node.checkpoint is not None else next(iter(node.parents), None)
        if at is None:
            self.notify("This branch was forked from no checkpoint that is kept", severity="warning")
            return
        text = f"Fork run {graph.history.run.id} at {at[:10]}: a new run that stands there, to be gone on with by r."
        keys = [("y", "fork it"), ("!", "fork it for real: its irreversible steps are done")]
        said = await self.push_screen_wait(Question(text, keys))
        if said is None:
            return
        from ramify.session import Runtime

        try:
            async with Runtime(home=self.home.home, database=self.home.database) as runtime:
                made = await runtime.fork(at, for_real=said == "!")
        except (RunError, ForkEngineError) as error:
            self.notify(str(error), title="Not forked", severity="error", markup=False)
            return
        self.notify(f"Run {made.id} stands at {at[:10]}: r goes on with it, R shows the others", markup=False)
        self.open_run(made.id)

    @work(exclusive=True, group="ask")
    async def action_resume(self) -> None:
        if self.shown is None:
            return
        run = self.shown.history.run
        if self.resuming is not None and self.resuming.status is None:
            self.notify(f"A resume of {self.resuming.run_id} goes on: o shows it, x stops it", markup=False)
            return
        if run.status not in _RESUMED and self.status != "interrupted":
            self.notify(f"The run is {self.status}: f forks it, to go on from one of its checkpoints")
            return
        answer = None
        if run.status is RunStatus.WAITING:
            asked = await asyncio.to_thread(_question, self.home, self.shown)
            answer = await self.push_screen_wait(Answer(asked))
            if answer is None:
                return
        elif await self.push_screen_wait(Question(f"Go on with run {run.id}?", [("y", "resume it")])) is None:
            return
        self.resuming = Resuming(run.id, self._heard)
        self._resume(self.resuming, answer)
        self.action_output()

    @work(exclusive=True, group="resume")
    async def _resume(self, resuming: Resuming, answer: str | None) -> None:
        await resuming.work(command(self.home, resuming.run_id, answer))
        if not isinstance(self.screen, Output):
            ended = "is done" if resuming.status == 0 else f"ended with {resuming.status}: o shows what it said"
            self.notify(f"`ramify resume {resuming.run_id}` {ended}", markup=False)

    def _heard(self) -> None:
        if isinstance(self.screen, Output):
            self.screen.heard()

    def action_output(self) -> None:
        if self.resuming is None:
            self.notify("Nothing was resumed here yet: r does it")
        else:
            self.push_screen(Output(self.resuming))

    def action_stop_resume(self) -> None:
        if self.resuming is not None:
            self.resuming.stop()


def _question(home: App, graph: Graph) -> str:
    """What the run waits for: the question that the next answer goes to."""
    run = graph.history.run
    if run.thread_id is not None:
        from ramify.runtime.langgraph.asked import questions
        from ramify.runtime.langgraph.errors import ThreadElsewhere

        try:
            return "\n".join(map(_said, questions(home.database, run)))
        except ThreadElsewhere:
            return "(Its checkpoints, and the question with them, are kept elsewhere.)"
    asked = open_questions(graph.history.ops)
    return _said(plain(json.loads(asked[0].result_json or "null"))) if asked else ""


def _said(question: object) -> str:
    return question if isinstance(question, str) else json.dumps(question, ensure_ascii=False, indent=2)
