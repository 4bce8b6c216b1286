"""The functions that user code calls inside a run: `fork`, `llm`, `current_sandbox`, `interrupt` and others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ramify.runtime.durations import Duration, seconds, shown
from ramify.runtime.effects.fence import idempotency_key as key_of
from ramify.runtime.errors import NotInARun
from ramify.runtime.execution.forks import Fork
from ramify.runtime.execution.questions import begin_asking
from ramify.runtime.execution.run import RunScope, is_patched, refuse_inside_step
from ramify.runtime.execution.sleeps import begin_sleeping
from ramify.runtime.execution.streamed_answers import AnswerStream
from ramify.runtime.user_code.call_sites import CallSite, call_site
from ramify.runtime.user_code.call_slo import call_slo
from ramify.runtime.user_code.sandbox import Sandbox, SyncSandbox
from ramify.runtime.user_code.scope import current_scope
from ramify.runtime.user_code.worker_threads import run_loop_of_thread, start_on_run_loop
from ramify.serving.letter_ranking import letter_request, letter_scores
from ramify.serving.types import ChatRequest, ChatResult, Message, user

T = TypeVar("T")


class _Fork:
    """The type of `fork`: an object with a mark, so that the compiler recognizes it under any name."""

    __ramify_fork__ = True

    def __call__(self, items: Sequence[T]) -> Fork[T]:
        """Fork the world: `async with fork(items) as branches` gives one copy-on-write world per item.

        Each world starts as this branch's world is now. In a workflow that is not async: `with fork(items) as
        branches`.
        """
        scope = current_scope("fork() was called")
        if not isinstance(scope, RunScope):
            raise NotInARun(
                "fork() was called in a LangGraph node: return Sends instead; the graph forks the world for each"
            )
        return Fork(scope, items, call_site())


fork = _Fork()


def current_sandbox() -> Sandbox:
    """The world of the running step; in a function that is not async, its blocking form, a `SyncSandbox`.

    Raises `NotInARun` outside a step, or in a step that is declared pure.
    """
    scope = current_scope("current_sandbox() was called")
    sandbox = scope.sandbox
    if sandbox is None:
        raise NotInARun("current_sandbox() was called outside a step, or in a step declared pure, which has no world")
    loop = run_loop_of_thread() if isinstance(scope, RunScope) else None
    return sandbox if loop is None else SyncSandbox(sandbox, loop)  # type: ignore[return-value]  # the blocking form


def interrupt(question: Any) -> Awaitable[Any]:
    """Ask a person: `answer = await interrupt(...)`.

    The run stops with `RunWaiting`, and its process may end. Resumed with an answer (`runtime.resume(run,
    answer=...)`, `ramify resume RUN --answer JSON`), it continues here. The question is any value that the journal
    can store. Raises `NotInARun` inside a step: ask in the workflow.
    """
    scope = current_scope("interrupt() was called")
    if not isinstance(scope, RunScope):
        raise NotInARun("ramify.interrupt() was called in a LangGraph node: call LangGraph's own interrupt() there")
    refuse_inside_step("interrupt() was called")
    site = call_site()
    return start_on_run_loop("interrupt() was called", lambda: begin_asking(scope, question, site))


def sleep(duration: Duration) -> Awaitable[None]:
    """Wait in a workflow: `await sleep("10m")`. In a workflow that is not async: `sleep("10m")`.

    The time at which it ends is recorded when it begins, so a resumed run waits only for what is left of it, and not
    at all if that time has passed. Where tasks wait for sleeps and steps side by side, as in
    `asyncio.wait({...}, return_when=FIRST_COMPLETED)`, a resume finds the same one first. `asyncio.sleep` lasts as
    long again in a resume. Sleeps of one duration are told apart by their order: let a step compute a duration that
    depends on a clock or on chance. Raises `ValueError` if it is no duration, and `NotInARun` inside a step or a
    LangGraph node, where `asyncio.sleep` does.
    """
    what = "sleep() was called"
    scope, duration_s = current_scope(what), seconds(duration, zero=True)
    if not isinstance(scope, RunScope):
        raise NotInARun("ramify.sleep() was called in a LangGraph node: call asyncio.sleep() there")
    refuse_inside_step(what)
    return start_on_run_loop(what, lambda: begin_sleeping(scope, duration_s))


def patched(name: str) -> bool:
    """Whether this run is on the new code: `if patched("name"): new code`, with the old code as its `else`.

    True in a run that reaches this line for the first time. False in a run that an earlier process took past this
    line with the old code. The answer is recorded: it is the same after a crash, and on all branches of a fork. A
    changed workflow whose only differences are such blocks resumes its runs without further ado. Remove the block and
    the old code when no run in flight uses them. Raises `NotInARun` inside a step: ask in the workflow.
    """
    scope = current_scope("patched() was called")
    if not isinstance(scope, RunScope):
        raise NotInARun("ramify.patched() was called in a LangGraph node: a thread continues with the graph as it is")
    refuse_inside_step("patched() was called")
    if not isinstance(name, str) or not name:
        raise TypeError(f"ramify.patched({shown(name)}): a patch has a name, a text that is not empty")
    if run_loop_of_thread() is None:
        return is_patched(scope, name)

    async def ask() -> bool:
        return is_patched(scope, name)

    answer: bool = start_on_run_loop("patched() was called", ask)  # type: ignore[assignment]  # from_here waits: decision 003
    return answer


def time_left() -> float | None:
    """Seconds until the deadline of the running workflow, negative after it; None if it has no deadline.

    Only inside a step, whose result is recorded: a workflow that asks for the time between steps cannot be replayed.
    """
    scope = current_scope("time_left() was called")
    if not isinstance(scope, RunScope) or scope.step is None:
        raise NotInARun("time_left() was called outside a step: a workflow that asks for the time cannot be resumed")
    run = scope.run
    return None if run.record.deadline_s is None else run.record.deadline_s - run.journal.consumed_s()


def idempotency_key() -> str:
    """A key for the receiver of the running step's effect.

    It is the same on every attempt and in every process, and no other step has it. If the effect is undone
    (`compensate=`) and done again, the key is another one. Raises `NotInARun` outside a step.
    """
    scope = current_scope("idempotency_key() was called")
    if not isinstance(scope, RunScope) or scope.step is None:
        raise NotInARun("idempotency_key() was called outside a step: call it where the step has its effect")
    effect = scope.run.journal.effect(scope.step.key)
    return key_of(scope.run.record.id, scope.step.key) if effect is None else effect.idempotency_key


@dataclass(frozen=True, slots=True)
class Choice:
    """A model's ranking. `scores` are log-probabilities in the order of the options; greater is better."""

    scores: tuple[float, ...]

    @property
    def order(self) -> tuple[int, ...]:
        """Indices of the options, best first; equal options keep their order."""
        return tuple(sorted(range(len(self.scores)), key=lambda i: -self.scores[i]))

    @property
    def best(self) -> int:
        return self.order[0]


class LLM:
    """Model calls of the running workflow, recorded in the journal and tagged with the remaining deadline."""

    __ramify_llm__ = True

    def chat(
        self,
        prompt: str | Sequence[Message],
        *,
        system: str | None = None,
        temperature: float = 0.0,
        top_p: float = 1.0,
        max_tokens: int = 256,
        seed: int | None = None,
        stop: str | Sequence[str] = (),
        top_logprobs: int = 0,
        model: str = "default",
    ) -> Awaitable[ChatResult]:
        """One completion. Raises an `LLMError` if there is none in the time left."""
        request = ChatRequest(
            messages=_messages(prompt, system),
            model=model,
            temperature=temperature,
            top_p=top_p,
            max_tokens=max_tokens,
            seed=seed,
            stop=_stops(stop),
            top_logprobs=top_logprobs,
        )
        return _call([request], call_site(), "chat", _first)

    def stream(
        self,
        prompt: str | Sequence[Message],
        *,
        pace: Duration | None = None,
        system: str | None = None,
        temperature: float = 0.0,
        top_p: float = 1.0,
        max_tokens: int = 256,
        seed: int | None = None,
        stop: str | Sequence[str] = (),
        model: str = "default",
    ) -> AnswerStream:
        """One completion, read while it comes: `async for piece in llm.stream(…)`; in a plain function `for`.

        A piece is a word with the space after it. `pace` is the least time for a token (`"220ms"` for a reader,
        `"310ms"` for speech); the answer is fetched as fast as it comes all the same. `result` of the stream is the
        whole, once it was read. A resumed run yields the same pieces, at once. Raises what `chat` raises, also in the
        middle of an answer: what was read cannot be taken back, so the call is not retried then.
        """
        request = ChatRequest(
            messages=_messages(prompt, system),
            model=model,
            temperature=temperature,
            top_p=top_p,
            max_tokens=max_tokens,
            seed=seed,
            stop=_stops(stop),
        )
        return _stream(request, call_site(), None if pace is None else seconds(pace))

    def propose(
        self,
        prompt: str | Sequence[Message],
        *,
        n: int = 8,
        need: int | None = None,
        system: str | None = None,
        temperature: float = 0.8,
        max_tokens: int = 256,
        stop: str | Sequence[str] = (),
        model: str = "default",
    ) -> Awaitable[list[str]]:
        """`n` samples of one prompt, requested at once as one stage: their texts, in order.

        `need`: so many suffice. The first that come are returned, the other calls are cancelled, and up to `n - need`
        may fail. A resume returns the same ones. Raises `ValueError` if it is not from 1 to `n`.
        """
        if not isinstance(n, int) or n < 1:
            raise ValueError(f"llm.propose(n={shown(n)}): n is a whole number from 1")
        if need is not None and not 1 <= need <= n:
            raise ValueError(f"llm.propose(n={n}, need={need}): need is from 1 to n")
        requests = [
            ChatRequest(
                messages=_messages(prompt, system),
                model=model,
                temperature=temperature,
                max_tokens=max_tokens,
                stop=_stops(stop),
                seed=sample,
                sample=sample,
            )
            for sample in range(n)
        ]
        return _call(requests, call_site(), "propose", _texts, need=need)

    def choose(
        self, question: str, options: Sequence[str], *, system: str | None = None, model: str = "default"
    ) -> Awaitable[Choice]:
        """Rank up to 20 options by the probability that the model assigns to the letter of each."""
        request = letter_request(question, options, system=system, model=model)
        return _call([request], call_site(), "choose", lambda pending: _choice(pending, len(options)))


llm = LLM()


_PROMPT = 'give text, or a list of ramify.serving.types.Message("user", "…")'


def _stops(stop: str | Sequence[str]) -> tuple[str, ...]:
    """A text alone is one stop sequence: of its letters, each would end the answer."""
    found = (stop,) if isinstance(stop, str) else tuple(stop) if isinstance(stop, Sequence) else (stop,)
    if wrong := [one for one in found if not isinstance(one, str)]:
        raise TypeError(f"stop={shown(wrong[0])}: give a text, or a list of texts, before which the answer ends")
    return found


def _messages(prompt: str | Sequence[Message], system: str | None) -> tuple[Message, ...]:
    if isinstance(prompt, str):
        return user(prompt, system=system)
    if not isinstance(prompt, Sequence):
        raise TypeError(f"the prompt is {shown(prompt)}: {_PROMPT}")
    for number, one in enumerate(prompt, 1):
        if not isinstance(one, Message):
            raise TypeError(f"message {number} of the prompt is a {type(one).__name__}: {_PROMPT}")
    return (*((Message("system", system),) if system else ()), *prompt)


def _stream(request: ChatRequest, site: CallSite, pace_s: float | None) -> AnswerStream:
    what = "llm.stream() was called"
    scope, said = current_scope(what), call_slo()
    if not isinstance(scope, RunScope):
        raise NotInARun(
            f"{what} in a LangGraph node: call llm.chat() there, or stream with a LangChain model, whose tokens "
            "LangGraph passes on"
        )
    if run_loop_of_thread() is None:
        return AnswerStream(scope.stream_llm(request, site, said, pace_s))

    async def begin() -> AnswerStream:
        return AnswerStream(scope.stream_llm(request, site, said, pace_s))

    return start_on_run_loop(what, begin)  # type: ignore[return-value]  # from_here waits: decision 003


def _call(
    requests: list[ChatRequest],
    site: CallSite,
    method: str,
    read: Callable[[Awaitable[list[ChatResult]]], Awaitable[T]],
    need: int | None = None,
) -> Awaitable[T]:
    what = f"llm.{method}() was called"
    scope, said = current_scope(what), replace(call_slo(), need=need)
    if not isinstance(scope, RunScope):
        return read(scope.call_llm(requests, site, said))
    return start_on_run_loop(what, lambda: read(scope.call_llm(requests, site, said)))


async def _first(pending: Awaitable[list[ChatResult]]) -> ChatResult:
    return (await pending)[0]


async def _texts(pending: Awaitable[list[ChatResult]]) -> list[str]:
    return [result.text for result in await pending]


async def _choice(pending: Awaitable[list[ChatResult]], count: int) -> Choice:
    return Choice(letter_scores((await pending)[0], count))
