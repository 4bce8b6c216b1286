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
from typing import Any

from ramify.integrations.world_access import with_merged_output
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
        """Run `action["command"]` and return `output`, `returncode` and `exception_info`. Raises `Submitted` when the
        command hands in the answer."""
        limit = timeout or self.config.timeout
        command = with_merged_output(action.get("command", ""), self.config.interpreter)
        result = self.world.exec(command, env=self.config.env, cwd=cwd or self.config.cwd or None, timeout=limit)
        output: dict[str, Any] = {
            "output": result.stdout,
            "returncode": -1 if result.timed_out else result.exit_code,
            "exception_info": "",
        }
        if result.timed_out:
            said = f"the command was stopped after {limit} seconds"
            output["exception_info"] = f"An error occurred while executing the command: {said}"
            output["extra"] = {"exception_type": "TimeoutExpired", "exception": said}
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
        """Keep the world as it is now. Returns the snapshot's id, for `restore` and for `snapshot=`."""
        return self.world.snapshot(tag).id

    def fork(self, n: int = 1) -> list[WorldEnvironment]:
        """Make `n` environments at the state of now. Each is cleaned up by itself, before this one."""
        return [self.of(world, self.config) for world in self.world.fork(n)]

    def restore(self, snapshot: str) -> None:
        """Go back to a snapshot: its id or its tag."""
        self.world.restore(snapshot)


def _raise_if_submitted(output: dict[str, Any]) -> None:
    lines = output["output"].lstrip().splitlines(keepends=True)
    if lines and lines[0].strip() == _DONE and output["returncode"] == 0:
        submission = "".join(lines[1:])
        extra = {"exit_status": "Submitted", "submission": submission}
        raise Submitted({"role": "exit", "content": submission, "extra": extra})


class AgentTurns:
    """A mini-swe-agent agent over a `WorldEnvironment`, as an environment of `ramify.search`. An action is a message
    of the model, a step executes its commands, and a fork copies messages, cost and world.

        async with ramify.search(AgentTurns(agent), propose, score=…) as found:
            print(found.best.environment.agent.messages[-1])
    """

    def __init__(self, agent: DefaultAgent, task: str = "", **variables: Any) -> None:
        """agent: its `env` is a `WorldEnvironment`. task, variables: as `agent.run` takes them; without messages, the
        agent gets its system and task messages now."""
        self.agent = agent
        assert isinstance(agent.env, WorldEnvironment)
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

    async def step(self, action: dict[str, Any]) -> StepResult:
        """Add the model's message, execute its actions, and return the new messages."""
        before = len(self.agent.messages)
        await asyncio.to_thread(self._step, action)
        return StepResult(self.agent.messages[before:], done=self.done)

    def _step(self, action: dict[str, Any]) -> None:
        agent = self.agent
        agent.n_calls += 1
        agent.cost += action.get("extra", {}).get("cost", 0.0)
        agent.add_messages(action)
        try:
            agent.execute_actions(action)
        except InterruptAgentFlow as flow:
            agent.add_messages(*flow.messages)

    async def fork(self, n: int) -> list[AgentTurns]:
        forks = await asyncio.to_thread(self.environment.fork, n)
        return [type(self)(self._copy(fork)) for fork in forks]

    async def close(self) -> None:
        await asyncio.to_thread(self.environment.cleanup)

    async def state_key(self) -> Hashable | None:
        """The content of the world's files."""
        snapshot = await asyncio.to_thread(self.environment.world.snapshot)
        return snapshot.content_key or None

    def _copy(self, environment: WorldEnvironment) -> DefaultAgent:
        agent = copy.copy(self.agent)
        agent.messages = copy.deepcopy(self.agent.messages)
        agent.extra_template_vars = dict(self.agent.extra_template_vars)
        agent.env = environment
        return agent


async def propose(environment: AgentTurns, history: Sequence[Turn[Any]], n: int) -> list[dict[str, Any]]:
    """Ask the agent's model `n` times for its next message: a policy for `ramify.search`. A model whose answers vary
    (a temperature above 0) gives different ones."""
    agent = environment.agent

    def ask() -> dict[str, Any] | None:
        try:
            return dict(agent.model.query(agent.messages))
        except FormatError:
            return None

    answers = await asyncio.gather(*(asyncio.to_thread(ask) for _ in range(n)))
    return [answer for answer in answers if answer is not None]
