"""What can go wrong with the page.

WebError
├── CannotListen          the port is taken, or may not be had
├── PartsMissing          starlette or uvicorn is not installed
└── NotThere              no such row, state or call in the run; the page is told
"""

from __future__ import annotations


class WebError(Exception):
    """Anything that the page's server reports."""


class CannotListen(WebError):
    """No listening socket could be had."""


class PartsMissing(WebError):
    """The extra `web` is not installed."""


class NotThere(WebError):
    """What the page asked for is not in the run."""
