"""Reads LangGraph graphs. Start at `graph_reader.read_graph`, which returns a `Spec`.

`nodes` reads what a node's code does, and `graph_checks` refuses graphs that LangGraph would fail on at run time.
"""
