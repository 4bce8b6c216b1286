"""The snapshot store: one folder with every snapshot of every world, and the operations on them.

Synchronous, and safe for many threads and processes at once. Sealing, merging and content keys cost what changed, not
the size of the workspace. Only the base's manifest is as large as the workspace, and it is read once.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO

from ramify.fork_engine import crash_points
from ramify.fork_engine.errors import MergeConflict, SnapshotCorrupt, SnapshotNotFound
from ramify.fork_engine.fsck.repair import FsckReport, fsck
from ramify.fork_engine.importer import (
    ImportedLayer,
    empty_layer,
    import_folder,
    import_image,
    import_layer,
    import_process_image,
)
from ramify.fork_engine.manifest import Manifest
from ramify.fork_engine.merge.apply import merge_snapshots
from ramify.fork_engine.readable_store import ReadableStore, over_image_of
from ramify.fork_engine.seal import (
    LastSeal,
    ReadUpper,
    layer_from_tree,
    layer_since,
    make_layer_from_upper,
    read_outside,
    read_upper,
    squashed_layer,
)
from ramify.fork_engine.snapshots import UNNAMED_GRACE_S, snapshot_id
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
from ramify.fork_engine.view import View

NO_PROCESSES = Processes()


class SnapshotStore(ReadableStore):
    """Makes, merges, checks and deletes snapshots. `readable_store.py` has the methods that read them and write them
    out."""

    # Making snapshots

    def import_tree(self, folder: Path, *, image: LayerId | None = None, without: Collection[Path] = ()) -> Imported:
        """Copy a user's folder into a base layer. The folder is never written to. A second import reads only what
        changed.

        `image`: the root file system of worlds over this workspace, as `import_image` returned it. `without`:
        resolved paths of files to leave out. Raises `WorkspaceError` if the folder is missing, not a folder, not
        entirely readable, or changes meanwhile.
        """
        with self._writing(flush=True):
            manifest, skipped = import_folder(folder, self._layers, without)
            snapshot = self._save(_draft((manifest.id,), image))
        files = [entry for entry in manifest.entries.values() if entry.kind is EntryKind.FILE]
        return Imported(snapshot, skipped, len(files), sum(entry.size for entry in files if not entry.link))

    def import_image(self, path: Path, *, hold: bool = False) -> LayerId:
        """Copy a root file system, a folder or a tar of one, into a layer. Owners and devices are dropped.

        `hold`: no collection deletes the layer while this store is open, although no snapshot names it yet. Raises
        `ImageError` if it cannot be read, or if a member of the tar would be outside of it.
        """
        with self._writing(flush=True):
            layer = import_image(path, self._layers).id
            if hold:
                self._layers.hold(layer)
            return layer

    def import_layer(
        self, stream: IO[bytes], below: Sequence[LayerId] = (), *, name: str, room: int | None = None
    ) -> ImportedLayer:
        """Import a layer of an image from an uncompressed tar, with its whiteouts, over the layers `below` (lowest
        first). `name`: for messages. `room`: bytes it may have, by default the disk's free space. Raises
        `ImageError`, and what reading the stream raises, with nothing made."""
        with self._writing(flush=False):
            return import_layer(stream, below, self._layers, name=name, room=room)

    def save_image(self, layers: Sequence[LayerId], env: Mapping[str, str], cwd: str = "") -> Snapshot:
        """Save an image as a snapshot: an empty workspace over its layers, lowest first, with its variables and the
        directory in which its shell starts."""
        with self._writing(flush=True):
            draft = replace(_draft((empty_layer(self._layers).id,), layers[0]), env=dict(env), cwd=cwd)
            for layer in layers[1:]:
                outside = self._stacked(draft, self._layers.manifest(layer), outside=True)
                draft = replace(draft, outside=outside)
            return self._save(replace(draft, image_layers=len(draft.outside)))

    def over_image(self, workspace: Snapshot, image: Snapshot) -> Snapshot:
        """Save the workspace of one snapshot over an image that `save_image` made."""
        with self._writing(flush=True):
            return self._save(replace(image, layers=workspace.layers, cwd=workspace.cwd, parents=(), merges=()))

    def with_variables(self, snapshot: Snapshot, changed: Mapping[str, str]) -> Snapshot:
        """Save the same state with other values of these variables in its shell."""
        env = {**snapshot.env, **changed}
        unset = tuple(name for name in snapshot.env_unset if name not in changed)
        with self._writing(flush=True):
            return self._save_child(snapshot, snapshot, env, unset, snapshot.cwd)

    def put_blob(self, data: bytes) -> str:
        """Store bytes that a snapshot is about to name and return their digest. `flush` makes them durable."""
        with translate_disk_errors(self.root):
            return self._blobs.put(data)

    def adopt_process_image(self, folder: Path, like: str = "") -> str:
        """Move a folder of process images into the store, for a snapshot that is about to name it, and return its id.

        `like`: an earlier image that shares files with it by hard links; these are not read again.
        """
        with self._writing(flush=False):
            return import_process_image(folder, self._images, LayerId(like)).id

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
        follows: Snapshot | None = None,
    ) -> Snapshot:
        """Seal overlay upper folders: return the parent plus their content, or the parent itself if nothing changed.

        `outside`: the upper folder of everything outside the workspace, with paths relative to "/". With `move`, an
        upper folder with changes becomes the layer and is gone. Without it the folder stays, and the new layer holds
        what changed since the seal that `last_seal` remembers. Nothing may write to the folder during the seal or, if
        it is moved, afterwards. Without `flush` the snapshot is complete and can be forked, but it is lost if the
        machine dies before the next `flush`. `follows`: the state to record as the parent, if it is a later one than
        `parent`, over which the upper folder is mounted.
        """
        with self._writing(flush):
            last_seal = LastSeal() if move or last_seal is None else last_seal
            read = read_upper(upper, self._view(parent.layers), last_seal.known(upper))
            beside = None
            if outside is not None:
                beside = read_outside(outside, self._outside(parent), last_seal.known(outside))
            last_seal.note(read)
            last_seal.note(beside)
            layers, more = parent.layers, parent.outside
            if read is not None:
                layers = self._seal_stack(read, parent, last_seal, outside=False, move=move)
            if beside is not None:
                more = self._seal_stack(beside, parent, last_seal, outside=True, move=move)
            draft = replace(parent, layers=layers, outside=more, processes=processes)
            sealed = self._save_child(draft, follows or parent, env, env_unset, cwd)
            last_seal.snapshot = sealed
            return sealed

    def _seal_stack(
        self, read: ReadUpper, parent: Snapshot, last_seal: LastSeal, *, outside: bool, move: bool
    ) -> tuple[LayerId, ...]:
        """Return the stack with a new layer for what `read` changed: over the last seal's stack if there is one and
        a layer over it exists, else over the parent's."""
        below, layer = parent, read
        if last_seal.snapshot is not None:
            before = self._stack_view(last_seal.snapshot, outside)
            newer = layer_since(read, before)
            if newer is not None and newer.same(before):
                return _stack_of(last_seal.snapshot, outside)
            if newer is not None:
                below, layer, move = last_seal.snapshot, newer, False
        stack = (*_stack_of(below, outside), layer.manifest.id)
        if outside:
            self._outside_view.put((below.image, stack, below.image_layers), layer.view)
        else:
            self._view.put(stack, layer.view)
        return self._stacked(below, make_layer_from_upper(layer, self._layers, move=move), outside=outside)

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
        """Seal a plain folder that was materialised from the parent: return the parent plus what differs. Costs one
        stat per path."""
        with self._writing(flush):
            made = layer_from_tree(tree, self._view(parent.layers), self._layers)
            layers = parent.layers if made is None else self._stacked(parent, made, outside=False)
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
        """Merge what both sides changed since `base` into a snapshot: `ours` with one more layer.

        Files, variables, working directory and processes follow the same rules. `strategy` answers every conflict, or
        is a function that is asked for each. Raises `MergeConflict` with all conflicts that stay unresolved.

        If one side equals `base`, or one side has everything that the other has, that side is the result. Otherwise
        the result's `parents` are both sides. If the same state existed already, its record names both sides in
        `merges`, up to 64 pairs.
        """
        if ours.id == base.id:
            return theirs
        if theirs.id == base.id:
            return ours
        if base.image is None and ours.image == theirs.image:
            base = over_image_of(base, ours)  # an imported tree names no image: the worlds of both sides set it
        snapshots = (base, ours, theirs)
        if len({one.image_stack for one in snapshots}) > 1:
            raise MergeConflict((Conflict("/", ConflictKind.TYPE, "they use different images"),))
        views = (self._view(base.layers), self._view(ours.layers), self._view(theirs.layers))
        outside = (self._outside(base), self._outside(ours), self._outside(theirs))
        with self._writing(flush):
            made = merge_snapshots(snapshots, views, outside, strategy, self._volatile, self._layers, self._blobs)
            draft = replace(
                ours,
                layers=ours.layers if made.layer is None else self._stacked(ours, made.layer, outside=False),
                outside=ours.outside if made.outside is None else self._stacked(ours, made.outside, outside=True),
                env=made.state.env,
                env_unset=made.state.env_unset,
                cwd=made.state.cwd,
                processes=made.state.processes,
                parents=(ours.id, theirs.id),
                merges=(),
            )
            merged = self._save(draft)
            if merged.id in (ours.id, theirs.id):  # one side has everything that the other has
                return merged
            if draft.parents not in (merged.parents, *merged.merges):
                self._snapshots.note_merge(merged.id, draft.parents)
            return replace(merged, parents=draft.parents)

    def graft(self, onto: Snapshot, before: Snapshot, after: Snapshot, *, flush: bool = True) -> Snapshot | None:
        """Apply what `after` changed over `before` to `onto`, whose content equals that of `before`.

        Costs the number of layers, not their size. Returns None if `after` does not stand on `before` (after a squash
        or merge).
        """
        made, beside = _added(before.layers, after.layers), _added(before.outside, after.outside)
        if made is None or beside is None or before.image_stack != onto.image_stack:
            return None
        layers, outside = (*onto.layers, *made), (*onto.outside, *beside)
        stacked = replace(after, layers=layers, outside=outside, parents=(onto.id,), merges=())
        if max(len(stacked.layers), len(stacked.outside)) > self._max_layers:
            return None
        if snapshot_id(stacked) == onto.id:
            return onto
        with self._writing(flush):
            return self._save(stacked)

    def flush(self) -> None:
        """Return once all snapshots made so far are on disk: one flush of the file system, if any is needed."""
        with translate_disk_errors(self.root):
            self._folder.flush()

    @contextmanager
    def _writing(self, flush: bool) -> Iterator[None]:
        with translate_disk_errors(self.root):
            with self._folder.lock():
                yield
            if flush:
                self._folder.flush()

    def _stacked(self, below: Snapshot, top: Manifest, *, outside: bool) -> tuple[LayerId, ...]:
        """Return the stack of `below` with `top` on it, squashed if it would be higher than `MAX_LAYERS`."""
        stack = (*_stack_of(below, outside), top.id)
        if len(stack) <= self._max_layers:
            return stack
        whole = replace(below, outside=stack) if outside else replace(below, layers=stack)
        squashed = squashed_layer(self._stack_view(whole, outside), self._layers)
        base = stack[: below.image_layers] if outside else stack[:1]
        return base if squashed is None else (*base, squashed.id)

    def _stack_view(self, snapshot: Snapshot, outside: bool) -> View:
        return self._outside(snapshot) if outside else self._view(snapshot.layers)

    def _save_child(
        self, draft: Snapshot, parent: Snapshot, env: Mapping[str, str], env_unset: Sequence[str], cwd: str
    ) -> Snapshot:
        """Save the draft as a child of `parent`. Returns the parent itself if they are equal."""
        draft = replace(draft, env=dict(env), env_unset=tuple(sorted(env_unset)), cwd=cwd)
        draft = replace(draft, parents=(parent.id,), merges=())
        return parent if snapshot_id(draft) == parent.id else self._save(draft)

    def _save(self, draft: Snapshot) -> Snapshot:
        """Save a snapshot, or return the existing one of the same state, with the parents that it has.

        `processes` are always the draft's: their `reason` is not part of the id and belongs to this seal.
        """
        self._check_named(draft.processes)
        with suppress(SnapshotNotFound, SnapshotCorrupt):
            return replace(self.get(snapshot_id(draft)), processes=draft.processes)
        snapshot = replace(draft, id=snapshot_id(draft), content_key=self._content_key(draft))
        if self._snapshots.save(snapshot, self._volatile.globs):
            return snapshot
        return replace(self.get(snapshot.id), processes=draft.processes)

    def _check_named(self, ran: Processes) -> None:
        """Check that what the processes name exists, before a record names it."""
        for blob in ran.blobs:
            if blob not in self._blobs:
                raise SnapshotCorrupt(f"blob {blob} is not in the store {self.root}: put it there before the seal")
        if ran.image:
            self._images.fs(LayerId(ran.image))

    # Deleting and checking

    def present(self, *, older_than_s: float = 0.0) -> list[SnapshotId]:
        """Return the ids of the snapshots in the store, sorted, without those made or confirmed in the last
        `older_than_s` seconds."""
        return self._snapshots.older_than(older_than_s)

    def delete_unreachable(self, keep: Iterable[SnapshotId], *, grace_s: float = 0.0) -> tuple[int, int]:
        """Delete every snapshot not in `keep`, and all that only they needed. Returns (number of snapshots, bytes
        freed).

        Safe to kill at any point: a layer is deleted only after every snapshot that names it. A snapshot that others
        complete meanwhile must be in `keep` or younger than `grace_s`; one that is incomplete waits for the lock.
        What crashed processes left incomplete is removed, too. Raises `SnapshotCorrupt`, with nothing deleted, if a
        snapshot to be kept cannot be read.
        """
        with translate_disk_errors(self.root), self._folder.lock(alone=True):
            wanted = set(keep)
            gone = [id for id in self._snapshots.older_than(grace_s) if id not in wanted]
            kept = [self._snapshots.load(id)[0] for id in sorted(set(self._snapshots) - set(gone))]
            self._snapshots.remove(gone)
            crash_points.point("forgotten")
            layers = {layer for s in kept for layer in s.all_layers}
            freed = sum(self._layers.remove(layer) for layer in list(self._layers) if layer not in layers)
            freed += self._blobs.remove_unnamed({blob for s in kept for blob in s.processes.blobs})
            freed += self._remove_images({s.processes.image for s in kept})
            self._folder.drop_notes()
            self._forget_cached()
            self._folder.remove_leftovers()  # last, so that an error here is raised when everything else is done
        return len(gone), freed

    def fsck(self, *, repair: bool = False, expected: Collection[SnapshotId] = ()) -> FsckReport:
        """Compare everything in the store with the digest that names it. With `repair`, repair what other copies in
        the store allow, and move the rest to `damaged/`. No world may be live during a repair, because worlds mount
        the layers.

        `expected`: snapshots that are referenced from outside. The store itself cannot tell that one of them is
        missing.
        """
        with translate_disk_errors(self.root), self._folder.lock(alone=repair):
            self._forget_cached()  # cached values may be wrong by now
            report = fsck(
                self._parts, repair=repair, expected=expected, key=self._content_key_with, save=self._save_again
            )
        if repair:
            self.flush()
        return report

    def _save_again(self, snapshot: Snapshot) -> None:
        self._forget_cached()  # cached values may have been repaired
        self._save(snapshot)

    def _remove_images(self, named: set[str]) -> int:
        old = time.time() - UNNAMED_GRACE_S
        return sum(
            self._images.remove(image)
            for image in list(self._images)
            if image not in named and self._images.fs(image).parent.stat().st_mtime < old
        )

    def remove_temporary_leftovers(self) -> None:
        """Remove what crashed processes left incomplete. What is in use is kept."""
        self._folder.remove_leftovers()


def _stack_of(snapshot: Snapshot, outside: bool) -> tuple[LayerId, ...]:
    return snapshot.outside if outside else snapshot.layers


def _added(below: tuple[LayerId, ...], stack: tuple[LayerId, ...]) -> tuple[LayerId, ...] | None:
    """Return the layers that `stack` has above `below`, or None if it does not stand on it."""
    return stack[len(below) :] if stack[: len(below)] == below else None


def _draft(layers: tuple[LayerId, ...], image: LayerId | None) -> Snapshot:
    return Snapshot(id=SnapshotId(""), layers=layers, content_key=ContentKey(""), image=image)
