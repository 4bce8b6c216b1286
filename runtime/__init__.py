"""Runs a compiled plan: executes steps in worlds, journals every operation, and resumes after a crash.

Packages, lowest layer first. Each imports only packages above it in this list.

- `errors`, `records`, `events`, `durations`: shared data types.
- `user_code`: loads the user's code, and runs it: call sites, scope, sandbox object, threads.
- `codec`: values to JSON and back, type names, digests.
- `store`: the database on SQLite or PostgreSQL. Start at `store/run_store.py`.
- `worlds`: live worlds, recovery of lost snapshots, garbage collection.
- `journal`: a run's journal in memory, open questions, forks of runs, references. Start at `journal/journal.py`.
- `estimates`: what recorded runs tell the compiler and the cost model.
- `reuse`: results of equal operations are used again.
- `effects`: irreversible steps: intent, result, doubt, compensation.
- `execution`: the run itself. Start at `execution/run.py`, then `steps.py`, `forks.py`, `driver.py`.
- `langgraph`: the same for LangGraph graphs.

The runtime imports nothing of the compiler except the plan, and knows neither vLLM nor mount calls.
"""
