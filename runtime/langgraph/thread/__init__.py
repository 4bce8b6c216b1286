"""A LangGraph thread as a Ramify run: where its world stands, and what its nodes do to it.

Start at `graph_run.py`: `GraphRun` holds the branches and the journal of one thread. `session.py` holds the open runs
of one app. `attempt.py` and `standing_attempt.py` are one attempt at a node. `positions.py`, `channels.py` and
`supersteps.py` say where a thread stands; `supersteps.py` also has the forks for what a node's code runs.
`lost_states.py` and `rewound_checkpointer.py` recompute lost files. `stored_thread.py` and `thread_fork.py` work on
the database without the user's program. `portal.py` is the event loop on which all of it runs.
"""
