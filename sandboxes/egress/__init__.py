"""Egress: a broker outside a world makes the network connections that the world's allow-list permits.

A world has no route. It has one listening socket, whose connections this process accepts. Read in this order:

- `settings.py`: what is allowed (names, patterns, addresses, ports), headers that the broker adds to requests and the
  world never sees, and `Egress`, both together.
- `hosts.py`, `connections.py`: from an allowed name to a connection with a checked address.
- `connection_log.py`: what became of every connection.
- `broker.py`: accepts connections, and cuts them when the policy changes. `http_proxy.py`, `http_messages.py` and
  `socks.py` are the protocols that it speaks.
"""
