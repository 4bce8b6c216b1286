"""Options and arguments of commands that take a path."""

from __future__ import annotations

from typing import Any

import click


class NamedPath(click.Path):
    """Refuses "", the value of an unset variable, which would be the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(value, param, ctx) if value else self.fail("the name is empty", param, ctx)
