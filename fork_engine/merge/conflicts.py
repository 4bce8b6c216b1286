"""How merge conflicts are answered: by a strategy, or by the caller's function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ramify.fork_engine.errors import ForkEngineError
from ramify.fork_engine.types import Conflict, MergeStrategy, Resolver

Sides = tuple[bytes | None, bytes | None, bytes | None]
"""What base, ours and theirs hold: a file's bytes, a link's target, a variable's value; None for anything else."""


@dataclass(slots=True)
class ConflictHandler:
    """Answers conflicts and collects those that stay unresolved in `left`."""

    strategy: MergeStrategy | Resolver
    left: list[Conflict] = field(default_factory=list)

    def answer(
        self, conflict: Conflict, sides: Callable[[], Sides], *, idle: MergeStrategy = MergeStrategy.FAIL
    ) -> bytes | MergeStrategy:
        """Return the bytes to put there, or OURS, THEIRS or UNION. An unresolved conflict is answered with OURS, so
        that the merge goes on and finds all conflicts.

        `idle`: the answer if nobody gives one, for paths such as caches on which no merge should fail.
        """
        answer = self.strategy if isinstance(self.strategy, MergeStrategy) else self._asked(conflict, sides())
        if answer is MergeStrategy.FAIL:
            answer = idle
        return self.leave(conflict) if answer is MergeStrategy.FAIL else answer

    def _asked(self, conflict: Conflict, sides: Sides) -> bytes | MergeStrategy:
        """Call the caller's function. It may return a strategy's name. Raises `ForkEngineError` for any other value:
        taking it as "ours" would lose work."""
        assert not isinstance(self.strategy, MergeStrategy)
        answer = self.strategy(conflict, *sides)
        if isinstance(answer, bytes):
            return answer
        try:
            return MergeStrategy(answer)
        except ValueError:
            raise ForkEngineError(
                f'{conflict.path}: asked how to settle "{conflict.kind.value}", the merge\'s function answered '
                f"{answer!r}. Let it return bytes or a MergeStrategy"
            ) from None

    def leave(self, conflict: Conflict) -> MergeStrategy:
        """Record the conflict as unresolved: the merge will fail."""
        self.left.append(conflict)
        return MergeStrategy.OURS
