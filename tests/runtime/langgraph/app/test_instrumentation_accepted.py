"""Graphs that LangGraph runs are not refused for what the compiler cannot see, and run as in plain LangGraph."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from types import ModuleType
from typing import Annotated, Any, Literal, TypedDict

import pytest
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, RetryPolicy, Send, interrupt

CONFIG: Any = {"configurable": {"thread_id": "1"}}


class State(TypedDict):
    seen: Annotated[list[str], operator.add]


class One(TypedDict):
    x: int


def go(state: State) -> Any:
    return Command(goto="far", update={"seen": ["go"]})


def parent(state: State) -> Any:
    return Command(graph=Command.PARENT, goto="far", update={"seen": ["child"]})


def says(name: str) -> Callable[[Any], State]:
    return lambda state: {"seen": [name]}


class Router:
    def go(self, state: State) -> Any:
        return go(state)

    def __call__(self, state: State) -> Any:
        return go(state)

    async def ago(self, state: State) -> Any:
        return go(state)


def wrapped(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(state: State) -> Any:
        function(state)
        return go(state)

    return wrapper


HELPERS = ModuleType("helpers")
HELPERS.go = go  # type: ignore[attr-defined]
NAME = "go"
TABLE: dict[str, Any] = {"go": go}
RUNNABLE: Any = RunnableLambda(go)
ROUTER = Router()
CHILD = StateGraph(State).add_node("child", parent).add_edge(START, "child").compile()


def child_factory() -> Any:
    return StateGraph(State).add_node("made", parent).add_edge(START, "made").compile()


def annotated(state: State) -> Command[Literal["far"]]:
    return Command(goto="far", update={"seen": ["annotated"]})


def sends(state: State) -> Any:
    return Command(goto=[Send("far", {"seen": ["one"]}), Send("far", {"seen": ["two"]})])


LEADING: dict[str, Any] = {
    "a function": lambda state: go(state),
    "an attribute of a module": lambda state: HELPERS.go(state),
    "a bound method": ROUTER.go,
    "a method of an object": lambda state: ROUTER.go(state),
    "an object that is called": ROUTER,
    "a partial": functools.partial(go),
    "a runnable": RUNNABLE,
    "a runnable that is invoked": lambda state: RUNNABLE.invoke(state),
    "a runnable that is returned": lambda state: RUNNABLE,
    "a sequence": RunnableLambda(lambda state: state) | RUNNABLE,
    "a table": lambda state: TABLE["go"](state),
    "getattr": lambda state: getattr(HELPERS, NAME)(state),
    "a decorator": wrapped(says("wrapped")),
    "a graph as the node": CHILD,
    "a graph that is invoked": lambda state: CHILD.invoke(state),
    "a graph that a function makes": lambda state: child_factory().invoke(state),
    "an annotation": annotated,
    "sends": sends,
    "a list of commands": lambda state: [go(state), {"seen": ["more"]}],
}


def both(build: Callable[[], Any], compile_graph: Any, run: Callable[[Any], Any], **options: Any) -> Any:
    """Return what a run shows, after checking that it equals the plain graph's."""

    def seen(app: Any) -> Any:
        try:
            return run(app)
        except Exception as error:  # noqa: BLE001  # whatever it is: the plain graph has to raise the same
            return type(error), str(error).splitlines()[0]

    plain = seen(build().compile(checkpointer=InMemorySaver(), **options))
    assert seen(compile_graph(build(), checkpointer=InMemorySaver(), **options)) == plain
    return plain


def invoked(app: Any) -> Any:
    return app.invoke({"seen": []}, CONFIG)


@pytest.mark.parametrize("way", LEADING)
def test_a_node_that_hands_on_by_its_code(way: str, compile_graph: Any) -> None:
    def build() -> Any:
        graph = StateGraph(State).add_node("first", LEADING[way]).add_node("far", says("far"))
        return graph.add_edge(START, "first")

    assert both(build, compile_graph, invoked)["seen"][-1] == "far"


async def test_an_async_method_hands_on(compile_graph: Any) -> None:
    graph = StateGraph(State).add_node("first", ROUTER.ago).add_node("far", says("far")).add_edge(START, "first")
    assert (await compile_graph(graph).ainvoke({"seen": []}))["seen"] == ["go", "far"]


def test_defaults_of_nodes_beside_a_nodes_own(compile_graph: Any) -> None:
    def fails(state: State) -> State:
        raise ValueError("no")

    def build() -> Any:
        graph = StateGraph(State).add_node("own", fails, error_handler=says("own handler"))
        graph.add_node("other", fails, retry_policy=RetryPolicy(max_attempts=1)).add_edge(START, "own")
        return graph.add_edge("own", "other").set_node_defaults(error_handler=says("default handler"))

    assert "own handler" in both(build, compile_graph, invoked)["seen"]


def test_defaults_that_no_node_needs(compile_graph: Any) -> None:
    def fails(state: State) -> State:
        raise ValueError("no")

    def build() -> Any:
        graph = StateGraph(State).add_node("own", fails, error_handler=says("own handler")).add_edge(START, "own")
        return graph.set_node_defaults(error_handler=says("default handler"))

    assert both(build, compile_graph, invoked)["seen"] == ["own handler"]


def cycle() -> Any:
    graph = StateGraph(State).add_node("chat", says("chat")).add_node("human", says("human"))
    return graph.add_edge(START, "chat").add_edge("chat", "human").add_edge("human", "chat")


@pytest.mark.parametrize("options", [{"interrupt_before": ["human"]}, {"interrupt_after": "*"}])
def test_a_chat_that_its_interrupts_end(options: Any, compile_graph: Any) -> None:
    def chat(app: Any) -> Any:
        return [app.invoke(given, CONFIG)["seen"] for given in ({"seen": []}, None, {"seen": ["more"]})]

    assert len(both(cycle, compile_graph, chat, **options)) == 3


def test_a_chat_that_is_interrupted_when_it_runs(compile_graph: Any) -> None:
    def chat(app: Any) -> Any:
        first = app.invoke({"seen": []}, CONFIG, interrupt_before=["human"])
        return first, app.invoke(None, CONFIG, interrupt_after="*")

    both(cycle, compile_graph, chat)


def test_a_chat_whose_node_asks(compile_graph: Any) -> None:
    def build() -> Any:
        def human(state: State) -> State:
            return {"seen": [interrupt("what?")]}

        graph = StateGraph(State).add_node("chat", says("chat")).add_node("human", human)
        return graph.add_edge(START, "chat").add_edge("chat", "human").add_edge("human", "chat")

    def chat(app: Any) -> Any:
        app.invoke({"seen": []}, CONFIG)
        return app.invoke(Command(resume="hello"), CONFIG)["seen"]

    assert both(build, compile_graph, chat) == ["chat", "hello", "chat"]


@pytest.mark.parametrize("bound", [False, True])
def test_a_cycle_that_the_recursion_limit_ends(bound: bool, compile_graph: Any) -> None:
    def run(app: Any) -> Any:
        if bound:
            return app.with_config(recursion_limit=4).invoke({"seen": []}, CONFIG)
        return app.invoke({"seen": []}, {**CONFIG, "recursion_limit": 4})

    kind, said = both(cycle, compile_graph, run)
    assert kind.__name__ == "GraphRecursionError" and "limit of 4" in said


def test_a_node_without_edges_that_a_caller_goes_to(compile_graph: Any) -> None:
    def build() -> Any:
        graph = StateGraph(State).add_node("first", says("first")).add_node("hidden", says("hidden"))
        return graph.add_edge(START, "first")

    def run(app: Any) -> Any:
        return invoked(app)["seen"], app.invoke(Command(goto="hidden"), CONFIG)["seen"]

    assert both(build, compile_graph, run) == (["first"], ["first", "hidden"])


def test_a_deferred_node_and_a_table_of_ends(compile_graph: Any) -> None:
    def build() -> Any:
        graph = StateGraph(State)
        for name in "abc":
            graph.add_node(name, says(name))
        graph.add_node("last", says("last"), defer=True).add_edge(START, "a").add_edge(START, "b")
        graph.add_conditional_edges("a", lambda state: "on", {"on": "c", "off": END})
        return graph.add_edge("b", "last").add_edge("c", "last")

    assert both(build, compile_graph, invoked)["seen"][-1] == "last"


def test_two_nodes_whose_decorator_drops_what_they_write(compile_graph: Any) -> None:
    def enabled(flag: bool) -> Any:
        def decorate(function: Any) -> Any:
            @functools.wraps(function)
            def wrapper(state: One) -> Any:
                return function(state) if flag else {}

            return wrapper

        return decorate

    def build() -> Any:
        @enabled(True)
        def left(state: One) -> One:
            return {"x": 1}

        @enabled(False)
        def right(state: One) -> One:
            return {"x": 2}

        graph = StateGraph(One).add_node("left", left).add_node("right", right)
        return graph.add_edge(START, "left").add_edge(START, "right")

    assert both(build, compile_graph, lambda app: app.invoke({"x": 0}, CONFIG)) == {"x": 1}
