"""Errors of the web page.

WebError
├── CannotListen          the port is taken or not allowed
├── PartsMissing          starlette or uvicorn is not installed
└── NotThere              the run has no such row, state or call; the page shows it
"""

from __future__ import annotations


class WebError(Exception):
    """Any error of the page's server."""


class CannotListen(WebError):
    """No listening socket could be opened."""


class PartsMissing(WebError):
    """The extra `web` is not installed."""


class NotThere(WebError):
    """The run does not have what the page asked for."""
