"""Replay: vLLM's own scheduler and the production plug-in on a virtual clock, with every baseline beside them."""
