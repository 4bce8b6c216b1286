"""A quantile regression forest (Meinshausen 2006, the thesis's [52]) over right-censored lengths.

scikit-learn grows the trees. They are kept as flat arrays: where each node splits, and for each leaf the survival
function P(length > x) of its training answers, on one grid of lengths. The forest's answer is the mean over the
leaves that a call falls into, which is exactly Meinshausen's weighted distribution at the points of the grid.

Arrays have three advantages over the fitted object: one call costs a third of a millisecond instead of six; they are
saved and loaded without pickle; and an answer that was cut at its limit counts as "longer than this" (Kaplan and
Meier's product) instead of as a short answer.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from ramify.serving.lengths.features import Matrix

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

TREES = 100
_LEAF = 10  # the least number of answers in a leaf
_LEAVES = 200  # about the largest number of leaves per tree, so that the forest stays below 20 MB
_SHARE = 0.3  # of the features, tried at each split
_GRID = 160
_CHUNK = 256  # rows predicted at once, which bounds the memory
_TAIL = 4.0  # the grid ends at this multiple of the longest answer


def grid_for(lengths: Floats) -> Floats:
    """The lengths at which distributions are kept: 0, quantiles of what was seen, and a geometric tail."""
    longest = max(float(lengths.max()), 16.0)
    inside = np.quantile(lengths, np.linspace(0, 1, _GRID - 32))
    tail = np.geomspace(longest, longest * _TAIL, 33)[1:]
    return np.unique(np.round(np.concatenate([[0.0], inside, np.linspace(0, longest, 32), tail]), 3))


def survival(lengths: Floats, cut: Flags, grid: Floats, groups: Ints, count: int) -> npt.NDArray[np.float32]:
    """P(length > grid) within each of `count` groups, by Kaplan and Meier's product over the grid's cells."""
    cells = len(grid)
    cell = np.minimum(np.searchsorted(grid, lengths), cells - 1)  # the first point that is not below the length
    flat = groups.astype(np.int64) * cells + cell
    ended = np.bincount(flat[~cut], minlength=count * cells).reshape(count, cells)
    left = np.bincount(flat[cut], minlength=count * cells).reshape(count, cells)
    gone = np.cumsum(ended + left, axis=1)
    at_risk = gone[:, -1:] - gone + ended + left
    # An answer that was cut inside a cell was at risk for the endings of that cell: it leaves after them.
    return np.cumprod(1.0 - ended / np.maximum(at_risk, 1), axis=1).astype(np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """Trees as arrays. A leaf points at itself, so a walk of `depth` steps ends in a leaf."""

    grid: Floats
    roots: Ints
    feature: Ints
    threshold: Floats
    left: Ints
    right: Ints
    leaf: Ints  # by node: the row of `leaf_survival`; -1 for inner nodes
    leaf_survival: npt.NDArray[np.float32]
    depth: int

    def survival(self, rows: Matrix) -> Floats:
        """P(length > grid) for each row."""
        out = np.empty((len(rows), len(self.grid)))
        for start in range(0, len(rows), _CHUNK):
            part = rows[start : start + _CHUNK]
            out[start : start + len(part)] = self._survival(part)
        return out

    def _survival(self, rows: Matrix) -> Floats:
        each = np.arange(len(rows))[:, None]
        node = np.broadcast_to(self.roots, (len(rows), len(self.roots)))
        for _ in range(self.depth):
            goes_left = rows[each, self.feature[node]] <= self.threshold[node]
            node = np.where(goes_left, self.left[node], self.right[node])
        return np.asarray(self.leaf_survival[self.leaf[node]].mean(axis=1), dtype=np.float64)

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """All fields, for a checkpoint."""
        return {field.name: np.asarray(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: dict[str, npt.NDArray[np.generic]]) -> Forest:
        """Raises KeyError where an array is missing."""
        kept: dict[str, object] = {field.name: arrays[field.name] for field in fields(cls)}
        return cls(**(kept | {"depth": int(arrays["depth"])}))  # type: ignore[arg-type]


def grow(rows: Matrix, lengths: Floats, cut: Flags, *, seed: int, grid: Floats, trees: int = TREES) -> Forest:
    """Fit a forest. The splits see the logarithm of the length: a factor of two is the same error at any length."""
    from sklearn.ensemble import RandomForestRegressor

    forest = RandomForestRegressor(
        trees,
        min_samples_leaf=max(_LEAF, len(rows) // _LEAVES),
        max_features=_SHARE,
        random_state=seed,
        n_jobs=1,  # it runs in the background: the other cores serve
    )
    forest.fit(rows, np.log1p(lengths))
    ends = forest.apply(rows)
    columns: dict[str, list[npt.NDArray[np.generic]]] = {
        n: [] for n in ("feature", "threshold", "left", "right", "leaf")
    }
    roots, survivals, nodes, leaves, depth = [], [], 0, 0, 0
    for i, estimator in enumerate(forest.estimators_):
        tree = estimator.tree_
        own = np.arange(tree.node_count)
        is_leaf = tree.children_left < 0
        numbers = np.where(is_leaf, np.cumsum(is_leaf) - 1, -1)
        count = int(is_leaf.sum())
        columns["feature"].append(np.where(is_leaf, 0, tree.feature))
        columns["threshold"].append(tree.threshold)
        columns["left"].append(np.where(is_leaf, own, tree.children_left) + nodes)
        columns["right"].append(np.where(is_leaf, own, tree.children_right) + nodes)
        columns["leaf"].append(np.where(is_leaf, numbers + leaves, -1))
        survivals.append(survival(lengths, cut, grid, numbers[ends[:, i]].astype(np.int32), count))
        roots.append(nodes)
        nodes, leaves, depth = nodes + tree.node_count, leaves + count, max(depth, int(tree.max_depth))
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    return Forest(
        grid=grid,
        roots=np.array(roots, dtype=np.int32),
        threshold=joined.pop("threshold").astype(np.float64),
        leaf_survival=np.concatenate(survivals),
        depth=depth,
        **{name: column.astype(np.int32) for name, column in joined.items()},
    )
