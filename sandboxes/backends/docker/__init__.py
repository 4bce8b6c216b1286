"""Worlds in containers of a Docker Engine on this machine."""
