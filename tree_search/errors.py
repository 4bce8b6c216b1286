"""The errors of the package `ramify.tree_search`. `SearchError` is the root of the tree."""

from __future__ import annotations


class SearchError(Exception):
    """The root of this package's errors."""


class NothingProposed(SearchError):
    """The policy proposed no action at the root, so the search has no candidate."""


class NoScore(SearchError):
    """A turn ended without a score, and the search has no `score` function."""
