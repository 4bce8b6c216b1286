"""The store: one folder that holds every snapshot of every world, and the operations on them.

Synchronous; safe for many threads and processes at once. Sealing, merging and content keys cost what changed, not
what the workspace holds; only the base's manifest is as large as the workspace, and it is read once.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from ramify.fork_engine import crash_points
from ramify.fork_engine.errors import MergeConflict, SnapshotCorrupt, SnapshotNotFound
from ramify.fork_engine.fsck.repair import FsckReport, fsck
from ramify.fork_engine.importer import import_folder, import_image, import_process_image
from ramify.fork_engine.manifest import Manifest
from ramify.fork_engine.merge.apply import merged_layers
from ramify.fork_engine.readable_store import ReadableStore
from ramify.fork_engine.seal import (
    LastSeal,
    Upper,
    layer_from_tree,
    make_layer_from_upper,
    read_outside,
    read_upper,
    since,
    squashed_layer,
)
from ramify.fork_engine.snapshot_keys import snapshot_id
from ramify.fork_engine.snapshots import GRACE_S
from ramify.fork_engine.store_folder import translate_disk_errors
from ramify.fork_engine.types import (
    Conflict,
    ConflictKind,
    ContentKey,
    EntryKind,
    Imported,
    LayerId,
    MergeStrategy,
    Processes,
    Resolver,
    Snapshot,
    SnapshotId,
)

NO_PROCESSES = Processes()


class SnapshotStore(ReadableStore):
    """What makes snapshots, and keeps house; what reads them and writes them out is in `reading.py`."""

    # Making snapshots

    def import_tree(self, folder: Path, *, image: LayerId | None = None, without: Collection[Path] = ()) -> Imported:
        """Copy a user's folder into a base layer. Never writes to it; a second time reads only what changed.
        `image`: what `import_image` returned, for worlds that stand on it. `without`: files to leave out, resolved.

        Raises `WorkspaceError` where the folder is missing, none, unreadable anywhere, or changes meanwhile.
        """
        with self._making(flush=True):
            manifest, skipped = import_folder(folder, self._layers, without)
            snapshot = self._save(_draft((manifest.id,), image))
        files = [entry for entry in manifest.entries.values() if entry.kind is EntryKind.FILE]
        return Imported(snapshot, skipped, len(files), sum(entry.size for entry in files if not entry.link))

    def import_image(self, path: Path) -> LayerId:
        """Copy a root file system, a folder or a tar of one, into a layer; owners are dropped, devices left out.

        Raises `ImageError` where it cannot be read, or where a tar's members would lie outside of it.
        """
        with self._making(flush=True):
            return import_image(path, self._layers).id

    def put_blob(self, data: bytes) -> str:
        """Keep bytes for a snapshot that is about to name them; their digest. `flush` makes them durable."""
        with translate_disk_errors(self.root):
            return self._blobs.put(data)

    def blob(self, digest: str) -> bytes:
        """Raises `SnapshotCorrupt` where it is gone or damaged."""
        return self._blobs.get(digest)

    def adopt_process_image(self, folder: Path, like: str = "") -> str:
        """Take a folder of process images in, for a snapshot that is about to name it. The folder is gone then.
        `like`: an earlier one that it shares files with, by hard links; they are not read again."""
        with self._making(flush=False):
            return import_process_image(folder, self._images, LayerId(like)).id

    def image_dir(self, image: str) -> Path:
        """The folder of process images. Raises `SnapshotCorrupt` where it is gone."""
        return self._images.fs(LayerId(image))

    def seal_upper(
        self,
        upper: Path,
        parent: Snapshot,
        *,
        env: Mapping[str, str],
        env_unset: Sequence[str],
        cwd: str,
        processes: Processes = NO_PROCESSES,
        outside: Path | None = None,
        move: bool,
        flush: bool = True,
        last_seal: LastSeal | None = None,
    ) -> Snapshot:
        """The parent plus what overlayfs upper folders hold; the parent itself where nothing changed.

        `outside` is the upper of all beside the workspace, paths in it relative to "/". With `move` a folder that
        changes anything becomes the layer and is gone; else it stays as it is, and costs what changed since the seal
        that `last_seal` remembers. Nothing may write to it meanwhile, or, moved, ever again. Without `flush` the
        snapshot is complete and can be forked, but a machine that dies before the next `flush` may lose it.
        """
        with self._making(flush):
            last_seal = LastSeal() if move or last_seal is None else last_seal
            read = read_upper(upper, self._view(parent.layers), last_seal.known(upper))
            beside = None
            if outside is not None:
                beside = read_outside(outside, self._outside(parent), last_seal.known(outside))
            last_seal.note(read)
            last_seal.note(beside)
            layers, more = parent.layers, parent.outside
            if read is not None:
                layers = self._sealed_over(read, parent, last_seal, move=move)
            if beside is not None:
                more = self._sealed_beside(beside, parent, last_seal, move=move)
            draft = replace(parent, layers=layers, outside=more, processes=processes)
            sealed = self._save_child(draft, parent, env, env_unset, cwd)
            last_seal.snapshot = sealed
            return sealed

    def _sealed_over(self, read: Upper, parent: Snapshot, last_seal: LastSeal, *, move: bool) -> tuple[LayerId, ...]:
        """The workspace's stack."""
        if last_seal.snapshot is not None:
            last = last_seal.snapshot.layers
            made = since(read, self._view(last))
            if made is not None:
                if made.same(self._view(last)):
                    return last
                self._view.put((*last, made.manifest.id), made.view)
                return self._stack(last, make_layer_from_upper(made, self._layers, move=False))
        self._view.put((*parent.layers, read.manifest.id), read.view)
        return self._stack(parent.layers, make_layer_from_upper(read, self._layers, move=move))

    def _sealed_beside(
        self, read: Upper, parent: Snapshot, last_seal: LastSeal, *, move: bool
    ) -> tuple[LayerId, ...]:
        """The second stack."""
        if last_seal.snapshot is not None:
            last = last_seal.snapshot.outside
            made = since(read, self._outside(last_seal.snapshot))
            if made is not None:
                if made.same(self._outside(last_seal.snapshot)):
                    return last
                self._outside_view.put((parent.image, (*last, made.manifest.id)), made.view)
                return self._stack_outside(last_seal.snapshot, make_layer_from_upper(made, self._layers, move=False))
        self._outside_view.put((parent.image, (*parent.outside, read.manifest.id)), read.view)
        return self._stack_outside(parent, make_layer_from_upper(read, self._layers, move=move))

    def seal_tree(
        self,
        tree: Path,
        parent: Snapshot,
        *,
        env: Mapping[str, str],
        env_unset: Sequence[str],
        cwd: str,
        processes: Processes = NO_PROCESSES,
        flush: bool = True,
    ) -> Snapshot:
        """The parent plus what a plain folder, once materialised from it, now has otherwise. Costs a stat a path."""
        with self._making(flush):
            made = layer_from_tree(tree, self._view(parent.layers), self._layers)
            layers = parent.layers if made is None else self._stack(parent.layers, made)
            return self._save_child(replace(parent, layers=layers, processes=processes), parent, env, env_unset, cwd)

    def merge(
        self,
        base: Snapshot,
        ours: Snapshot,
        theirs: Snapshot,
        *,
        strategy: MergeStrategy | Resolver = MergeStrategy.FAIL,
        flush: bool = True,
    ) -> Snapshot:
        """What both sides changed since `base`, as `ours` and one more layer. Where one side is `base`: the other.

        Files, variables, directory and processes merge by the same rules; the result's `parents` are both sides. The
        record of a state that was there before names them in `merges`, up to 64. Where one side has all of the other,
        it is the result.
        `strategy` answers each conflict, or is asked for an answer. Raises `MergeConflict` with all that are left.
        """
        if ours.id == base.id:
            return theirs
        if theirs.id == base.id:
            return ours
        if base.image is None and ours.image == theirs.image:
            base = replace(base, image=ours.image)  # an imported tree names none: both sides' worlds gave it theirs
        snapshots = (base, ours, theirs)
        if len({one.image for one in snapshots}) > 1:
            raise MergeConflict((Conflict("/", ConflictKind.TYPE, "they stand on different images"),))
        views = (self._view(base.layers), self._view(ours.layers), self._view(theirs.layers))
        outside = (self._outside(base), self._outside(ours), self._outside(theirs))
        with self._making(flush):
            made = merged_layers(snapshots, views, outside, strategy, self._volatile, self._layers, self._blobs)
            draft = replace(
                ours,
                layers=ours.layers if made.layer is None else self._stack(ours.layers, made.layer),
                outside=ours.outside if made.outside is None else self._stack_outside(ours, made.outside),
                env=made.state.env,
                env_unset=made.state.env_unset,
                cwd=made.state.cwd,
                processes=made.state.processes,
                parents=(ours.id, theirs.id),
                merges=(),
            )
            merged = self._save(draft)
            if merged.id in (ours.id, theirs.id):  # one side had all of the other
                return merged
            if draft.parents not in (merged.parents, *merged.merges):
                self._snapshots.note_merge(merged.id, draft.parents)
            return replace(merged, parents=draft.parents)

    def graft(self, onto: Snapshot, before: Snapshot, after: Snapshot, *, flush: bool = True) -> Snapshot | None:
        """What `after` changed over `before`, stacked on `onto`, whose content equals `before`'s.

        Costs the layers, not what they hold. None where `after` does not stand on `before` (a squash, a merge).
        """
        made, beside = _added(before.layers, after.layers), _added(before.outside, after.outside)
        if made is None or beside is None or before.image != onto.image:
            return None
        layers, outside = (*onto.layers, *made), (*onto.outside, *beside)
        stacked = replace(after, layers=layers, outside=outside, parents=(onto.id,), merges=())
        if max(len(stacked.layers), len(stacked.outside)) > self._max_layers:
            return None
        if snapshot_id(stacked) == onto.id:
            return onto
        with self._making(flush):
            return self._save(stacked)

    def layer_bytes(self, layer: LayerId) -> int:
        """What a layer's files hold, hard links counted once. Raises `SnapshotCorrupt`."""
        return sum(entry.size for entry in self._layers.manifest(layer).entries.values() if not entry.link)

    def layer_files(self, layer: LayerId) -> list[str]:
        """The paths that a layer changes or removes, sorted; no folders, and nothing volatile."""
        entries = self._layers.manifest(layer).entries
        return sorted(
            path for path, at in entries.items() if at.kind is not EntryKind.DIR and path not in self._volatile
        )

    def flush(self) -> None:
        """All snapshots made so far are on disk when this returns: one flush of the file system, if any is needed."""
        with translate_disk_errors(self.root):
            self._folder.flush()

    @contextmanager
    def _making(self, flush: bool) -> Iterator[None]:
        with translate_disk_errors(self.root):
            with self._folder.lock():
                yield
            if flush:
                self._folder.flush()

    def _stack(self, below: tuple[LayerId, ...], top: Manifest) -> tuple[LayerId, ...]:
        stacked = (*below, top.id)
        if len(stacked) <= self._max_layers:
            return stacked
        squashed = squashed_layer(self._view(stacked), self._layers)
        return stacked[:1] if squashed is None else (stacked[0], squashed.id)

    def _stack_outside(self, below: Snapshot, top: Manifest) -> tuple[LayerId, ...]:
        stacked = (*below.outside, top.id)
        if len(stacked) <= self._max_layers:
            return stacked
        squashed = squashed_layer(self._outside_view((below.image, stacked)), self._layers)
        return () if squashed is None else (squashed.id,)

    def _save_child(
        self, draft: Snapshot, parent: Snapshot, env: Mapping[str, str], env_unset: Sequence[str], cwd: str
    ) -> Snapshot:
        """The parent itself where the draft says the same."""
        draft = replace(draft, env=dict(env), env_unset=tuple(sorted(env_unset)), cwd=cwd)
        draft = replace(draft, parents=(parent.id,), merges=())
        return parent if snapshot_id(draft) == parent.id else self._save(draft)

    def _save(self, draft: Snapshot) -> Snapshot:
        """The same state again is the snapshot that it was, with the parents that it had; why its processes were not
        kept better is this seal's own to say, and no part of the id."""
        self._check_named(draft.processes)
        with suppress(SnapshotNotFound, SnapshotCorrupt):
            return replace(self.get(snapshot_id(draft)), processes=draft.processes)
        snapshot = replace(draft, id=snapshot_id(draft), content_key=self._content_key(draft))
        if self._snapshots.save(snapshot, self._volatile.globs):
            return snapshot
        return replace(self.get(snapshot.id), processes=draft.processes)

    def _check_named(self, ran: Processes) -> None:
        """What a snapshot names is there before it is."""
        if ran.shell and ran.shell not in self._blobs:
            raise SnapshotCorrupt(f"blob {ran.shell} is not in the store {self.root}: put it there before the seal")
        if ran.image:
            self._images.fs(LayerId(ran.image))

    # Keeping house

    def present(self, *, older_than_s: float = 0.0) -> list[SnapshotId]:
        """The snapshots in the store, sorted; those that were made, or made again, later are left out."""
        return self._snapshots.older_than(older_than_s)

    def delete_unreachable(self, keep: Iterable[SnapshotId], *, grace_s: float = 0.0) -> tuple[int, int]:
        """Delete every snapshot not in `keep` and every layer that none of the rest names: (snapshots, bytes freed).

        Safe when killed half way: a layer goes only after every snapshot that names it. What is being made meanwhile
        by others is complete or waits, but must be in `keep` if it is complete, or younger than `grace_s`. Raises
        `SnapshotCorrupt`, with nothing deleted, where a kept snapshot cannot be read.

        What crashed processes left half made goes, too.
        """
        with translate_disk_errors(self.root), self._folder.lock(alone=True):
            wanted = set(keep)
            gone = [id for id in self._snapshots.older_than(grace_s) if id not in wanted]
            kept = [self._snapshots.load(id)[0] for id in sorted(set(self._snapshots) - set(gone))]
            self._snapshots.remove(gone)
            crash_points.point("forgotten")
            layers = {layer for s in kept for layer in (*s.layers, *s.outside, *([s.image] if s.image else []))}
            freed = sum(self._layers.remove(layer) for layer in list(self._layers) if layer not in layers)
            freed += self._blobs.remove_unnamed({s.processes.shell for s in kept})
            freed += self._remove_images({s.processes.image for s in kept})
            self._folder.forget_notes()
            self._forget_cached()
            self._folder.forget()  # last: what of it cannot be removed is told when all else is done
        return len(gone), freed

    def fsck(self, *, repair: bool = False, expected: Collection[SnapshotId] = ()) -> FsckReport:
        """Hold everything in the store against the digest that names it; with `repair`, mend what other copies allow
        and move the rest to `damaged/`. A repair wants no live worlds: they stand on the layers.

        `expected`: snapshots that somebody still names, for nothing in the store tells that one was deleted."""
        with translate_disk_errors(self.root), self._folder.lock(alone=repair):
            self._forget_cached()  # what they knew may be wrong by now
            report = fsck(self._parts, repair=repair, expected=expected, key=self._key_with, save=self._save_again)
        if repair:
            self.flush()
        return report

    def _save_again(self, snapshot: Snapshot) -> None:
        self._forget_cached()  # what they knew may have been mended
        self._save(snapshot)

    def _remove_images(self, named: set[str]) -> int:
        old = time.time() - GRACE_S
        return sum(
            self._images.remove(image)
            for image in list(self._images)
            if image not in named and self._images.fs(image).parent.stat().st_mtime < old
        )

    def remove_temporary_leftovers(self) -> None:
        """Remove what crashed processes left half made. What is in use is left alone."""
        self._folder.forget()


def _added(below: tuple[LayerId, ...], stack: tuple[LayerId, ...]) -> tuple[LayerId, ...] | None:
    """What a stack holds above another one; None where it does not stand on it."""
    return stack[len(below) :] if stack[: len(below)] == below else None


def _draft(layers: tuple[LayerId, ...], image: LayerId | None) -> Snapshot:
    return Snapshot(id=SnapshotId(""), layers=layers, content_key=ContentKey(""), image=image)
