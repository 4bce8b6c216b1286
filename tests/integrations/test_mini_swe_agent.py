"""mini-swe-agent's own loop, with its own scripted model, in a world."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("minisweagent", reason="needs mini-swe-agent: pip install 'ramify[mini-swe-agent]'")

from minisweagent.agents.default import DefaultAgent
from minisweagent.environments import get_environment
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.test_models import DeterministicModel, make_output

from ramify import search
from ramify.integrations.mini_swe_agent import AgentTurns, Answer, WorldEnvironment, propose
from ramify.tree_search.types import Turn

DOTTED = "ramify.integrations.mini_swe_agent.WorldEnvironment"
TEMPLATES = {"system_template": "You fix bugs.", "instance_template": "{{task}} on {{system}}"}


@pytest.fixture
def environment(repo: Path, sandbox: str, tmp_path: Path) -> Iterator[WorldEnvironment]:
    made = get_environment(
        {"environment_class": DOTTED, "folder": str(repo), "sandbox": sandbox, "home": str(tmp_path / "home")}
    )
    assert isinstance(made, WorldEnvironment)
    with made:
        yield made


def agent(environment: WorldEnvironment, *commands: str) -> DefaultAgent:
    outputs = [make_output("", [{"command": command}]) for command in commands]
    return DefaultAgent(DeterministicModel(outputs=outputs), environment, cost_limit=0, **TEMPLATES)


def test_the_agents_loop_edits_runs_and_submits(environment: WorldEnvironment, repo: Path) -> None:
    submit = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat main.py"
    told = agent(environment, "sed -i s/hello/bye/ main.py", "python3 main.py", submit).run("say bye")
    assert told == {"exit_status": "Submitted", "submission": "print('bye')\n"}
    assert (repo / "main.py").read_text() == "print('hello')\n"


def test_commands_are_stateless_and_merge_their_output(environment: WorldEnvironment) -> None:
    environment.config.env = {"WORD": "yes"}
    first = environment.execute({"command": "cd /; X=1; echo out; echo err >&2; echo $WORD; exit 3"})
    assert first == {"output": "out\nerr\nyes\n", "returncode": 3, "exception_info": ""}
    assert environment.execute({"command": "echo $X; ls"})["output"] == "\nmain.py\n"
    assert environment.execute({"command": "pwd"}, cwd="/")["output"] == "/\n"


def test_a_command_that_takes_too_long_is_told_with_its_output(environment: WorldEnvironment) -> None:
    told: dict[str, Any] = environment.execute({"command": "echo begun; sleep 60"}, timeout=6)
    assert (told["output"], told["returncode"]) == ("begun\n", -1)
    assert "6 seconds" in told["exception_info"] and told["extra"]["exception_type"] == "TimeoutExpired"


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ({"command": "echo a\0b"}, "NUL"),
        ({"command": "echo \ud800"}, "surrogate"),
        ({"command": None}, "NoneType"),
    ],
)
def test_a_command_that_cannot_be_started_is_told_to_the_agent(
    environment: WorldEnvironment, action: dict[str, Any], said: str
) -> None:
    told = environment.execute(action)
    assert (told["output"], told["returncode"]) == ("", -1) and said in told["exception_info"]


def test_a_command_that_is_too_long_is_told_to_the_agent(environment: WorldEnvironment) -> None:
    told = environment.execute({"command": "echo " + "x" * 3_000_000})
    assert "Argument list too long" in told["output"] and told["returncode"] == 126


def test_a_missing_folder_is_told_to_the_agent(environment: WorldEnvironment) -> None:
    assert "/nowhere" in environment.execute({"command": "pwd"}, cwd="/nowhere")["exception_info"]


def test_failed_submission_does_not_end_the_agent(environment: WorldEnvironment) -> None:
    command = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; exit 1"
    assert environment.execute({"command": command})["returncode"] == 1


def test_environments_of_one_home_share_its_backend(repo: Path, sandbox: str, tmp_path: Path) -> None:
    config = {"folder": str(repo), "sandbox": sandbox, "home": str(tmp_path / "home")}
    one, two = WorldEnvironment(**config), WorldEnvironment(**config)
    assert one.world.call(_home_of(one)) is two.world.call(_home_of(two))
    one.cleanup()
    one.cleanup()
    assert two.execute({"command": "ls"})["output"] == "main.py\n"
    two.cleanup()


def _home_of(environment: WorldEnvironment) -> Callable[[], Awaitable[object]]:
    return environment.world.world._home.backend


def test_an_agent_forks_in_the_middle_and_goes_on_differently(environment: WorldEnvironment) -> None:
    agent(environment, "echo one > notes", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT").run("note")
    kept = environment.snapshot()
    forks = environment.fork(2)
    try:
        for number, fork in enumerate(forks):
            fork.execute({"command": f"echo {number} >> notes"})
        assert [fork.execute({"command": "cat notes"})["output"] for fork in forks] == ["one\n0\n", "one\n1\n"]
        environment.execute({"command": "rm notes"})
        environment.restore(kept)
        assert environment.execute({"command": "cat notes"})["output"] == "one\n"
    finally:
        for fork in forks:
            fork.cleanup()


def test_the_trajectory_names_the_environment(environment: WorldEnvironment) -> None:
    told = environment.serialize()["info"]["config"]
    assert told["environment_type"] == DOTTED and told["environment"]["timeout"] == 30


async def test_a_search_forks_the_agent_at_every_turn(environment: WorldEnvironment) -> None:
    """Messages and world go together: each branch has its own, and the winner's submission is its own file."""

    class Trying(DeterministicModel):
        """Edits in a different way at each call, and submits after an edit."""

        def query(self, messages: list[dict[str, Any]], **kwargs: Any) -> dict[str, Any]:
            if any("sed" in str(message.get("extra", {}).get("actions")) for message in messages):
                return make_output("done", [{"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat main.py"}])
            word = next(WORDS)
            return make_output(word, [{"command": f"sed -i s/hello/{word}/ main.py && python3 main.py"}])

    async def score(turns: AgentTurns, history: Sequence[Turn[Any]]) -> float:
        result = turns.environment.execute({"command": "python3 main.py"})
        return float(len(result["output"]))

    WORDS = iter(["a", "abc", "ab", "abcd"])
    started = DefaultAgent(Trying(outputs=[]), environment, cost_limit=0, **TEMPLATES)
    async with search(AgentTurns(started, "grow"), propose, width=4, depth=2, score=score) as found:
        best = found.best.environment.agent
        assert found.best.done and best.messages[-1]["extra"]["submission"] == "print('abcd')\n"
        assert best.n_calls == 2 and len(best.messages) > len(started.messages) == 2
    assert environment.execute({"command": "cat main.py"})["output"] == "print('hello')\n"


async def test_a_fork_that_is_cancelled_leaves_no_world(
    environment: WorldEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[WorldEnvironment] = []
    begun, may_go_on = threading.Event(), threading.Event()

    def fork(n: int) -> list[WorldEnvironment]:
        begun.set()
        may_go_on.wait()
        made.extend(WorldEnvironment.fork(environment, n))
        return made

    turns = AgentTurns(agent(environment), "wait")
    monkeypatch.setattr(environment, "fork", fork)
    forking = asyncio.create_task(turns.fork(2))
    await asyncio.to_thread(begun.wait)
    forking.cancel()
    may_go_on.set()
    await asyncio.wait([forking])
    assert forking.cancelled() and [one.world.world.is_open for one in made] == [False, False]


async def test_the_agents_limits_hold_in_a_search(environment: WorldEnvironment) -> None:
    outputs = [make_output("", [{"command": f"echo {number} > {number}"}]) for number in "12"]
    limited = DefaultAgent(DeterministicModel(outputs=outputs), environment, step_limit=2, cost_limit=0, **TEMPLATES)
    turns = AgentTurns(limited, "write")
    for calls in (1, 2):
        asked = turns.ask()
        assert (turns.agent.n_calls, len(turns.agent.messages)) == (calls - 1, 2 * calls), "asking changes nothing"
        assert not (await turns.step(asked)).done and turns.agent.n_calls == turns.agent.cost == calls
    last = await turns.step(turns.ask())
    assert last.done and turns.agent.messages[-1]["extra"]["exit_status"] == "LimitsExceeded"
    assert turns.agent.n_calls == 2


def test_answers_with_the_same_commands_are_one() -> None:
    one, two = (Answer.of(make_output(said, [{"command": "ls"}])) for said in ("I look.", "Let me see."))
    other = Answer.of(make_output("I look.", [{"command": "ls -l"}]))
    assert one == two != other and len({one, two, other}) == 2
    assert Answer.of({"role": "assistant", "content": "ls"}) != one, "words are no command"


async def test_only_an_agent_in_a_world_can_be_searched() -> None:
    with pytest.raises(TypeError, match="WorldEnvironment"):
        AgentTurns(DefaultAgent(DeterministicModel(outputs=[]), LocalEnvironment(), **TEMPLATES))
