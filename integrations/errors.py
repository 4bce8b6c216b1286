"""The errors of the package `ramify.integrations`. `IntegrationError` is the root of the tree."""

from __future__ import annotations


class IntegrationError(Exception):
    """The root of this package's errors."""


class FileAccessFailed(IntegrationError):
    """A file of a world cannot be read or written. `reason` is one of `missing`, `folder`, `not_folder`,
    `permission`, `special` (a FIFO, a device), `too_large`, `no_path` and `other`."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class UnknownWorld(IntegrationError):
    """No open world has this name."""


class NotStarted(IntegrationError):
    """The environment was not started, or was stopped."""
