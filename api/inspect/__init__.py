"""Reading recorded runs: one read model, which the command line, the terminal browser and the web page render.

Start with `home`: a `Home` opens the database and the snapshots, and finds runs and states by name. `history` reads a
run's rows into branches and moments, `state` one checkpoint with its changes, `inbox` what waits for a person.
`checkpoint_graph`, `patch`, `plan_outcomes` and `model_calls` derive what is shown of them; `facts`, `text`
and `values` put it into words. Only `inbox.store_answer` writes.
"""
