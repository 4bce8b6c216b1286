"""Options and arguments of commands that take a path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


class NamedPath(click.Path):
    """Refuses links without end. Refuses "", too: it is the value of an unset variable, and would be the current
    folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not value:
            self.fail("the name is empty", param, ctx)
        try:
            Path(value).resolve()
        except RuntimeError:  # before Python 3.13, which fails where the path is used
            self.fail(f"{value}: a link that leads to itself", param, ctx)
        except (OSError, ValueError):  # said where the path is used
            pass
        return super().convert(value, param, ctx)
