"""Scheduling policies: which requests an engine works on next. Pure code: no clock, no I/O.

Start at `types`: a policy maps a `View` of the requests, and the time, to a `Verdict`. The same policy object runs
in the gateway, in vLLM's scheduler and in replay. `registry` lists the policies by name; add a new one there.
`cost_model` says what a request costs and what it is worth.

Policies: `concord` (the default; `stream_lending` lets its streams lend their slots), `andes` (for engines that serve
streams alone), `calm` (the thesis's algorithm), `edf` (earliest deadline first, the shortest). `placement` chooses a
replica. `kv_retention` chooses the contexts that stay in KV while their programs wait. `refusals` says
which calls are refused, and when to test an estimate that refuses them.
"""
