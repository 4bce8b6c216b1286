"""What the browser does to runs on request: fork one at a node, resume one."""

from __future__ import annotations

import asyncio
import json
from abc import abstractmethod
from collections.abc import Sequence

from textual import work
from textual.app import App as Terminal

from ramify.browse.tui.branch_graph import Graph, Node
from ramify.browse.tui.dialogs import AnswerDialog, ConfirmDialog, OutputDialog, ResumeProcess, Waiting, command
from ramify.fork_engine.errors import ForkEngineError
from ramify.inspect.home import Home
from ramify.inspect.values import plain
from ramify.runtime.errors import RunError
from ramify.runtime.journal.inbox import Inbox, OpenQuestion
from ramify.runtime.records import CheckpointId, RunId, RunStatus
from ramify.runtime.store.reader import at_once, reading

_RESUMED = {RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.FORKED, RunStatus.WAITING}


class RunActions(Terminal[None]):
    """A browser's actions on runs. What they need of the browser is abstract here."""

    home: Home
    resuming: ResumeProcess | None = None

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
            self.notify("The checkpoint that this branch was forked from was deleted", severity="warning")
            return
        text = f"Fork run {graph.history.run.id} at {at[:10]}: a new run that starts there; r resumes it."
        keys = [("y", "fork it"), ("!", "fork it for real: its irreversible steps have their effects")]
        said = await self.push_screen_wait(ConfirmDialog(text, keys))
        if said is None:
            return
        from ramify.session import Runtime

        try:
            async with Runtime(home=self.home.folder, database=self.home.database) as runtime:
                made = await runtime.fork(at, for_real=said == "!")
        except (RunError, ForkEngineError) as error:
            self.notify(str(error), title="Not forked", severity="error", markup=False)
            return
        self.notify(f"Run {made.id} starts at {at[:10]}: r resumes it, R lists the runs", markup=False)
        self.open_run(made.id)

    @work(exclusive=True, group="ask")
    async def action_resume(self) -> None:
        if self.shown is None:
            return
        run = self.shown.history.run
        if self.resuming is not None and self.resuming.status is None:
            self.notify(f"A resume of {self.resuming.run_id} is running: o shows it, x stops it", markup=False)
            return
        if run.status not in _RESUMED and self.status != "interrupted":
            self.notify(f"The run is {self.status}: f forks it at one of its checkpoints")
            return
        answers: list[str] = []
        if run.status is RunStatus.WAITING:
            for asked in await asyncio.to_thread(_asked, self.home, self.shown):
                said = await self.push_screen_wait(AnswerDialog(asked))
                if said is None:
                    return
                answers.append(said if asked.id is None else f"{asked.id}={said}")
        elif await self.push_screen_wait(ConfirmDialog(f"Resume run {run.id}?", [("y", "resume it")])) is None:
            return
        self.resuming = ResumeProcess(run.id, self._heard)
        self._resume(self.resuming, answers)
        self.action_output()

    @work(exclusive=True, group="resume")
    async def _resume(self, resuming: ResumeProcess, answers: Sequence[str]) -> None:
        await resuming.work(command(self.home, resuming.run_id, answers))
        if not isinstance(self.screen, OutputDialog):
            ended = "is done" if resuming.status == 0 else f"ended with {resuming.status}: o shows its output"
            self.notify(f"`ramify resume {resuming.run_id}` {ended}", markup=False)

    def _heard(self) -> None:
        if isinstance(self.screen, OutputDialog):
            self.screen.heard()

    def action_output(self) -> None:
        if self.resuming is None:
            self.notify("Nothing was resumed here yet: r resumes the run")
        else:
            self.push_screen(OutputDialog(self.resuming))

    def action_stop_resume(self) -> None:
        if self.resuming is not None:
            self.resuming.stop()


def _asked(home: Home, graph: Graph) -> list[Waiting]:
    """The open questions of the run.

    For a LangGraph thread at a breakpoint, or one stored elsewhere, a single answer without a known question.
    """
    run = graph.history.run
    with reading(home.database) as store:
        answers = at_once(store.answers(run.id))
        rows = at_once(store.interrupts(run.id))
    if run.thread_id is None:
        return [_waiting(one) for one in Inbox.of_rows(run.id, rows, answers).open]
    from ramify.runtime.langgraph.errors import ThreadElsewhere
    from ramify.runtime.langgraph.thread.stored_thread import open_interrupts

    try:
        asked = open_interrupts(home.database, run)
    except ThreadElsewhere:
        return [Waiting(None, "(Its checkpoints are stored elsewhere, and the question with them.)")]
    return (
        [_waiting(one) for one in Inbox.of_interrupts(run.id, asked, answers).open] if asked else [Waiting(None, "")]
    )


def _waiting(asked: OpenQuestion) -> Waiting:
    return Waiting(asked.id, _said(plain(json.loads(asked.question_json))))


def _said(question: object) -> str:
    return question if isinstance(question, str) else json.dumps(question, ensure_ascii=False, indent=2)
