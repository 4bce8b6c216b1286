"""The docker backend: worlds in containers of a Docker Engine on this machine. `RootFs` makes images for it."""

from ramify.sandboxes.backends.docker.backend import DockerBackend
from ramify.sandboxes.backends.docker.host_programs import RootFs

__all__ = ["DockerBackend", "RootFs"]
