"""The gateway: an OpenAI-compatible server that lets model calls into engines by their deadlines.

Start at `http.app.create_gateway` (the ASGI application) and `gateway.Gateway` (what its calls share). A call is
read by `http.endpoint`, becomes a `records.calls.Call`, waits in `admission` for a slot in the policy's order, and is
sent to an engine by `engines`. `server` (`LocalGateway`, `serve`) runs all this with `settings`;
`startup` starts the parts.

Imports go one way: errors, sse, dialects, records, engines, admission, gateway, http, startup, server.
"""
