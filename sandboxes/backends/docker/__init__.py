"""The docker backend: worlds in containers of a Docker Engine on this machine."""
