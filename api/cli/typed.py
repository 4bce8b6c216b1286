"""Commands that a message tells the user to type: as they have to be typed to find the runs that it speaks of."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

_COMMAND = re.compile(r"`ramify (?=[a-z])")


@dataclass(slots=True)
class Typed:
    """What a command line said of the place of its runs, none of which the next one knows by itself."""

    home: Path | None = None
    database: str | None = None

    def complete(self, text: str) -> str:
        """The text, each command in it with these options. Nobody who words a message has to know of them."""
        if "`ramify " not in text or (self.home is None and self.database is None):
            return text
        words = ["`ramify"]
        if self.home is not None:
            words += ["--home", shlex.quote(str(self.home))]
        if self.database is not None:
            words += ["--database", shlex.quote(_without_password(self.database))]
        return _COMMAND.sub(lambda _: f"{' '.join(words)} ", text)


def _without_password(address: str) -> str:
    from ramify.runtime.errors import StoreError
    from ramify.runtime.store.address import parse

    try:
        return str(parse(address)) if "://" in address and not address.startswith("sqlite") else address
    except StoreError:
        return "ADDRESS"
