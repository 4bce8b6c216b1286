"""What becomes of a conflict: by a strategy, or by asking whoever merges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ramify.fork_engine.errors import ForkEngineError
from ramify.fork_engine.types import Conflict, MergeStrategy, Resolver

Sides = tuple[bytes | None, bytes | None, bytes | None]
"""What base, ours and theirs hold: a file's bytes, a link's target, a variable's value; None for anything else."""


@dataclass(slots=True)
class ConflictHandler:
    """Answers each conflict, and keeps those that nobody settles."""

    strategy: MergeStrategy | Resolver
    left: list[Conflict] = field(default_factory=list)

    def answer(
        self, conflict: Conflict, sides: Callable[[], Sides], *, idle: MergeStrategy = MergeStrategy.FAIL
    ) -> bytes | MergeStrategy:
        """Bytes to put there, or OURS, THEIRS, UNION. What is left is answered OURS, so that all conflicts are found.

        `idle`: the answer where nobody gives one, for a path that tools leave behind and no merge should fail on.
        """
        answer = self.strategy if isinstance(self.strategy, MergeStrategy) else self._asked(conflict, sides())
        if answer is MergeStrategy.FAIL:
            answer = idle
        return self.leave(conflict) if answer is MergeStrategy.FAIL else answer

    def _asked(self, conflict: Conflict, sides: Sides) -> bytes | MergeStrategy:
        """What the caller's function says; `MergeStrategy` by its name, too. Raises `ForkEngineError` for no answer:
        taken for "ours" it would lose work."""
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
        """Nothing settles it: the merge will fail."""
        self.left.append(conflict)
        return MergeStrategy.OURS
