"""Reusable commands (`sandbox.run(…, reuse=True)`): a command need not run twice in worlds of equal content.

The world is sealed before and after the command, so that the command has a start state, a change of its own and a row
in the journal. On a hit the world is set to the state after the recorded change, unless running the command again is
surely cheaper (`CostModel.again_instead`). The seals are not flushed: if a machine crash loses them, the command is
run again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from ramify.compiler.plan import OpId, OpKind
from ramify.fork_engine.gc_pins import WorldPins
from ramify.fork_engine.types import Snapshot
from ramify.runtime.codec import codec
from ramify.runtime.estimates.cost_model import Choice, Cost, CostModel
from ramify.runtime.journal.journal import Journal
from ramify.runtime.records import OpRecord, RunRecord
from ramify.runtime.reuse.reuse import Reuse, ReuseQuery
from ramify.runtime.user_code.sandbox import Command
from ramify.sandboxes.contract import Limit, RunResult, World


class CommandRun(Protocol):
    """What reusable commands need from their run."""

    @property
    def record(self) -> RunRecord: ...
    @property
    def journal(self) -> Journal: ...
    @property
    def reuse(self) -> Reuse: ...
    @property
    def costs(self) -> CostModel: ...
    @property
    def clock(self) -> Callable[[], float]: ...


_SHOWN = 200


class ReusableCommands:
    """The reusable commands of one attempt at a step.

    blank: makes an empty row for the step's branch.
    place: the prefix of the journal keys.
    world_pins: keeps the world's last sealed state from garbage collection, even if the command never gets a row.
    """

    def __init__(
        self,
        run: CommandRun,
        place: str,
        op: OpId,
        blank: Callable[[OpKind, OpId, str], OpRecord],
        world_pins: WorldPins,
    ) -> None:
        self._run, self._place, self._op, self._blank, self._world_pins = run, place, op, blank, world_pins

    async def run(self, world: World, command: Command) -> RunResult:
        """Return the recorded result of an equal command and apply its change, or run the command and record it."""
        reuse = self._run.reuse
        digest = codec.digest([command.text, command.stdin, dict(command.env or {}), command.cwd])
        key = self._run.journal.key(self._place, "command", digest[:16])
        async with reuse.pins.held():
            query = ReuseQuery(codec.digest(["command", self._scope(), digest]), await self._sealed(world))
        return await self._answer(world, command, key, query)

    async def _answer(self, world: World, command: Command, key: str, query: ReuseQuery) -> RunResult:
        reuse = self._run.reuse
        if not query.state.content_key:
            return await command.run(world)  # a background process runs, so the world's state has no key
        async with reuse.alone(query):
            checked, again = reuse.to_be_checked(), None
            async with reuse.pins.held():
                source = await reuse.find(query)
                if source is not None and not checked:
                    again = self._run.costs.again_instead(source.step or "", layers=len(query.state.layers))
                if source is not None and not checked and again is None:
                    begun = time.perf_counter()
                    state = await reuse.applied(source, query.state)
                    if state is not None:
                        return await self._reuse_result(world, key, query, source, state, begun)
            return await self._perform(world, command, key, query, source if checked else None, again)

    async def _reuse_result(
        self, world: World, key: str, query: ReuseQuery, source: OpRecord, state: Snapshot, begun: float
    ) -> RunResult:
        costs, layers = self._run.costs, len(state.layers)
        choice = Choice(
            "take over",
            costs.predict(Cost.RESTORE, size=layers),
            costs.predict(Cost.RECOMPUTE, name=source.step or ""),
        )
        if state.id != query.state.id:
            await world.rollback(state)
        took = time.perf_counter() - begun
        costs.observe(Cost.RESTORE, took, size=layers)
        row = self._row(key, query, source.step or "", source.summary, source.result_json or "null")
        await self._run.journal.record(
            replace(
                row,
                snapshot_out=state.id,
                reused_from=f"{source.run_id}#{source.seq}",
                started_at=row.ended_at,
                attrs={**choice.attrs(took), "layers": str(layers)},
            )
        )
        result: RunResult = codec.decode(source.result_json or "null")
        return result

    async def _perform(
        self,
        world: World,
        command: Command,
        key: str,
        query: ReuseQuery,
        expected: OpRecord | None,
        choice: Choice | None,
    ) -> RunResult:
        begun, started = time.perf_counter(), self._run.clock()
        result = await command.run(world)
        # a command that was stopped by a limit may get further another time
        ended = not (result.timed_out or result.truncated or result.limit is not Limit.NONE)
        name = result.command[:_SHOWN]
        said = result.stdout.strip().splitlines()[-1:] or [f"exit {result.exit_code}"]
        row = self._row(key, query, name, said[0][:80], codec.encode(replace(result, duration_s=0.0)))
        async with self._run.reuse.pins.held():
            after = await self._sealed(world)
            took = time.perf_counter() - begun  # with this seal, which taking a result over does not need
            if expected is not None and ended:
                was = await self._run.reuse.applied(expected, query.state)
                self._run.reuse.compare(expected, f"command {name!r}", row.result_digest, was, after)
            self._run.costs.observe(Cost.RECOMPUTE, took, name=name)
            # no content key: the command left an undeclared background process
            lineage = query.lineage_key if ended and after.content_key else None
            attrs = {} if choice is None else choice.attrs(took)
            await self._run.journal.record(
                replace(row, snapshot_out=after.id, started_at=started, lineage_key=lineage, attrs=attrs)
            )
        return result

    async def _sealed(self, world: World) -> Snapshot:
        with self._world_pins.following(lambda: world.snapshot.id):
            return await world.seal(flush=False)

    def _row(self, key: str, query: ReuseQuery, name: str, said: str, result_json: str) -> OpRecord:
        return replace(
            self._blank(OpKind.COMMAND, self._op, key),
            step=name,
            result_json=result_json,
            result_digest=codec.digest_text(result_json),
            snapshot_in=query.state.id,
            lineage_key=query.lineage_key,
            summary=said,
        )

    def _scope(self) -> str:
        """Return the fingerprint of what a command sees besides its world; if there is none, reuse stays in the
        run."""
        return self._run.reuse.environment or f"run {self._run.record.id}"
