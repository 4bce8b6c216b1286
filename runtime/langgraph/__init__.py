"""LangGraph graphs whose nodes act on worlds. The position of the world is one more channel of the graph.

`app/` is what `ramify.compile` returns, `node/` is one node of it, `thread/` is a LangGraph thread as a Ramify run,
and `checkpointer/` stores checkpoints. Each imports only those after it. Start at `app/world_app.py`. `compat.py` has
all private names of LangGraph. Nothing is imported here: commands that read a thread load no graph.
"""
