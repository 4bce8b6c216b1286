"""Worlds in Linux namespaces, as any user: overlayfs trees, own processes, no network."""
