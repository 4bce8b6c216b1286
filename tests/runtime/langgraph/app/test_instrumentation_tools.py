"""Tools that take a sandbox, in a `ToolNode` and in LangChain's agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolCall, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, ToolRuntime
from pydantic import PrivateAttr

import ramify.graph
from ramify import Sandbox, SyncSandbox
from ramify.runtime.errors import NotInARun

CONFIG: Any = {"configurable": {"thread_id": "1"}}


def make_tools() -> list[BaseTool]:
    @tool
    def write(path: str, text: str, sandbox: SyncSandbox) -> str:
        """Write a file."""
        (sandbox.path / path).write_text(text)
        return "written"

    @tool
    async def count(sandbox: Sandbox) -> str:
        """Count the files."""
        return (await sandbox.run("ls | wc -l")).stdout.strip()

    return [write, count]


def call(name: str, number: int, **args: Any) -> ToolCall:
    return ToolCall(name=name, args=args, id=f"call{number}")


class Script(BaseChatModel):
    """A model that says these messages in turn, and keeps the tools that it was shown."""

    says: list[AIMessage]
    _shown: list[dict[str, Any]] = PrivateAttr(default_factory=list)
    _at: int = PrivateAttr(default=0)

    @property
    def _llm_type(self) -> str:
        return "script"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Any:
        self._shown = [one.tool_call_schema.model_json_schema() for one in tools]
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **_: Any,
    ) -> ChatResult:
        said, self._at = self.says[self._at], self._at + 1
        return ChatResult(generations=[ChatGeneration(message=said)])


async def test_an_agents_tools_act_on_its_world_and_the_model_does_not_see_it(compile_graph: Any) -> None:
    model = Script(
        says=[
            AIMessage("", tool_calls=[call("write", 1, path="a", text="A"), call("write", 2, path="b", text="B")]),
            AIMessage("", tool_calls=[call("count", 3)]),
            AIMessage("done"),
        ]
    )
    app = compile_graph(create_agent(model, make_tools()), checkpointer=InMemorySaver())
    messages = (await app.ainvoke({"messages": [("user", "go")]}, CONFIG))["messages"]
    results = {one.tool_call_id: one.content for one in messages if isinstance(one, ToolMessage)}
    assert results == {"call1": "written", "call2": "written", "call3": "3"}
    assert ramify.graph.read(app, CONFIG, "b") == b"B"
    assert [sorted(shown["properties"]) for shown in model._shown] == [["path", "text"], []]


def test_a_tool_node_in_a_graph(compile_graph: Any) -> None:
    graph = StateGraph(MessagesState).add_node("tools", ToolNode(make_tools()[:1])).add_edge(START, "tools")
    app = compile_graph(graph, checkpointer=InMemorySaver())
    asked = AIMessage("", tool_calls=[call("write", 1, path="a", text="A")])
    assert app.invoke({"messages": [asked]}, CONFIG)["messages"][-1].content == "written"
    assert ramify.graph.read(app, CONFIG, "a") == b"A"


def test_such_a_tool_outside_a_run_says_so(compile_graph: Any) -> None:
    tools = make_tools()
    compile_graph(create_agent(Script(says=[]), tools))
    with pytest.raises(NotInARun, match="tool 'write'"):
        tools[0].invoke({"path": "a", "text": "A"})


def test_a_tool_of_a_tool_node_that_a_node_calls_sees_the_graphs_state_only(compile_graph: Any) -> None:
    seen = list[Any]()

    @tool
    def look(runtime: ToolRuntime) -> str:
        """Look."""
        seen.append(sorted(runtime.state))
        return "seen"

    def write(state: MessagesState, sandbox: SyncSandbox) -> None:
        (sandbox.path / "file").touch()

    def node(state: MessagesState) -> Any:
        return ToolNode([look]).invoke([{**call("look", 1), "type": "tool_call"}])

    graph = StateGraph(MessagesState).add_sequence([write, node]).add_edge(START, "write")
    compile_graph(graph).invoke({"messages": []})
    assert seen == [["messages"]]
