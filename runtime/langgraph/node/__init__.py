"""Nodes that act on worlds, and what a node's own code starts.

Start at `world_node.py`: `WorldNode` stands in a LangGraph graph where the user's node stood, and runs the user's
function (`node_code.py`) as LangGraph would. `node_execution.py` is one execution of it, `node_outside_graph.py`
calls one node alone, and `task_config.py` reads from a node's config which task it is. `nested_graphs.py` and
`task_calls.py` follow the graphs and `@task`s that a node's code calls.
"""
