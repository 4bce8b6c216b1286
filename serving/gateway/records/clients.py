"""Names of workflows, groups and apps, kept apart by the client that uses them.

Several clients with keys of their own share a gateway. None may join, cancel or see the runs of another, or teach the
analyzer of its apps. So within the gateway each name begins with its client's (`http_guard.Keys.owner`).
"""

from __future__ import annotations

from dataclasses import replace

from ramify.serving.protocol.tags import SLOTags

_NAMES = ("compound_id", "fork_group", "app_id")


def owned_name(name: str, client: str) -> str:
    """A client's name for something, as the gateway has it."""
    return f"{client}/{name}" if client else name


def owned(tags: SLOTags, client: str) -> SLOTags:
    """The tags with the gateway's names. Raises BadTags for a name that is then too long."""
    if not client:
        return tags

    def mine(name: str | None) -> str | None:
        return None if name is None else owned_name(name, client)

    return replace(
        tags, compound_id=mine(tags.compound_id), fork_group=mine(tags.fork_group), app_id=mine(tags.app_id)
    )


def told(name: str, client: str) -> str:
    """The name as the client has it."""
    return name.removeprefix(f"{client}/") if client else name


def belongs(name: str, client: str) -> bool:
    """Is it a name of this client's?"""
    return not client or name.startswith(f"{client}/")


def told_tags(tags: SLOTags, client: str) -> dict[str, object]:
    """The tags as the client has them."""
    said: dict[str, object] = dict(tags.to_xargs())
    for name in _NAMES:
        if isinstance(value := said.get(name), str):
            said[name] = told(value, client)
    return said
