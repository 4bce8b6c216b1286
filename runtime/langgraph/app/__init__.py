"""The app that `ramify.compile` returns for a LangGraph graph.

Start at `world_app.py`: `WorldApp` keeps LangGraph's interface, and `instrument` makes one from a compiled graph.
`instrumentation.py` replaces the nodes and gives tools their sandbox, `time_travel.py` forks threads at checkpoints
inside subgraphs, and `rerun_node.py` recomputes lost files by running one node again.
"""
