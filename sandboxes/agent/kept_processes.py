"""What a seal keeps of the world's processes as a whole: the shell with all that it started. Part of the agent.

Ramify's own images come first (checkpointing/process_tree.py): a fork maps them and shares their pages. CRIU takes
what they cannot hold.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from ramify.sandboxes.agent import confinement
from ramify.sandboxes.agent.checkpointing import process_dump
from ramify.sandboxes.agent.checkpointing.criu_runner import DumpNote
from ramify.sandboxes.agent.checkpointing.ephemeral_state import CannotKeep, EphemeralState
from ramify.sandboxes.agent.checkpointing.memory_image import CannotDump
from ramify.sandboxes.agent.checkpointing.process_dump import ImageBase, base_of_restored
from ramify.sandboxes.agent.checkpointing.process_image import remove_image
from ramify.sandboxes.agent.checkpointing.process_restore import CannotRestore
from ramify.sandboxes.agent.checkpointing.process_tree import ProcessTree, is_filtered, members_of, restore_tree
from ramify.sandboxes.agent.checkpointing.reopening import REMOVED
from ramify.sandboxes.agent.framing import Link
from ramify.sandboxes.agent.messages import Dump, Dumped, Start
from ramify.sandboxes.agent.prepared_shell import ShellPreparer
from ramify.sandboxes.agent.shell import Shell
from ramify.sandboxes.agent.supervisor import Tree
from ramify.sandboxes.linux import processes, ptrace
from ramify.sandboxes.linux.process_memory import FileId

FREEZES = 5  # attempts


class ProcessKeeper(ShellPreparer):
    """Dumps, restores, stops and continues the processes of the world."""

    def __init__(self, start: Start, link: Link, host: int, tree: Tree | None) -> None:
        super().__init__(start, link, host, tree)
        self._frozen: list[processes.Process] = []
        self._ephemeral: EphemeralState | None = None
        self._kept_last = False  # whether the last dump of a tree could be made: then the next is tried at once
        self._bases: dict[tuple[int, int], ImageBase] = {}  # by process: what its next image may build on
        self._mapped: frozenset[FileId] = frozenset()  # files of images that restored processes and their forks map
        self._sharing: set[tuple[int, int]] = set()  # the processes that do, and are filtered for it

    def _dump(self, message: Dump) -> Dumped:
        """Dump the shell with its descendants, and leave them stopped."""
        if self._shell is not None:
            self._await_shell(self._shell)
        self._release_ended_shell()
        shell = self._shell
        if self._criu is None or self._tree is None:
            return Dumped("this world has no CRIU")
        found = self._all()
        strays = [p.pid for p in found if p.parent == os.getpid() and (shell is None or p.pid != shell.pid)]
        if strays or shell is None:
            return Dumped(f"processes {strays} do not descend from the shell, and a dump covers one process tree")
        place = Path(self._tree.path_inside(message.images))
        last = max(p.pid for p in found)
        sessions = {session.name: session.pid for session in self._sessions if not session.ended}
        note = DumpNote(shell.pid, last, shell.pwd, shell.oldpwd, shell.state.decode("latin-1"), sessions)
        try:
            taken = self._dump_tree(place, note, message.bases)
            self._kept_last = True
            return Dumped(maps_files=self._maps_files(), taken=taken, tree=True)
        except (CannotDump, OSError) as error:
            self._kept_last = False
            self._thaw()
            why = str(error)
            if isinstance(error, CannotKeep):
                return Dumped(why)
        if len(removed := self._in_removed_folders()) > 1:
            return Dumped(f"CRIU restores one process in a removed folder, and these are in one: {removed}; {why}")
        if filtered := [p.pid for p in self._all() if p.key in self._sharing or is_filtered(p.pid)]:
            return Dumped(
                f"CRIU cannot dump processes {filtered}: their system calls are filtered, as those of programs that "
                "share pages with an image and of all that these start, or by a filter of their own. "
                f"End them, or what the images cannot hold, to keep the others: {why}"
            )
        if own := [p.pid for p in self._all() if _has_cpus_of_its_own(p.pid)]:
            why = f"{why}; CRIU restores no CPU affinity, which these processes have: {own}"
        for folder in list(place.iterdir()):
            remove_image(folder)
        for base in self._bases.values():
            base.stop_tracking()  # CRIU does not know of it
        stopped = [p.key for p in self._all() if p.state in "Tt"]
        held = os.open(place, os.O_PATH | os.O_DIRECTORY)
        try:
            self._ephemeral_state().refuse_of_any((p.pid for p in self._all()), stand=False)
            self._criu.dump(shell.pid, held)
            self._frozen = [p for p in self._all() if p.key not in stopped]
            self._ephemeral_state().refuse_of_any((p.pid for p in self._all()), stand=True)
        except (CannotKeep, OSError) as error:
            self._thaw()
            return Dumped(f"{error}; {why}")
        finally:
            os.close(held)
        note.write(place)
        return Dumped(maps_files=self._maps_files(), why_no_tree=why)

    def _dump_tree(self, place: Path, note: DumpNote, bases: list[int]) -> dict[str, int]:
        """Dump every process into a folder of its own, named by its pid, and leave all stopped. Returns the inodes of
        the earlier files of pages that the images build on, by folder; 0 for complete images.

        Raises `CannotDump` and `OSError`; then the processes may stand still, until `_thaw`.
        """
        if why := ptrace.why_not():
            raise CannotDump(why)
        view = self._start.view
        if view is None or view.only_user() is not None:
            raise CannotDump("each process would be in a user namespace of its own")
        of_sessions = (f"{session.name}.{end}" for session in self._sessions for end in ("in", "out"))
        pipes = ("script", "control", "out", "err", *of_sessions)
        found = self._family(note.shell)
        if not self._kept_last:
            with suppress(OSError):  # a running process may end or close a file meanwhile: the second check decides
                members_of(found, self._start.private, pipes, self._sharing)  # refuse without stopping anything
        if any(process.state in "Tt" for process in found):
            raise CannotDump("a process was stopped")
        self._freeze_all()
        found = self._family(note.shell)
        alive = {process.pid for process in found}
        if note.shell not in alive:
            raise CannotDump("the shell has ended")
        note = replace(note, sessions={name: pid for name, pid in note.sessions.items() if pid in alive})
        members, opened = members_of(found, self._start.private, pipes, self._sharing)
        ephemeral = self._ephemeral_state()
        ephemeral.refuse_of_world()
        for process in found:
            ephemeral.refuse_of_process(process.pid)
        self._forget_bases(found, bases)
        taken: dict[str, int] = {}
        for process in found:
            base = replace(self._bases.get(process.key, ImageBase()), restored_from=self._mapped)
            folder, name = place / str(process.pid), str(process.pid)
            files = partial(opened.__getitem__, process.pid)  # as they stand still, they are the same
            made = process_dump.dump_process(name, process.pid, folder, files, base, view.points, shares_files=True)
            taken[name] = 0 if made is not None or base.base is None else base.base.inode
            if made is not None:
                base.close()
                self._bases[process.key] = replace(base, base=made)
        ProcessTree(note, members).write(place)
        return taken

    def _ephemeral_state(self) -> EphemeralState:
        if self._ephemeral is None:
            self._ephemeral = EphemeralState(self._start.private)
        return self._ephemeral

    def _in_removed_folders(self) -> list[int]:
        """The processes whose working folder was removed."""
        found = []
        for process in self._all():
            with suppress(OSError):  # it has ended meanwhile
                link = Path(f"/proc/{process.pid}/cwd").readlink()
                if str(link).endswith(REMOVED) and process_dump.working_folder(process.pid)[1]:
                    found.append(process.pid)
        return found

    def _family(self, root: int) -> list[processes.Process]:
        """The shell and its descendants, parents first."""
        found = self._all()
        return [*(p for p in found if p.pid == root), *(p for p in found if p.pid != root)]

    def _forget_bases(self, found: list[processes.Process], available: list[int]) -> None:
        """Drop what no next image can build on: of processes that have ended, or files that are gone."""
        for key, base in list(self._bases.items()):
            if key not in {process.key for process in found}:
                base.close()
                del self._bases[key]
            elif base.base is not None and base.base.inode not in available:
                base.close()
                self._bases[key] = replace(base, base=None)

    def _restore_tree(self, tree: ProcessTree, images: Path) -> None:
        """Start with the processes of these images. Raises `OSError` if they cannot be restored."""
        if self._criu is None:
            raise OSError("the snapshot holds dumped processes, and this world was not made to be dumped")
        note = tree.note
        script, script_in = self._private.pipe("script")
        control, control_in = self._private.pipe("control")
        sessions = {pid: self._sessions.prepare(name) for name, pid in note.sessions.items()}
        own = {"script": script, "control": control_in, "out": self._out.write_end, "err": self._err.write_end}
        for session in sessions.values():
            own |= zip((f"{session.name}.in", f"{session.name}.out"), session.held, strict=True)
        bounds = self._start.bounds
        image = self._start.view is not None and self._start.view.image
        open_later = replace(bounds, open_files=None)

        def confine(shares: bool) -> None:
            confinement.enter(open_later, isolated=True, image=image, filtered=False, restored=shares)

        try:
            with self._score.raised_for_children():
                pids, frozen = self._criu.pids, self._start.frozen
                restored = restore_tree(tree, images, own, confine, pids, bounds.open_files, frozen=frozen)
        except CannotRestore as error:
            raise OSError(str(error)) from error
        finally:
            for descriptor in (script, control_in):
                os.close(descriptor)
        self._begin_with(note, script_in, control)
        for pid, session in sessions.items():
            self._sessions.begin(session, pid)
        all_of_them = self._all()
        self._frozen = all_of_them if self._start.frozen else []
        for process in all_of_them:
            if process.pid in restored:
                folder = images / str(process.pid)
                base = base_of_restored(restored[process.pid].image, folder, restored[process.pid].found)
                if restored[process.pid].shares:
                    self._sharing.add(process.key)
                self._bases[process.key], self._mapped = base, self._mapped | base.restored_from
                if process.pid in sessions:  # a seal may have to keep the sessions alone
                    sessions[process.pid].image_base = base.duplicate()

    def _begin_with(self, note: DumpNote, script: int, control: int) -> None:
        """Take over a restored shell, by the agent's ends of its pipes."""
        shell = self._shell = Shell(note.shell, script, control, note.pwd)
        shell.oldpwd, shell.state, shell.status = note.oldpwd, note.state.encode("latin-1"), 0
        self._poll.register(shell.control, select.POLLIN)
        self._first_state, self._only_shell = self._state(), False

    def _restore_processes(self) -> None:
        """Start with the processes of an image. Raises `OSError` if they cannot be restored."""
        if self._criu is None or self._tree is None:
            raise OSError("the snapshot holds dumped processes, and this world has no CRIU to restore them")
        image = self._tree.image
        note = DumpNote.read(Path(f"/proc/self/fd/{image}"))
        script, script_in = self._private.pipe("script")
        control, control_in = self._private.pipe("control")
        sessions = {pid: self._sessions.prepare(name) for name, pid in note.sessions.items()}
        try:
            self._criu.restore(image)
        finally:
            for descriptor in (script, control_in, image):
                os.close(descriptor)
        self._criu.pids.last = note.last_pid
        self._begin_with(note, script_in, control)
        for pid, session in sessions.items():
            self._sessions.begin(session, pid)

    def _freeze(self) -> None:
        """Stop all processes but the shell. Raises `OSError`."""
        self._stop(self._others)

    def _freeze_all(self) -> None:
        """Stop all processes. Raises `OSError`."""
        self._stop(self._all)

    def _stop(self, select: Callable[[], list[processes.Process]]) -> None:
        for _ in range(FREEZES):
            self._frozen = processes.freeze(select)
            moving = [p.pid for p in select() if not processes.is_stopped(p)]
            if not moving:
                return
            self._thaw()  # a process waiting in vfork for a stopped child can continue now
        raise OSError(f"processes {moving} cannot be stopped: they hang in the kernel")

    def _thaw(self) -> None:
        for process in self._frozen:
            processes.send_signal(process, signal.SIGCONT)
        self._frozen = []


def _has_cpus_of_its_own(pid: int) -> bool:
    try:
        return os.sched_getaffinity(pid) != os.sched_getaffinity(0)
    except ProcessLookupError:
        return False
