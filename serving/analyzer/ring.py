"""The latest observations as columns of fixed memory: what the length model is refitted from, and what is saved."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ramify.serving.analyzer.features import Matrix
from ramify.serving.analyzer.lengths import Sample


class Ring:
    """Holds the last `size` rows. Not for several threads at once: `sample` copies, so that a fit can go on."""

    def __init__(self, size: int, width: int) -> None:
        self.total = 0  # ever added
        self._rows = np.zeros((size, width), dtype=np.float32)
        self._lengths = np.zeros(size)
        self._cut = np.zeros(size, dtype=np.bool_)
        self._groups = np.zeros(size, dtype=np.int32)
        self._keys = np.zeros(size, dtype=np.int64)
        self._names: dict[str, int] = {}

    def __len__(self) -> int:
        return min(self.total, len(self._rows))

    def add(self, row: Matrix, length: float, *, cut: bool, group: int, key: str) -> None:
        at = self.total % len(self._rows)
        self._rows[at], self._lengths[at], self._cut[at] = row, length, cut
        self._groups[at] = group & 0x7FFFFFFF
        if len(self._names) > 2 * len(self._rows):
            self._forget_names()
        self._keys[at] = self._names.setdefault(key, len(self._names))
        self.total += 1

    def _forget_names(self) -> None:
        """Drop the names that no row has any more: whoever asks chooses them, so there is no end of them."""
        names = list(self._names)
        used, self._keys[:] = np.unique(self._keys, return_inverse=True)
        self._names = {names[i]: at for at, i in enumerate(used.tolist())}

    def sample(self) -> Sample:
        held = slice(0, len(self))
        names = list(self._names)
        return Sample(
            rows=self._rows[held].copy(),
            lengths=self._lengths[held].copy(),
            cut=self._cut[held].copy(),
            groups=self._groups[held].copy(),
            keys=tuple(names[i] for i in self._keys[held].tolist()),
        )

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """Everything, for a checkpoint."""
        held = slice(0, len(self))
        return {
            "rows": self._rows[held].copy(),
            "lengths": self._lengths[held].copy(),
            "cut": self._cut[held].copy(),
            "groups": self._groups[held].copy(),
            "keys": self._keys[held].copy(),
            "names": np.array(list(self._names), dtype=np.str_),
            "total": np.asarray(self.total),
        }

    def restore(self, arrays: dict[str, npt.NDArray[np.generic]]) -> None:
        """Take in what `arrays` gave. Raises KeyError or ValueError where it does not fit this ring."""
        rows = arrays["rows"]
        if len(rows) > len(self._rows) or rows.shape[1:] != self._rows.shape[1:]:
            raise ValueError(f"observations of shape {rows.shape} do not fit a ring of {self._rows.shape}")
        held = slice(0, len(rows))
        self._rows[held], self._lengths[held] = rows, arrays["lengths"]
        self._cut[held], self._groups[held], self._keys[held] = arrays["cut"], arrays["groups"], arrays["keys"]
        self._names = {str(name): i for i, name in enumerate(arrays["names"])}
        total = int(arrays["total"])
        # A ring that had wrapped goes on where it was; its oldest row is overwritten next.
        self.total = total if len(rows) == len(self._rows) else len(rows)
