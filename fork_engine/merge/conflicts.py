"""How merge conflicts are answered: by a strategy, or by the caller's function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ramify.fork_engine.errors import ForkEngineError
from ramify.fork_engine.types import Conflict, MergeStrategy, Resolver

Sides = tuple[bytes | None, bytes | None, bytes | None]
"""What base, ours and theirs hold: the bytes of a file of at most 64 MiB, a link's target, a variable's value; None
for anything else."""


@dataclass(slots=True)
class ConflictHandler:
    """Answers conflicts and collects those that stay unresolved in `unresolved`."""

    strategy: MergeStrategy | Resolver
    unresolved: list[Conflict] = field(default_factory=list)

    def answer(
        self, conflict: Conflict, sides: Callable[[], Sides], *, default: MergeStrategy = MergeStrategy.FAIL
    ) -> bytes | MergeStrategy:
        """Return the bytes to put there, or OURS, THEIRS or UNION. An unresolved conflict is answered with OURS, so
        that the merge goes on and finds all conflicts.

        `default`: the answer if nobody gives one, for paths such as caches on which no merge should fail.
        """
        answer = self.strategy if isinstance(self.strategy, MergeStrategy) else self._ask(conflict, sides())
        if answer is MergeStrategy.FAIL:
            answer = default
        return self.leave_unresolved(conflict) if answer is MergeStrategy.FAIL else answer

    def _ask(self, conflict: Conflict, sides: Sides) -> bytes | MergeStrategy:
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
                f'{conflict.path}: asked how to resolve "{conflict.kind.value}", the merge\'s function returned '
                f"{answer!r}. It must return bytes or a MergeStrategy"
            ) from None

    def leave_unresolved(self, conflict: Conflict) -> MergeStrategy:
        """Record the conflict as unresolved: the merge will fail."""
        self.unresolved.append(conflict)
        return MergeStrategy.OURS
