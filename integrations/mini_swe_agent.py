"""A world as an environment of mini-swe-agent (`minisweagent.Environment`).

Name it in a configuration as `environment_class: ramify.integrations.mini_swe_agent.WorldEnvironment`, or make one:

    agent = DefaultAgent(model, WorldEnvironment(folder="."), system_template=…, instance_template=…)

Commands are stateless, as in mini-swe-agent's own environments: a `cd` or a variable does not last.
"""

from __future__ import annotations

import asyncio
import copy
import platform
from collections.abc import Hashable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from ramify.integrations.world_access import merged_text, with_merged_output
from ramify.sandboxes.errors import CommandRefused
from ramify.sandboxes.host.concurrency import finish_before_cancelling
from ramify.tree_search.types import StepResult, Turn
from ramify.worlds.blocking import SyncWorld
from ramify.worlds.blocking_home import shared_home

try:
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.exceptions import FormatError, InterruptAgentFlow, Submitted
    from minisweagent.utils.serialize import recursive_merge
    from pydantic import BaseModel
except ImportError as error:
    raise ImportError(
        "ramify.integrations.mini_swe_agent needs mini-swe-agent: pip install 'ramify[mini-swe-agent]'"
    ) from error

_DONE = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


class WorldEnvironmentConfig(BaseModel):
    """What `WorldEnvironment` takes. `folder`, `snapshot`, `image`, `sandbox`, `home`: as `ramify.World.create`.
    `cwd`: where commands run (default: the top of the tree). `timeout`: seconds a command may take."""

    folder: str | None = None
    snapshot: str | None = None
    image: str | None = None
    cwd: str = ""
    env: dict[str, str] = {}
    timeout: int = 30
    interpreter: list[str] = ["bash", "-lc"]
    sandbox: str | None = None
    home: str | None = None


class WorldEnvironment:
    """Runs an agent's commands in a world of its own. Also a context manager; `cleanup` ends the world."""

    def __init__(self, *, config_class: type = WorldEnvironmentConfig, **kwargs: Any) -> None:
        """`kwargs`: the fields of `WorldEnvironmentConfig`. The environments of one process share a home's backend.
        Raises as `ramify.World.create` does."""
        self.config: WorldEnvironmentConfig = config_class(**kwargs)
        config = self.config
        with ExitStack() as held:
            home = held.enter_context(shared_home(config.home, config.sandbox))
            self.world = SyncWorld.create(config.folder, snapshot=config.snapshot, image=config.image, home=home)
            self._held = held.pop_all()

    @classmethod
    def of(cls, world: SyncWorld, config: WorldEnvironmentConfig) -> WorldEnvironment:
        """An environment over a world that is there. It owns the world from now on."""
        made = cls.__new__(cls)
        made.config, made.world, made._held = config.model_copy(deep=True), world, ExitStack()
        return made

    def __enter__(self) -> WorldEnvironment:
        return self

    def __exit__(self, *error: object) -> None:
        self.cleanup()

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        """Run `action["command"]` and return `output`, `returncode` and `exception_info`: why a command could not be
        started or was stopped. Raises `Submitted` when the command hands in the answer, and `WorldDied` and
        `WorldClosed`, which no command of the agent can mend."""
        limit = timeout or self.config.timeout
        command = with_merged_output(action.get("command", ""), self.config.interpreter)
        try:
            result = self.world.exec(command, env=self.config.env, cwd=cwd or self.config.cwd or None, timeout=limit)
        except (CommandRefused, ValueError, TypeError) as error:
            return _not_done("", type(error).__name__, str(error))
        if result.timed_out:
            return _not_done(merged_text(result), "TimeoutExpired", f"the command was stopped after {limit} seconds")
        output = {"output": merged_text(result), "returncode": result.exit_code, "exception_info": ""}
        _raise_if_submitted(output)
        return output

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        return dict(recursive_merge(self.config.model_dump(), platform.uname()._asdict(), kwargs))

    def serialize(self) -> dict[str, Any]:
        kind = f"{type(self).__module__}.{type(self).__name__}"
        return {"info": {"config": {"environment": self.config.model_dump(mode="json"), "environment_type": kind}}}

    def cleanup(self) -> None:
        """End the world. May be called twice."""
        with self._held:
            self.world.close()

    # Beyond mini-swe-agent's interface

    def snapshot(self, tag: str | None = None) -> str:
        """Keep the world as it is now. Returns the snapshot's id, for `restore` and for `snapshot=`. A tag
        keeps it beyond this environment."""
        return self.world.snapshot(tag).id

    def fork(self, n: int = 1) -> list[WorldEnvironment]:
        """Make `n` environments at the state of now. Each is cleaned up by itself, before this one."""
        return [self.of(world, self.config) for world in self.world.fork(n)]

    def restore(self, snapshot: str) -> None:
        """Go back to a snapshot: its id or its tag."""
        self.world.restore(snapshot)


def _not_done(output: str, kind: str, said: str) -> dict[str, Any]:
    return {
        "output": output,
        "returncode": -1,
        "exception_info": f"An error occurred while executing the command: {said}",
        "extra": {"exception_type": kind, "exception": said},
    }


def _raise_if_submitted(output: dict[str, Any]) -> None:
    lines = output["output"].lstrip().splitlines(keepends=True)
    if lines and lines[0].strip() == _DONE and output["returncode"] == 0:
        submission = "".join(lines[1:])
        extra = {"exit_status": "Submitted", "submission": submission}
        raise Submitted({"role": "exit", "content": submission, "extra": extra})


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of an agent's model: an action of `ramify.search`. Answers with the same commands are equal, and of
    those without commands the ones that say the same.

    messages: what the agent adds to its own. interrupted: the answer has no commands because it was malformed, or
    because the agent reached a limit; the messages then say so, as in the agent's own loop.
    """

    key: tuple[str, ...]
    messages: tuple[dict[str, Any], ...] = field(compare=False, repr=False)
    cost: float = field(default=0.0, compare=False)
    calls: int = field(default=1, compare=False)
    interrupted: bool = field(default=False, compare=False)

    @classmethod
    def of(cls, message: dict[str, Any]) -> Answer:
        """The answer that a model's message is."""
        extra = message.get("extra", {})
        commands = tuple(str(action.get("command", "")) for action in extra.get("actions", []))
        return cls(commands or ("", str(message.get("content"))), (message,), extra.get("cost", 0.0))

    @classmethod
    def to_interrupt(cls, flow: InterruptAgentFlow) -> Answer:
        """What the agent's loop adds for a malformed answer, or at a limit."""
        said = tuple(str(message.get("content")) for message in flow.messages)
        malformed = isinstance(flow, FormatError)
        cost = flow.messages[0].get("extra", {}).get("cost", 0.0) if malformed else 0.0
        return cls((type(flow).__name__, *said), flow.messages, cost, calls=int(malformed), interrupted=True)


class AgentTurns:
    """A mini-swe-agent agent over a `WorldEnvironment`, as an environment of `ramify.search`. An action is an
    `Answer` of the model, a step executes its commands, and a fork copies messages, cost and world.

        async with ramify.search(AgentTurns(agent, task), propose, score=…) as found:
            print(found.best.environment.agent.messages[-1])
    """

    def __init__(self, agent: DefaultAgent, task: str = "", **variables: Any) -> None:
        """agent: its `env` is a `WorldEnvironment`, else `TypeError`. task, variables: as `agent.run` takes them;
        without messages, the agent gets its system and task messages now."""
        if not isinstance(agent.env, WorldEnvironment):
            raise TypeError(
                f"the agent's env must be a WorldEnvironment, to be forked; it is {type(agent.env).__name__}"
            )
        self.agent = agent
        self.environment = agent.env
        if not agent.messages:
            agent.extra_template_vars |= {"task": task, **variables}
            system = agent._render_template(agent.config.system_template)
            user = agent._render_template(agent.config.instance_template)
            agent.add_messages(
                agent.model.format_message(role="system", content=system),
                agent.model.format_message(role="user", content=user),
            )

    @property
    def done(self) -> bool:
        """Whether the agent has ended."""
        return bool(self.agent.messages) and self.agent.messages[-1].get("role") == "exit"

    def ask(self) -> Answer:
        """Ask the agent's model for its next answer, within the agent's limits. The agent stays as it is. Raises what
        the model raises."""
        trial = copy.copy(self.agent)
        trial.messages = list(self.agent.messages)
        try:
            return Answer.of(dict(trial.query()))
        except InterruptAgentFlow as flow:
            return Answer.to_interrupt(flow)

    async def step(self, action: Answer) -> StepResult:
        """Add the answer's messages, execute its commands, and return the new messages."""
        before = len(self.agent.messages)
        await asyncio.to_thread(self._step, action)
        return StepResult(self.agent.messages[before:], done=self.done)

    def _step(self, answer: Answer) -> None:
        agent = self.agent
        agent.n_calls += answer.calls
        agent.cost += answer.cost
        agent.add_messages(*answer.messages)
        if answer.interrupted:
            if answer.calls:
                self._count_format_error()
            return
        try:
            agent.execute_actions(answer.messages[-1])
            agent.n_consecutive_format_errors = 0
        except InterruptAgentFlow as flow:
            agent.add_messages(*flow.messages)

    def _count_format_error(self) -> None:
        """As the agent's `run`: too many in a row end it."""
        agent = self.agent
        agent.n_consecutive_format_errors += 1
        if 0 < agent.config.max_consecutive_format_errors <= agent.n_consecutive_format_errors:
            extra = {"exit_status": "RepeatedFormatError", "submission": ""}
            agent.add_messages({"role": "exit", "content": "RepeatedFormatError", "extra": extra})

    async def fork(self, n: int) -> list[AgentTurns]:
        making = asyncio.ensure_future(asyncio.to_thread(self.environment.fork, n))
        try:
            forks = await asyncio.shield(making)
        except asyncio.CancelledError:
            await finish_before_cancelling(_clean_up(making))  # nobody can stop the thread, or has its forks
            raise
        return [type(self)(self._copy(fork)) for fork in forks]

    async def close(self) -> None:
        await asyncio.to_thread(self.environment.cleanup)

    async def state_key(self) -> Hashable | None:
        """The content of the world's files."""
        snapshot = await asyncio.to_thread(self.environment.world.snapshot)
        return snapshot.content_key or None

    def history_key(self, history: Sequence[Turn[Answer]]) -> Hashable:
        """The commands: times and identifiers in messages are no difference between two states."""
        return tuple(turn.action for turn in history)

    def _copy(self, environment: WorldEnvironment) -> DefaultAgent:
        agent = copy.copy(self.agent)
        agent.messages = copy.deepcopy(self.agent.messages)
        agent.extra_template_vars = dict(self.agent.extra_template_vars)
        agent.env = environment
        return agent


async def _clean_up(making: asyncio.Future[list[WorldEnvironment]]) -> None:
    await asyncio.wait([making])
    if making.exception() is None:
        for fork in making.result():
            await asyncio.to_thread(fork.cleanup)


async def propose(environment: AgentTurns, history: Sequence[Turn[Answer]], n: int) -> list[Answer]:
    """Ask the agent's model `n` times for its next answer: a policy for `ramify.search`. A model whose answers vary
    (a temperature above 0) gives different ones."""
    return list(await asyncio.gather(*(asyncio.to_thread(environment.ask) for _ in range(n))))
