"""A coding agent as a LangGraph graph, over copy-on-write worlds."""
