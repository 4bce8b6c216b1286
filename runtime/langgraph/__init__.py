"""LangGraph over worlds: the environment as one more channel. Imported only where a graph is compiled."""
