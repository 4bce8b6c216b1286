"""Options of commands that take a time."""

from __future__ import annotations

from typing import Any

import click


def duration_option(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """The callback of an option that takes a duration, such as 90, 90s or 5m."""
    from ramify.runtime.durations import seconds

    try:
        return None if value is None else seconds(value)
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from error


class Seconds(click.FloatRange):
    """The type of an option that takes a number of seconds, within bounds. NaN lies within every bound of
    `click.FloatRange`, and no timer takes it, nor a time that is too long."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from ramify.runtime.durations import seconds

        found = super().convert(value, param, ctx)
        try:
            return seconds(found, zero=True)
        except ValueError as error:
            self.fail(str(error), param, ctx)
