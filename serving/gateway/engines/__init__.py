"""The engines behind the gateway.

`upstream.Upstream` is one engine over HTTP, `replicas.Replica` what the gateway knows of it, and
`service_time.ServiceModel` its speed. `supervisor` starts engines of ours and restarts those that die or hang;
`liveness` reads their signs of life. The `constraint_*` modules refuse output constraints (schemas, patterns,
grammars) that would crash or block an engine.
"""
