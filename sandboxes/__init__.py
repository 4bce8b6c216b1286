"""Worlds: live sandboxes that run commands and seal themselves into snapshots.

Start with `contract.py`: `World`, `WorldSpec` and `Backend`. `selection.open_backend` opens a backend by name, and
`doctor.py` reports what each backend can do on this machine.

    agent/          runs inside worlds, and in two processes beside the host; imports only the stdlib and linux/
    backends/       namespaces, docker, copy
    egress/         makes the network connections that a world may have
    host/           drives worlds: connections to agents, the life of a world, its scratch folders
    linux/          plain Linux: system calls, mounts, control groups, seccomp, ptrace; imports only the stdlib
"""
