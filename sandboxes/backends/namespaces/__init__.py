"""The default backend: worlds in Linux namespaces, for any user. Trees are overlays, and there is no network."""

from ramify.sandboxes.backends.namespaces.backend import NamespaceBackend

__all__ = ["NamespaceBackend"]
