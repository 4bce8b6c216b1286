"""Steps and workflows where they cannot be: a workflow in a step, either of them in a node of LangGraph, or in a
workflow with nobody who waits for it."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ramify.compiler.errors import WorkflowError
from ramify.compiler.frontend.resolve import step_info, workflow_info
from ramify.compiler.frontend.sources import Function, within


def refuse_workflows(step: str, function: Function, nodes: Iterable[ast.AST]) -> None:
    """Raises WorkflowError where a step calls a workflow: a step is one operation on one world."""
    for node in within(nodes):
        if isinstance(node, ast.Call) and workflow_info(function.names(node.func)) is not None:
            raise WorkflowError(
                f"step {step} calls the workflow {ast.unparse(node.func)}",
                where=function.where(node),
                mend="call it from a workflow, or put what the two share into a plain async function",
            )


def refuse_calls_of_ours(node: str, function: Function) -> None:
    """Raises WorkflowError where a LangGraph node calls a step or a workflow: those belong to a workflow's run."""
    for call in ast.walk(function.node):
        if not isinstance(call, ast.Call):
            continue
        found = function.names(call.func)
        kind = "step" if step_info(found) else "workflow" if workflow_info(found) else None
        if kind is not None:
            raise WorkflowError(
                f"node {node} calls the {kind} {ast.unparse(call.func)}, which is for workflows",
                where=function.where(call),
                mend="call a plain function, or add the step itself as a node",
            )


def refuse_unentered(function: Function, call: ast.Call) -> None:
    """Raises WorkflowError: a fork has branches inside its block alone."""
    called = f"{ast.unparse(call.func)}(...)"
    raise WorkflowError(
        f"{called} is not entered, so nothing is forked",
        where=function.where(call),
        mend=f"write `async with {called} as branches:`, and what is done on them inside",
    )


def refuse_dropped(function: Function, call: ast.Call) -> None:
    """Raises WorkflowError: what is async and awaited by nobody never begins."""
    called = f"{ast.unparse(call.func)}(...)"
    raise WorkflowError(
        f"{called} is called without `await`, and would never run",
        where=function.where(call),
        mend=f"write `await {called}`, or hand it to `asyncio.gather` with what is to run beside it",
    )
