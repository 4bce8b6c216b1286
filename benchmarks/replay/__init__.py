"""Replay: vLLM's own scheduler and the production plug-in on a virtual clock, beside every baseline.

Used by `benchmarks/goodput.py`, `fidelity.py`, `streams.py` and `tool_calls.py`; not installed. Start at `types` and
`simulation`. `inputs` makes programs from traces, `baselines` has the schedulers, `bounds` upper bounds, `evaluation`
the list of replays, `report` the tables and plots, `fidelity` the comparison with measured runs. `pool` runs replays
in `worker` processes, and `results` stores what they find. `stream_runs` has the schedulers of streams and
what a replay of them gives.
"""
