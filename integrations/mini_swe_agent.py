"""A world as an environment of mini-swe-agent (`minisweagent.Environment`).

Name it in a configuration as `environment_class: ramify.integrations.mini_swe_agent.WorldEnvironment`, or make one:

    agent = DefaultAgent(model, WorldEnvironment(folder="."), system_template=…, instance_template=…)

Commands are stateless, as in mini-swe-agent's own environments: a `cd` or a variable does not last.
"""

from __future__ import annotations

import platform
from typing import Any

from ramify.integrations.world_access import with_merged_output
from ramify.worlds.blocking import SyncWorld

try:
    from minisweagent.exceptions import Submitted
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
        """`kwargs`: the fields of `WorldEnvironmentConfig`. Raises as `ramify.World.create` does."""
        self.config: WorldEnvironmentConfig = config_class(**kwargs)
        config = self.config
        self.world = SyncWorld.create(
            config.folder,
            snapshot=config.snapshot,
            image=config.image,
            sandbox=config.sandbox,
            home=config.home,
        )

    @classmethod
    def of(cls, world: SyncWorld, config: WorldEnvironmentConfig) -> WorldEnvironment:
        """An environment over a world that is there. It owns the world from now on."""
        made = cls.__new__(cls)
        made.config, made.world = config.model_copy(deep=True), world
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
        result = self.world.exec(command, env=self.config.env, cwd=cwd or self.config.cwd or ".", timeout=limit)
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
