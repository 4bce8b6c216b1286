"""What runs inside a world, and the two processes beside the host that make worlds. Imports only the stdlib and
linux/.

`fork_server.py` forks the agents of worlds, `mount_server.py` mounts the worlds' trees, and `agent.py` is a world's
first process: it answers the host's messages (`messages.py`) and supervises shell and processes (`supervisor.py`). In
a container, `container.py` starts the agent.
"""
