"""Ports of this machine for programs that are about to listen."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path

_given: set[int] = set()


def free_port() -> int:
    """Return a port that stays free until a program listens at it, which may take seconds to start: it is none of
    those that the kernel gives to connections."""
    kernels = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    others = range(10_000, kernels) if kernels > 11_000 else range(10_000, 65_536)
    while True:
        port = secrets.choice(others)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:  # it is taken
                continue
        if port not in _given:
            _given.add(port)
            return port
