"""The messages between the host and a world's agent. No logic; stdlib only. `framing.py` encodes them.

Every request gets one reply on the agent's socket, except `Cancel`, `StartProcess` and `Dial`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

from ramify.sandboxes.linux.resource_limits import Bounds


@dataclass(frozen=True, slots=True)
class View:
    """What an isolated world is built from. Its mounts are sent along as descriptors (`Link.passed`)."""

    folder: str  # the world's own folder, which holds all that it writes
    store: str  # the folder of the layers
    points: list[str]  # mount points of the descriptors, in their order: the places beside the tree, the tree last
    hidden: list[str]  # covered, so that commands cannot read them
    visible: list[str]  # shown although they lie under a hidden place
    network: bool = False  # the host's network
    image: bool = False  # the first mount point is the whole root, instead of the host's
    egress: bool = False  # the last descriptor is the host's socket for `listeners.Listeners`
    user: list[int] = field(default_factory=list)  # over an image: the only user and group inside; [] for the host's

    def only_user(self) -> tuple[int, int] | None:
        """The only user and group inside; None if the world has those of the host."""
        return (self.user[0], self.user[1]) if self.user else None


@dataclass(frozen=True, slots=True)
class Attach:
    """Attach the tree again, and put the shell back into its directory. Descriptors are sent as for `View.points`."""

    outside: bool = False  # everything, not only the tree


@dataclass(frozen=True, slots=True)
class Start:
    """The first frame, with all about the world. The reply is `Ready` or `Failed`."""

    tree: str  # where commands see the world's tree
    private: str  # the agent's own folder, as the agent sees it
    bash: str
    env: dict[str, str]
    cwd: str  # relative to the tree
    max_output: int
    shell: bytes = b""  # `ShellSnapshot` for the first shell; empty: a fresh one
    view: View | None = None  # None: no isolation, the tree is a plain folder
    criu: list[str] = field(default_factory=list)  # its command; empty: the processes cannot be dumped
    image: str = ""  # the processes to begin with, a folder of the store
    sessions: str = ""  # the Python sessions to begin with, a folder of the store
    lost: dict[str, str] = field(default_factory=dict)  # sessions that cannot be restored: by name, why
    bounds: Bounds = field(default_factory=Bounds)
    waits: bool = False  # for `Adopt`: the tree, the shell's state and the processes are not known yet
    whole: bool = False  # what it waits for is an image of processes, so it starts no shell meanwhile
    frozen: bool = False  # the processes of the image stand still until `Thaw`


@dataclass(frozen=True, slots=True)
class Adopt:
    """Begin the life of a world whose agent waits. Its tree comes along as a descriptor, after that of the image. The
    reply is `Done` or `Failed`. The fields are those of `Start`."""

    env: dict[str, str]
    cwd: str
    shell: bytes = b""
    image: bool = False  # there are processes to begin with
    sessions: str = ""
    lost: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Leave:
    """End all processes of the world. The reply comes when they have ended; the agent itself lives on."""


@dataclass(frozen=True, slots=True)
class Ready:
    pid: int  # the agent's, in the host's pid namespace
    uncovered: list[str] = field(default_factory=list)  # host folders that locks and watches reach, and why
    made: list[tuple[str, int, int]] = field(default_factory=list)
    """Host folders that were made anew in its view: their inodes and times. If one changes, the view is outdated."""


@dataclass(frozen=True, slots=True)
class Failed:
    message: str


@dataclass(frozen=True, slots=True)
class Run:
    command: str
    stdin: bytes = b""
    timeout: float | None = None
    env: dict[str, str] = field(default_factory=dict)
    cwd: str | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """Kill what the current `Run` started; its `Ran` comes as after a timeout."""


@dataclass(frozen=True, slots=True)
class Ran:
    """The result of `Run`."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    duration_s: float
    timed_out: bool
    truncated: bool
    others: int  # living processes beside the shell
    limit: str = ""  # the field of `Bounds` that ended the command
    earlier: str = ""  # the same for processes of earlier commands


@dataclass(frozen=True, slots=True)
class Inspect:
    """Ask for what a seal records beside the files."""

    kept: list[int] = field(default_factory=list)  # processes that will be started again, with their descendants


@dataclass(frozen=True, slots=True)
class Inspection:
    state: bytes  # the shell's, as `shell.Report` reads it; empty if no shell was needed yet
    began: bytes  # the first shell's before its first command
    others: int
    strays: int = 0  # those that do not descend from the processes in `Inspect`


@dataclass(frozen=True, slots=True)
class Detach:
    """Unmount the tree, after moving the shell out of it. `Done(False)`: something holds it, and nothing changed."""

    outside: bool = False  # also the places beside it


@dataclass(frozen=True, slots=True)
class OpenSession:
    """Start a Python session, unless one of that name lives."""

    session: str
    python: str
    source: bytes  # the text of `python_session.py`


@dataclass(frozen=True, slots=True)
class ForkSession:
    """Fork a session in the same world."""

    session: str
    child: str


@dataclass(frozen=True, slots=True)
class CloseSession:
    session: str


@dataclass(frozen=True, slots=True)
class RunCode:
    """Run code in a session. `Cancel` ends it as a timeout does."""

    session: str
    code: str
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class CodeResult:
    """The result of `RunCode`."""

    value: str | None  # the last expression's repr
    error: str | None  # the traceback
    stdout: bytes
    stderr: bytes
    timed_out: bool
    truncated: bool
    lives: bool  # whether the session still lives


@dataclass(frozen=True, slots=True)
class Dump:
    """Dump every process into an empty folder of the world's own. They stand still until `Thaw`."""

    images: str
    bases: list[int] = field(default_factory=list)  # inodes of available earlier page files


@dataclass(frozen=True, slots=True)
class Dumped:
    reason: str = ""  # why it failed; then all processes run on
    maps_files: bool = False  # as in `Frozen`
    tree: bool = False  # into Ramify's own images, else by CRIU
    taken: dict[str, int] = field(default_factory=dict)  # for these, as in `DumpedSessions`
    why_no_tree: str = ""


@dataclass(frozen=True, slots=True)
class DumpSessions:
    """Dump the Python sessions into a new folder of the world's own. All processes but the shell stand still until
    `Thaw`."""

    images: str
    bases: list[int] = field(default_factory=list)  # inodes of available earlier page files


@dataclass(frozen=True, slots=True)
class DumpedSessions:
    taken: dict[str, int]  # by session: the inode of the earlier page file that it builds on; 0 if it is complete
    reason: str = ""  # why some are missing
    maps_files: bool = False  # as in `Frozen`


@dataclass(frozen=True, slots=True)
class Freeze:
    """Stop every process until `Thaw`."""

    shell: bool = False  # the shell, too


@dataclass(frozen=True, slots=True)
class Frozen:
    maps_files: bool  # a process can write to a file by a mapping, which leaves no new time


@dataclass(frozen=True, slots=True)
class Thaw:
    pass


@dataclass(frozen=True, slots=True)
class StartProcess:
    """Start a process beside the shell, at once, also while a command of the shell runs. It has no reply on this
    socket: what becomes of the process is told on its own socket, a SOCK_SEQPACKET that comes first in
    `Link.passed`, one message a packet. Its end there kills the process."""

    argv: list[str]
    env: dict[str, str]  # the whole environment
    cwd: str  # absolute, or relative to the tree
    script: bool = False  # run `argv[0]` by the world's bash
    user: str = ""  # as `users.find` reads it; "": the agent's own
    passed: int = 0  # descriptors that come along: its socket, stdout, stderr, and stdin if there is one
    control: bool = False  # become the world's bash for a persistent shell; `shell.CONTROL` comes along last
    rows: int = 0  # of a terminal of its own, instead of these streams; then only the socket comes along
    columns: int = 0


@dataclass(frozen=True, slots=True)
class ProcessStarted:
    """On a process's own socket. The terminal's master comes along, if it has one."""

    pid: int


@dataclass(frozen=True, slots=True)
class ProcessRefused:
    """On a process's own socket: it was not started."""

    kind: str  # a name in `started_processes.REFUSALS`
    message: str


@dataclass(frozen=True, slots=True)
class ProcessEnded:
    """On a process's own socket. Its background processes may live on."""

    exit_code: int  # 128 + signal number if a signal ended it
    limit: str = ""  # the field of `Bounds` that ended it


@dataclass(frozen=True, slots=True)
class SignalProcess:
    """On a process's own socket. Without a number: kill it and everything that it started."""

    number: int = 0
    group: bool = True  # its whole process group


@dataclass(frozen=True, slots=True)
class Dial:
    """Begin a TCP connection inside the world, at once. It has no reply on this socket: `Dialled` comes on the one
    that comes along."""

    address: str
    port: int


@dataclass(frozen=True, slots=True)
class Dialled:
    """The connection, which may still be under way, comes along; none with an error, by its errno."""

    error: int = 0


@dataclass(frozen=True, slots=True)
class Done:
    ok: bool = True


Message = (
    Start
    | Adopt
    | Leave
    | Ready
    | Failed
    | Run
    | Cancel
    | Ran
    | Inspect
    | Inspection
    | Detach
    | Attach
    | OpenSession
    | ForkSession
    | CloseSession
    | RunCode
    | CodeResult
    | Dump
    | Dumped
    | DumpSessions
    | DumpedSessions
    | Freeze
    | Frozen
    | Thaw
    | StartProcess
    | ProcessStarted
    | ProcessRefused
    | ProcessEnded
    | SignalProcess
    | Dial
    | Dialled
    | Done
)
KINDS: dict[str, type[Message]] = {kind.__name__: kind for kind in get_args(Message)}
