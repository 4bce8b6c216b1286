"""`ramify inbox`, `ramify answer` and `ramify resume --answer`, by running them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.warm_process import COMMAND_LINE, WarmInterpreter

FLOW = """
import asyncio, os, signal, sys
from pathlib import Path
import ramify
from ramify import step, workflow

PAUSES = dict(pair.split(":") for pair in os.environ.get("PAUSES", "").split())

@step(effect="irreversible")
async def drop(name: str) -> str:
    with Path("dropped").open("a") as log:
        log.write(name + "\\n")
    return f"{name} dropped"

async def one(name: str) -> str:
    await asyncio.sleep(float(PAUSES.get(name, 0)))
    answer = await ramify.interrupt(f"drop the {name} database?")
    if answer == "yes":
        return await drop(name)
    return f"{name} kept: {answer}"

@workflow
async def both() -> list[str]:
    return list(await asyncio.gather(one("staging"), one("production")))

@workflow
async def single() -> str:
    return await one("only")

@step(effect="irreversible")
async def send(to: str) -> str:
    os.kill(os.getpid(), signal.SIGKILL)

@workflow
async def sends() -> str:
    return await send("ada")
"""

Call = Callable[..., subprocess.CompletedProcess[str]]


def caller(tmp_path: Path, interpreter: WarmInterpreter) -> Call:
    """Runs a command line in `tmp_path`. `ends`: a program in its place."""

    def run(*words: str, pauses: str = "", ends: str = COMMAND_LINE) -> subprocess.CompletedProcess[str]:
        sandbox = ["--sandbox", "copy"] if words[0] == "run" else []
        env = {"PATH": "/usr/bin:/bin", "PAUSES": pauses, "HOME": str(tmp_path)}
        return interpreter.run(["--home", "home", *words, *sandbox], cwd=tmp_path, env=env, program=ends)

    return run


@pytest.fixture
def call(tmp_path: Path, warm: WarmInterpreter) -> Call:
    (tmp_path / "flow.py").write_text(FLOW)
    return caller(tmp_path, warm)


def ids(call: Call) -> dict[str, str]:
    """The ids of open questions, by the database that they are about."""
    return {item["question"].split()[2]: item["id"] for item in json.loads(call("inbox", "--json").stdout)}


def dropped(tmp_path: Path) -> list[str]:
    log = tmp_path / "dropped"
    return log.read_text().split() if log.exists() else []


@pytest.mark.parametrize("order", [("staging", "production"), ("production", "staging")])
def test_two_questions_take_their_own_answers(order: tuple[str, str], call: Call, tmp_path: Path) -> None:
    asked = call("run", "flow.py:both")
    assert asked.returncode == 3 and "asks 2 questions" in asked.stderr, asked.stderr
    known = ids(call)
    assert all(re.search(rf"{known[name]}  drop the {name} database", asked.stderr) for name in known)
    refused = call("resume", "--answer", "yes")
    assert refused.returncode == 1 and "does not name one" in refused.stderr
    assert all(id in refused.stderr for id in known.values())
    first, second = order
    one = call("resume", "--answer", f"{known[first]}={'yes' if first == 'staging' else 'no'}")
    assert one.returncode == 3 and f"drop the {second} database?" in one.stderr, one.stderr
    done = call("resume", "-q", "--answer", "yes" if second == "staging" else "no")
    assert json.loads(done.stdout) == ["staging dropped", "production kept: no"], done.stderr
    assert dropped(tmp_path) == ["staging"]


def test_the_production_database_is_not_dropped_by_another_answer(call: Call, tmp_path: Path) -> None:
    """The question on the screen is production's; the one that is older is staging's."""
    assert "staging" in call("run", "flow.py:both", pauses="production:0.8").stderr
    shown = call("resume", pauses="staging:0.8").stderr
    assert "drop the production database?" in shown and "staging" not in shown
    assert call("resume", "--answer", "no").returncode == 3
    assert dropped(tmp_path) == []
    assert json.loads(call("resume", "-q", "--answer", "yes").stdout) == ["staging dropped", "production kept: no"]


def test_both_at_once_and_an_answer_with_an_equals_sign(call: Call) -> None:
    call("run", "flow.py:both")
    known = ids(call)
    both = [f"--answer={known['staging']}=a=b", f"--answer={known['production']}=-1"]
    done = call("resume", "-q", *both)
    assert json.loads(done.stdout) == ["staging kept: a=b", "production kept: -1"], done.stderr


@pytest.mark.parametrize("text", ["a=b", "name=value=more", "=", '"00000000=1"', "-1", "x" * 8 + "=1"])
def test_an_answer_alone_may_be_any_text(text: str, call: Call) -> None:
    call("run", "flow.py:single")
    done = call("resume", "-q", "--answer", text)
    assert done.stdout == f"only kept: {text.strip(chr(34))}\n", done.stderr


def test_ambiguous_answers_are_refused(call: Call) -> None:
    call("run", "flow.py:both")
    staging = ids(call)["staging"]
    for words in (["--answer", "a", "--answer", "b"], [f"--answer={staging}=a", "--answer", "b"],
                  [f"--answer={staging}=a", f"--answer={staging}=b"]):  # fmt: skip
        assert call("resume", *words).returncode == 2
    unknown = call("resume", "--answer", "00000000=yes")
    assert unknown.returncode == 1 and "asked no question '00000000'" in unknown.stderr and staging in unknown.stderr
    assert len(ids(call)) == 2, "nothing was stored"


def test_answer_is_stored_without_resuming(call: Call, tmp_path: Path) -> None:
    call("run", "flow.py:both")
    known = ids(call)
    first = call("answer", known["production"], "no")
    assert first.returncode == 0 and "1 question of the run still open" in first.stdout, first.stderr
    assert list(ids(call)) == ["staging"]
    second = call("answer", known["production"], "yes")
    assert (second.returncode, "Traceback" in second.stderr) == (1, False)
    assert "answered already" in second.stderr and '"no"' in second.stderr and "ramify answer" in second.stderr
    assert call("answer", known["staging"][:5], "-5").returncode == 0, "an id may be shortened, a value be an option"
    said = call("inbox")
    assert (said.stdout, said.returncode) == ("", 0) and "nothing waits" in said.stderr
    assert json.loads(call("inbox", "--json").stdout) == []
    assert json.loads(call("resume", "-q").stdout) == ["staging kept: -5", "production kept: no"]
    late = call("answer", known["staging"], "yes")
    assert late.returncode == 1 and "answered already" in late.stderr
    assert "no unfinished run has asked" in call("answer", "12345678", "yes").stderr


def test_an_answer_outlives_the_process_that_took_it(call: Call, tmp_path: Path) -> None:
    """Killed after the answer is durable, before the run goes on with it."""
    call("run", "flow.py:both")
    known = ids(call)
    kill = """
import os, signal, ramify.session
async def gone(*words, **more): os.kill(os.getpid(), signal.SIGKILL)
ramify.session.driver.drive = gone
from ramify.cli.main import main
main()
"""
    assert call("resume", f"--answer={known['production']}=no", ends=kill).returncode == -9
    assert list(ids(call)) == ["staging"]
    again = call("resume", f"--answer={known['production']}=yes")
    assert again.returncode == 1 and "answered already" in again.stderr
    done = call("resume", "-q", "--answer", "yes")
    assert json.loads(done.stdout) == ["staging dropped", "production kept: no"], done.stderr
    assert dropped(tmp_path) == ["staging"]


def test_the_inbox_is_of_all_runs_and_names_what_settles_a_doubt(call: Call) -> None:
    assert "nothing waits" in call("inbox").stderr  # no runs yet
    call("run", "flow.py:single")
    assert call("run", "flow.py:sends").returncode == -9
    assert call("resume").returncode == 4
    items = json.loads(call("inbox", "--json").stdout)
    assert [(item["kind"], item["workflow"]) for item in items] == [("question", "single"), ("doubt", "sends")]
    told = call("inbox")
    assert re.search(rf"{items[0]['id']}  +question +{items[0]['run']} .* drop the only database", told.stdout)
    done, again = items[1]["commands"]
    assert done in told.stderr.replace(" --home home", "") and again.endswith("--again")
    assert call("answer", items[1]["id"], "yes").returncode == 1
    settled = call(*done.split()[1:], "--result", "sent")
    assert settled.returncode == 0, settled.stderr
    assert [item["kind"] for item in json.loads(call("inbox", "--json").stdout)] == ["question"]


def test_a_run_that_is_done_takes_no_answer(call: Call) -> None:
    call("run", "flow.py:single")
    (run,) = json.loads(call("ls", "--json").stdout)
    call("resume", "--answer", "no")
    late = call("resume", run["id"], "--answer", "yes")
    assert late.returncode == 1 and "answered already" in late.stderr, late.stderr


def test_inbox_imports_little(call: Call, tmp_path: Path) -> None:
    call("run", "flow.py:single")
    program = (
        "import sys; from ramify.cli.main import run_command_line; run_command_line(); "
        "sys.exit(bool({'sqlalchemy', 'asyncio', 'langgraph'} & set(sys.modules)))"
    )
    words = [sys.executable, "-c", program, "--home", "home", "inbox"]  # an interpreter in which nothing is loaded
    shown = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert shown.returncode == 0 and "drop the only database" in shown.stdout, shown.stderr


STARTS = "import os, runpy; runpy.run_path(os.path.abspath('graph.py'), run_name='__main__')"
GRAPH = """
import operator
from pathlib import Path
from typing import Annotated, TypedDict
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
import ramify.graph

class State(TypedDict):
    log: Annotated[list[str], operator.add]

def asks(name):
    def node(state: State) -> dict:
        said = interrupt(f"drop the {name} database?")
        if Path("broken").exists():
            raise RuntimeError("the network is down")
        return {"log": [f"{name}: {said}", f"sure {name}: " + str(interrupt(f"sure of {name}?")) ]}
    return node

graph = StateGraph(State)
for name in ("staging", "production"):
    graph.add_node(name, asks(name))
    graph.add_edge(START, name)
from ramify.graph import saver
app = ramify.compile(graph, checkpointer=saver(), sandbox="copy", name="asker")
if __name__ == "__main__":
    with app:
        app.invoke({"log": []}, {"configurable": {"thread_id": "t"}}, INTERRUPTS)
"""


def begin(tmp_path: Path, interpreter: WarmInterpreter, stops: str = "", program: str = GRAPH) -> None:
    program = program.replace(", INTERRUPTS", stops)
    (tmp_path / "graph.py").write_text(program)
    env = {"PATH": "/usr/bin:/bin", "RAMIFY_HOME": str(tmp_path / "home")}
    ran = interpreter.run([], cwd=tmp_path, env=env, program=STARTS)
    assert ran.returncode == 0, ran.stderr


def of_thread(call: Call) -> dict[str, dict[str, Any]]:
    return {item["question"]: item for item in json.loads(call("inbox", "--json").stdout)}


def test_a_thread_with_two_interrupts_takes_each_answer_where_it_belongs(
    tmp_path: Path, warm_langgraph: WarmInterpreter
) -> None:
    call = caller(tmp_path, warm_langgraph)
    begin(tmp_path, warm_langgraph)
    items = of_thread(call)
    assert sorted(items) == ["drop the production database?", "drop the staging database?"]
    refused = call("resume", "--answer", "yes")
    assert refused.returncode == 1 and "does not name one" in refused.stderr, refused.stderr
    production = items["drop the production database?"]
    assert call("answer", production["id"], "no").returncode == 0
    assert list(of_thread(call)) == ["drop the staging database?"]
    assert "answered already" in call("answer", production["id"], "yes").stderr
    asked = call("resume", "--answer", "yes")
    assert asked.returncode == 3 and "asks 2 questions" in asked.stderr, asked.stderr
    sure = of_thread(call)
    assert sorted(sure) == ["sure of production?", "sure of staging?"]
    named = [f"--answer={sure[f'sure of {name}?']['id']}=1-{name}" for name in ("production", "staging")]
    done = call("resume", "--json", "-q", *named)
    assert sorted(json.loads(done.stdout)["result"]["log"]) == [
        "production: no", "staging: yes", "sure production: 1-production", "sure staging: 1-staging",
    ], done.stderr  # fmt: skip
    assert of_thread(call) == {}
    assert "answered already" in call("answer", production["id"], "yes").stderr


def test_an_answer_that_an_interrupt_took_before_its_node_failed_is_not_the_next_ones(
    tmp_path: Path, warm_langgraph: WarmInterpreter
) -> None:
    call = caller(tmp_path, warm_langgraph)
    begin(tmp_path, warm_langgraph)
    items = of_thread(call)
    (tmp_path / "broken").touch()
    named = [f"--answer={items[f'drop the {name} database?']['id']}={name}" for name in ("production", "staging")]
    assert call("resume", *named).returncode == 1
    (tmp_path / "broken").unlink()
    asked = call("resume")
    assert asked.returncode == 3 and "asks 2 questions" in asked.stderr, asked.stderr
    assert sorted(of_thread(call)) == ["sure of production?", "sure of staging?"]


def test_deeply_nested_answer_is_refused_and_not_stored(call: Call) -> None:
    call("run", "flow.py:single")
    (id,) = ids(call).values()
    for text in ("[" * 50_000, "[" * 50_000 + "]" * 50_000):
        for words in (["answer", id, text], ["resume", "--answer", text], ["resume", f"--answer={id}={text}"]):
            said = call(*words)
            assert said.returncode == 1 and "nested too deeply" in said.stderr, said.stderr[-300:]
            assert "Traceback" not in said.stderr
    assert list(ids(call).values()) == [id]


FAN = """
import operator
from typing import Annotated, TypedDict
from langgraph.graph import START, StateGraph
from langgraph.types import Send, interrupt
import ramify
from ramify.graph import saver

class State(TypedDict):
    log: Annotated[list[str], operator.add]

def worker(state: State) -> dict:
    return {"log": [f"{state['log'][0]}: {interrupt('worker ' + state['log'][0] + '?')}"]}

def nothing(state: State) -> None:
    interrupt("nothing?")

def twice(state: State) -> dict:
    return {"log": [f"twice: {interrupt('first?')} {interrupt('second?')}"]}

leaf = StateGraph(State).add_node("q", lambda state: {"log": [f"leaf: {interrupt('leaf?')}"]}).add_edge(START, "q")
graph = StateGraph(State).add_node("worker", worker).add_node("nothing", nothing).add_node("twice", twice)
graph.add_node("leaf", leaf.compile())
begun = lambda state: [Send("worker", {"log": [name]}) for name in "ab"] + ["nothing", "twice", "leaf"]
graph.add_conditional_edges(START, begun)
app = ramify.compile(graph, checkpointer=saver(), sandbox="copy", name="fan")
if __name__ == "__main__":
    with app:
        app.invoke({"log": []}, {"configurable": {"thread_id": "t"}}, INTERRUPTS)
"""


def test_a_task_that_took_its_answer_and_waits_for_others_asks_no_more(
    tmp_path: Path, warm_langgraph: WarmInterpreter
) -> None:
    call = caller(tmp_path, warm_langgraph)
    """LangGraph keeps its interrupt until its superstep ends."""
    begin(tmp_path, warm_langgraph, program=FAN)
    left = {"worker a?", "worker b?", "nothing?", "first?", "leaf?"}
    for said in ("worker b?", "first?", "nothing?", "leaf?", "second?"):
        open_now = of_thread(call)
        assert set(open_now) == left
        asked = call("resume", "-q", f"--answer={open_now[said]['id']}=yes")
        left = left - {said} | ({"second?"} if said == "first?" else set())
        assert asked.returncode == 3, asked.stderr
        assert all((question in asked.stderr) == (question in left) for question in [*open_now, *left]), asked.stderr
        assert call("answer", open_now[said]["id"], "no").returncode == 1
    done = call("resume", "-q", "--json", "--answer", "last")
    assert sorted(json.loads(done.stdout)["result"]["log"]) == [
        "a: last", "b: yes", "leaf: yes", "twice: yes yes",
    ], done.stderr  # fmt: skip
    assert of_thread(call) == {}


def test_a_thread_that_stops_by_its_settings_is_an_approval(tmp_path: Path, warm_langgraph: WarmInterpreter) -> None:
    call = caller(tmp_path, warm_langgraph)
    begin(tmp_path, warm_langgraph, ", interrupt_before=['staging']")
    (item,) = json.loads(call("inbox", "--json").stdout)
    assert (item["kind"], item["id"], item["commands"]) == ("approval", None, [f"ramify resume {item['run']}"])
