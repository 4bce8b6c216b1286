"""`KeptContexts`: KV blocks of programs that wait for a tool, held back from vLLM's eviction.

vLLM puts the blocks of an ended request at the end of its free queue. They stay in the prefix cache until other
requests have taken all blocks before them. Here each ended call of a program that goes on keeps a reference to its
blocks, so that they are no part of the free queue. The branches of a program are chains of calls of their own. Before
each step a `Retention` says which contexts to give up for the calls that run or wait. When a chain's next call starts
it has references of its own, and the held ones are dropped. They are also dropped when the gateway says that the
branch, or the program, makes no more calls.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from ramify.serving.policy.kv_retention import IdleContext, Retention, Room
from ramify.serving.policy.types import CompoundView, StepModel
from ramify.serving.vllm_plugin.returning_contexts import Flight, ReturningContexts
from ramify.serving.vllm_plugin.version_adapters import Adapter, RequestLike

_HORIZON_S = 30.0  # over which the idle share is averaged
_SWEEP_S = 1.0  # between looks for contexts that nobody comes back to
_LIES = 0.3  # if so many that said they were over came back, nobody is believed
_PROGRAMS = 10_000  # chains that are away, whose return is awaited
_HELD = 1000  # contexts at most, the latest ones: a step that lacks memory goes through all
_PATIENCE_S = 60.0  # so long the first waiting call may be passed by calls whose contexts are held


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """How fast the engine is, and what it does."""

    step: StepModel
    context: int  # tokens in KV of the running calls
    prefill: float  # prompt tokens that a step computes, in the mean
    takes_calls: bool = True  # False: vLLM is paused, before new weights or a sleep
    copy_ms: float | None = None  # to load a token from vLLM's CPU tier


@dataclass(slots=True)
class _Kept:
    """What is held of one program."""

    context: IdleContext
    stage: int
    blocks: list[Any] = field(default_factory=list)  # as the adapter gave them


class KeptContexts:
    """The contexts held in one engine. For one thread, as vLLM's scheduler."""

    def __init__(
        self,
        retention: Retention,
        adapter: Adapter,
        chain_of: Callable[[str], str | None],
        due_of: Callable[[str], float | None] = lambda _: None,
        returning: ReturningContexts | None = None,
    ) -> None:
        """`chain_of`: the chain of calls of a request that is in the engine, by the request's id. `due_of`: when the
        request must have begun or ended, if it has such a limit. `returning`: brings contexts back from a CPU tier.
        """
        self._retention, self._chain_of, self._due_of = retention, chain_of, due_of
        self._adapter, self._returning = adapter, returning
        self._kept: OrderedDict[str, _Kept] = OrderedDict()  # by chain of calls
        self._left: OrderedDict[str, tuple[float, int]] = OrderedDict()  # by chain: when a call ended, of which stage
        self._swept_at = 0.0
        self._over: OrderedDict[str, None] = OrderedDict()  # chains that are not continued, by their clients
        self._told_over = self._lied = 0  # how often that was said, and how often one came back nevertheless
        self._open: dict[str, int] = {}  # calls in the engine, by chain
        self._crowded: set[str] = set()  # chains with more calls at once than a stage has: they are none
        self._released: set[str] = set()  # chains that were released while calls of them were here
        self._branches: dict[str, set[str]] = {}  # chains of each program that are away, held, or have calls here
        self._head: tuple[str, int] | None = None  # the first waiting request, and what of its prompt is not held
        self._short: tuple[str, float] | None = None  # the first waiting request, and since when it lacks memory
        self._idle_share = 0.0
        self._looked_at: float | None = None
        self._ran = False
        self.given_up = 0  # contexts
        self.held = 0  # contexts ever held

    def __len__(self) -> int:
        return len(self._kept)

    def arrived(self, program: CompoundView, now: float) -> None:
        """A call of the program has arrived."""
        chain = program.chain
        self._branches.setdefault(program.id, set()).add(chain)
        self._released.discard(chain)  # it goes on after all
        self._open[chain] = self._open.get(chain, 0) + 1
        if self._open[chain] > program.width:
            self._crowded.add(chain)
        if chain in self._over:  # its client said that it would not come back
            del self._over[chain]
            self._lied += 1
        left = self._left.get(chain)
        if left is not None and (program.stage > left[1] or program.width == 1):  # a client may name no stages
            del self._left[chain]
            self._retention.returned(chain, now - left[0])
        if self._returning is not None:
            self._returning.forget(chain)
        kept = self._kept.get(chain)
        if kept is not None and not kept.context.waits:
            kept.context = replace(kept.context, waits=True)

    def gone(self, program: CompoundView) -> None:
        """A call of the program has left the engine, for any reason. Call it after `ended`."""
        chain = program.chain
        self._open[chain] -= 1
        if not self._open[chain]:
            del self._open[chain]
            self._crowded.discard(chain)
            self._released.discard(chain)
            kept = self._kept.get(chain)
            if kept is not None and kept.context.waits:  # its next call left before it started: it is away again
                kept.context = replace(kept.context, waits=False)
        self._forget(chain)

    def ended(self, scheduler: Any, request: RequestLike, program: CompoundView, now: float) -> None:
        """A call of the program has its whole answer. Its blocks are held unless the program ends with it. Call it
        before vLLM frees them.
        """
        if program.last:
            self.release(scheduler, program.id)
            return
        chain = program.chain
        ttl_s = program.ttl_s
        if ttl_s == 0:
            self._told_over += 1
            self._over[chain] = None
            if len(self._over) > _PROGRAMS:
                self._over.popitem(last=False)
        if self._lied > _LIES * (self._told_over + 1):
            ttl_s = None
        if ttl_s == 0 or chain in self._crowded or chain in self._released:
            self._release_chain(scheduler, chain)
            return
        self._retention.left(chain, now)
        self._left[chain] = (now, program.stage)
        self._left.move_to_end(chain)
        if len(self._left) > _PROGRAMS:
            self._forget(self._left.popitem(last=False)[0])
        kept = self._kept.get(chain)
        if kept is not None and kept.stage != program.stage:
            self._drop(scheduler, chain)
            kept = None
        expected = program.rest[0].tool_s_before if program.rest else None
        context = IdleContext(chain, 0, now, expected, None if ttl_s is None else now + ttl_s)
        if self._returning is not None:
            self._returning.left(scheduler, request, context, program.stage)
        if kept is None and self._retention.hopeless([context], now):
            return
        blocks, tokens = self._adapter.keep_blocks(scheduler, request)
        if not tokens:  # less than a block
            return
        if kept is None:
            kept = self._kept[chain] = _Kept(context, program.stage)
            self.held += 1
            if len(self._kept) > _HELD:
                self._drop(scheduler, next(iter(self._kept)))
        kept.blocks.append(blocks)
        kept.context = replace(kept.context, tokens=kept.context.tokens + tokens, since=now)

    def started(self, scheduler: Any, chain: str) -> None:
        """A call of the chain has started: it has references of its own to the blocks that it shares."""
        kept = self._kept.get(chain)
        if kept is not None and kept.context.waits:
            self._drop(scheduler, chain)

    def release(self, scheduler: Any, program: str, branches: Iterable[str] | None = None) -> None:
        """No call will continue these branches of a program; of None, the whole program. Drops what is held."""
        if branches is None:
            chains = list(self._branches.get(program, ()))
        else:
            chains = [CompoundView(program, branch=branch).chain for branch in branches]
        for chain in chains:
            self._release_chain(scheduler, chain)
            if chain in self._open:  # what its calls compute until they end is not held either
                self._released.add(chain)

    def freed(self) -> None:
        """A request has left its KV: what the first waiting one needs may not be held by another any more."""
        self._head = None

    def forget_all(self, scheduler: Any) -> None:
        """What was computed is not used again. Programs that are away are still awaited."""
        for chain in list(self._kept):
            self._drop(scheduler, chain)
        if self._returning is not None:
            self._returning.forget_all(scheduler)

    def load_failed(self, scheduler: Any) -> None:
        """vLLM could not load some KV from its tier."""
        if self._returning is not None:
            self._returning.abandon(scheduler)

    def _release_chain(self, scheduler: Any, chain: str) -> None:
        self._left.pop(chain, None)
        if self._returning is not None:
            self._returning.forget(chain)
        self._retention.over(chain)
        if chain in self._kept:
            self._drop(scheduler, chain)
        self._forget(chain)

    def _forget(self, chain: str) -> None:
        """Forget the chain if nothing of it is here and nobody awaits it."""
        if chain in self._left or chain in self._kept or chain in self._open:
            return
        program = chain.partition("\n")[0]
        of_program = self._branches.get(program)
        if of_program is not None:
            of_program.discard(chain)
            if not of_program:
                del self._branches[program]

    def make_room(self, scheduler: Any, first: RequestLike | None, load: EngineLoad, now: float) -> None:
        """Give up contexts as the retention says, and bring others back into memory that stays free. Call it before
        each step. `first`: the first waiting request.
        """
        self._note_load(scheduler, now)
        back = self._returning
        if back is None:
            self._give_up(scheduler, first, load, now)
            return
        for flight in back.landed(scheduler, now):
            self._hold_again(scheduler, flight)
        self._give_up(scheduler, first, replace(load, copy_ms=back.copy_ms), now)
        if not load.takes_calls:
            return
        spare = self._adapter.free_tokens(scheduler) - self._adapter.growth_tokens(scheduler)
        spare -= 0 if first is None else self._wanted(scheduler, first)
        back.begin(scheduler, self._kept, spare, now, idle=first is None and not scheduler.running)

    def _hold_again(self, scheduler: Any, flight: Flight) -> None:
        """Hold a context that came back, unless its program's call is here: that finds it in the prefix cache."""
        assert self._returning is not None
        chain = flight.context.program
        if chain in self._left and chain not in self._open and chain not in self._kept:
            blocks, tokens = self._adapter.keep_blocks(scheduler, flight.request)
            self._kept[chain] = _Kept(replace(flight.context, tokens=tokens), flight.stage, [blocks])
            self.held += 1
        self._returning.ended(scheduler, flight)

    def _give_up(self, scheduler: Any, first: RequestLike | None, load: EngineLoad, now: float) -> None:
        if not self._kept:
            return
        if now - self._swept_at >= _SWEEP_S:
            self._swept_at = now
            for program in self._retention.hopeless([kept.context for kept in self._kept.values()], now):
                self._drop(scheduler, program)
        free, growth = self._adapter.free_tokens(scheduler), self._adapter.growth_tokens(scheduler)
        if free >= growth and (first is None or free >= growth + first.num_prompt_tokens + first.num_output_tokens):
            return
        wanted = 0 if first is None else self._wanted(scheduler, first)
        if free >= growth + wanted:
            return
        patient = first is None or self._is_patient(first, now)
        running, idle = len(scheduler.running), self._idle_share
        room = Room(free, growth, wanted, running, load.step, load.context, idle, load.prefill, patient, load.copy_ms)
        contexts = [kept.context for kept in self._kept.values()]
        given = self._retention.release(contexts, room, now)
        for program in given:
            self.given_up += 1
            self._drop(scheduler, program)
        if not self._retention.backfills or first is None or not patient:
            return
        if self._adapter.free_tokens(scheduler) < growth + self._wanted(scheduler, first):
            self._let_pass(scheduler)

    def _is_patient(self, first: RequestLike, now: float) -> bool:
        """May others still pass the first waiting call, or has it lacked memory for too long? A call with a limit may
        lose half of the time that it had.
        """
        key = first.request_id
        if self._short is None or self._short[0] != key:
            self._short = key, now
        since, due = self._short[1], self._due_of(key)
        return now < since + (_PATIENCE_S if due is None else min(_PATIENCE_S, (due - since) / 2))

    def _let_pass(self, scheduler: Any) -> None:
        """Put calls whose contexts are held before the first one, which waits for memory: they need little."""
        ready = [request for request in scheduler.waiting if self._is_held(request)]
        if ready:
            self._adapter.reorder(scheduler, ready)

    def _is_held(self, request: RequestLike) -> bool:
        chain = self._chain_of(request.request_id)
        return chain is not None and chain in self._kept

    def _wanted(self, scheduler: Any, first: RequestLike) -> int:
        key = first.request_id
        if self._head is None or self._head[0] != key:
            self._head = key, self._adapter.unheld_tokens(scheduler, first)
        return self._head[1]

    def _drop(self, scheduler: Any, chain: str) -> None:
        for blocks in self._kept.pop(chain).blocks:
            self._adapter.drop_blocks(scheduler, blocks)
        self._head = None
        self._forget(chain)

    def _note_load(self, scheduler: Any, now: float) -> None:
        if self._looked_at is not None:
            weight = min(1.0, (now - self._looked_at) / _HORIZON_S)
            self._idle_share += weight * ((not self._ran) - self._idle_share)
        self._looked_at, self._ran = now, bool(scheduler.running)
