"""This machine's programs in containers: its Python, root file systems made of them, and imports into the engine.

The agent needs a Python, and most images have none, or an old one. `make_portable_python` makes the host's run in any
container. The interpreter is mounted with its own dynamic loader and libraries, so the image's C library does not
matter. An image needs nothing but bash.

    with open("root.tar", "wb") as tar:
        RootFs.of_host(extra=["file"]).write(tar)

`RootFs` looks programs up on the path and includes their libraries and the running Python. `docker import` and
`WorldSpec.image` take the tar. `Images` finds the engine's image for a world; Ramify's own are imported once and
named by content.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Self

from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import LayerId, Snapshot
from ramify.sandboxes.backends.docker.engine import Engine
from ramify.sandboxes.errors import BackendUnavailable, WorldStartFailed

LINE = re.compile(r"^\s+(?:(?P<name>\S+) => )?(?P<path>/\S+) \(0x[0-9a-f]+\)$", re.MULTILINE)


def libraries(programs: Iterable[Path]) -> dict[str, Path]:
    """The path of each library, by the name that programs load it by (libz.so.1, not the file's own libz.so.1.2.13).

    The loader itself is included, by its full path. Scripts and static programs need none. Raises
    `BackendUnavailable` if a library is missing.
    """
    asked = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True)
    if "=> not found" in asked.stdout:
        missing = [line.strip() for line in asked.stdout.splitlines() if "not found" in line]
        raise BackendUnavailable(f"libraries are missing on this machine: {', '.join(missing)}")
    return {match["name"] or match["path"]: Path(match["path"]) for match in LINE.finditer(asked.stdout)}


def is_loader(name: str) -> bool:
    return Path(name).name.startswith(("ld-", "ld64.so", "ld.so"))


AGENT = Path(__file__).parents[2] / "agent" / "__main__.py"
PLACE = "/ramify/python"  # where containers see it
INSTALLED = ("site-packages", "dist-packages")  # in the standard library's folder
CODE = "/ramify/sandboxes"  # where they see ramify.sandboxes


@dataclass(frozen=True, slots=True)
class PortablePython:
    """A Python that runs in containers. `folder` holds `bin/python3` and `lib/`; it is mounted at PLACE, with
    `standard` in it."""

    folder: Path
    loader: str  # the dynamic loader's name in `lib`
    standard: Path  # the host's standard library

    def running(self, program: str, *arguments: str) -> list[str]:
        """The command line in a container of one of the agent's programs."""
        start = [f"{PLACE}/lib/{self.loader}", "--library-path", f"{PLACE}/lib", f"{PLACE}/bin/python3"]
        return [*start, "-I", "-S", "-B", f"{CODE}/agent/{AGENT.name}", program, *arguments]

    @property
    def mounts(self) -> dict[str, Path]:
        """The host's folders to mount read-only, by their places in the container. Packages that the user has
        installed are covered."""
        standard = f"{PLACE}/lib/{self.standard.name}"
        found = {PLACE: self.folder, standard: self.standard, CODE: AGENT.parents[1]}
        covered = (name for name in INSTALLED if (self.standard / name).is_dir())
        return found | {f"{standard}/{name}": self.folder / "empty" for name in covered}


def make_portable_python(folder: Path) -> PortablePython:
    """Make a portable Python in `folder`: about ten files, a tenth of a second. Raises `BackendUnavailable`."""
    python, standard = Path(os.path.realpath(sys.executable)), Path(sysconfig.get_path("stdlib"))
    asked = subprocess.run([python, "-I", "-S", AGENT, "extensions"], capture_output=True, text=True)
    if asked.returncode != 0:
        raise BackendUnavailable(f"{python} cannot run the agent: {asked.stderr.strip()}")
    needed = libraries([python, *map(Path, asked.stdout.splitlines())])
    loaders = [Path(name).name for name in needed if is_loader(name)]
    if not loaders:
        raise BackendUnavailable(f"{python} has no dynamic loader, so its parts cannot be moved into a container")
    (folder / "bin").mkdir(parents=True)
    (folder / "empty").mkdir()
    (folder / "lib" / standard.name).mkdir(parents=True)  # a mount point
    shutil.copy(python, folder / "bin" / "python3")
    for name, path in needed.items():
        shutil.copy(path, folder / "lib" / Path(name).name)
    _without_preloads(folder / "lib" / loaders[0])
    return PortablePython(folder, loaders[0], standard)


PRELOADS, NO_PRELOADS = b"/etc/ld.so.preload\0", b"/ramify/python/non\0"


def _without_preloads(loader: Path) -> None:
    """Let a copy of glibc's dynamic loader not load what /etc/ld.so.preload of an image names: it would run in the
    agent. The loader has no option for this, so it looks for a file that the mounted Python does not have. musl has
    no such list."""
    code = loader.read_bytes()
    if PRELOADS not in code and b"glibc" in code.lower():
        raise BackendUnavailable(
            f"{loader.name} of this machine does not name /etc/ld.so.preload as glibc's does, so an image could have "
            "a library loaded into Ramify's own process in its containers: use another backend (--sandbox namespaces)"
        )
    loader.write_bytes(code.replace(PRELOADS, NO_PRELOADS))


NEEDED = ("bash", "env")
USUAL = """
    awk basename cat chgrp chmod chown cksum cmp comm cp cut date dd df diff dirname du echo egrep expand expr false
    fgrep find fold gawk grep gunzip gzip head hostname id install join kill less ln ls mawk md5sum mkdir mkfifo mknod
    mktemp mv nice nl nohup nproc numfmt od paste patch pgrep pkill pr printenv printf ps pwd readlink realpath rm
    rmdir sed seq setsid sh sha1sum sha256sum shuf sleep sort split stat stty sync tac tail tar tee test timeout touch
    tr true truncate tty uname uniq unlink wc which who whoami xargs yes
"""
PROGRAMS = (*NEEDED, *USUAL.split())
# Libraries that binary wheels expect beside those that programs are linked to (PEP 600).
EXPECTED = "libgcc_s.so.1 libstdc++.so.6 libm.so.6 libdl.so.2 librt.so.1 libutil.so.1 libpthread.so.0 libresolv.so.2"
WHERE = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")  # links into usr on most machines
UNWANTED = frozenset({"test", "site-packages", "dist-packages", "__pycache__", "idlelib", "turtledemo", "ensurepip"})
# /root is readable: a Python may be installed below it, and the world's user may not be root.
FOLDERS = {"tmp": 0o1777, "var/tmp": 0o1777, "root": 0o755, "home": 0o755, "proc": 0o755, "sys": 0o755, "dev": 0o755}
TEXTS = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}


@dataclass(frozen=True, slots=True)
class RootFs:
    """The contents of the tar, by path without the leading slash. The programs' libraries are added."""

    files: dict[str, Path]
    links: dict[str, str]
    texts: dict[str, str]
    binaries: tuple[Path, ...]

    @classmethod
    def of_host(
        cls, extra: Iterable[str] = (), *, python: bool = True, texts: Mapping[str, str] | None = None
    ) -> Self:
        """With `extra` programs, with or without the running Python, and with small files (`texts`) of your own.

        An extra program brings its libraries, but no files that it reads: `git`, for one, also wants its folder of
        helpers. Raises `BackendUnavailable` if an extra or an indispensable program is not on the path.
        """
        wanted = (*PROGRAMS, *extra)
        programs = [path for name in wanted if (path := _find(name, must=name not in PROGRAMS or name in NEEDED))]
        links = {top: str(Path("/", top).readlink()) for top in MERGED if Path("/", top).is_symlink()}
        modules: list[Path] = []
        if python:
            interpreter = Path(os.path.realpath(sys.executable))
            links["usr/local/bin/python3"] = os.fspath(interpreter)
            programs.append(interpreter)
            modules = list(_below(Path(sysconfig.get_path("stdlib"))))
        files = {_place(path): path for path in (*programs, *modules)}
        binaries = (*programs, *(path for path in modules if path.suffix == ".so"))
        return cls(files, links, {**TEXTS, **(texts or {})}, binaries)

    def digest(self) -> str:
        """Changes if any of the files changes, by name, size and time."""
        fixed = (FOLDERS, sorted(self.links.items()), sorted(self.texts.items()), EXPECTED)
        seen = hashlib.sha256(repr(fixed).encode())
        for name, path in sorted(self.files.items()):
            status = path.stat()
            seen.update(repr((name, status.st_size, status.st_mtime_ns, status.st_mode)).encode())
        return seen.hexdigest()

    def write(self, tar: BinaryIO) -> None:
        """Write the tar; root owns everything in it. Raises `BackendUnavailable` if a library is missing."""
        needed = libraries(self.binaries)
        shared = {_place(Path(name) if name.startswith("/") else path): path for name, path in needed.items()}
        beside = next(path.parent for name, path in needed.items() if name.startswith("libc."))
        shared |= {_place(beside / name): beside / name for name in EXPECTED.split() if (beside / name).exists()}
        with tarfile.open(fileobj=tar, mode="w", dereference=True) as out:
            for name, mode in FOLDERS.items():
                out.addfile(_member(name, tarfile.DIRTYPE, mode))
            for name, target in sorted(self.links.items()):
                member = _member(name, tarfile.SYMTYPE, 0o777)
                member.linkname = target
                out.addfile(member)
            for name, text in self.texts.items():
                member = _member(name, tarfile.REGTYPE, 0o644)
                member.size = len(text.encode())
                out.addfile(member, io.BytesIO(text.encode()))
            for name, path in sorted((shared | self.files).items()):
                out.add(path, name, recursive=False, filter=as_root)


def write_folder(folder: Path, tar: BinaryIO) -> None:
    """Write the tar of a root file system's folder; root owns everything in it."""
    with tarfile.open(fileobj=tar, mode="w") as out:
        out.add(folder, "", filter=as_root)


def as_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member


def _member(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.mode = kind, mode
    return as_root(member)


def _find(name: str, *, must: bool) -> Path | None:
    found = shutil.which(name, path=WHERE)
    if found is None and must:
        raise BackendUnavailable(f"{name} is not on this machine ({WHERE}): an image needs it")
    return None if found is None else Path(found)


def _place(path: Path) -> str:
    """Its place in the tar: its own path, with links among its folders resolved, which are links in the tar too."""
    return os.fspath(Path(os.path.realpath(path.parent), path.name)).lstrip("/")


def _below(standard: Path) -> Iterator[Path]:
    """The standard library without tests, caches and installed packages."""
    for folder, names, files in os.walk(standard):
        names[:] = [name for name in names if name not in UNWANTED and not name.startswith("config-")]
        yield from (Path(folder, file) for file in files)


HOST, OURS = "ramify/host", "ramify/image"
DIGITS = 24  # of a digest, in a tag


class Images:
    """Finds images and imports those that the engine lacks. One import at a time: sibling worlds want the same
    one."""

    def __init__(self, engine: Engine, store: SnapshotStore, folder: Path) -> None:
        self._engine, self._store, self._folder = engine, store, folder
        self._known: dict[LayerId | Path | None, tuple[str, LayerId | None]] = {}
        self._one = asyncio.Lock()

    async def find(self, snapshot: Snapshot, wanted: Path | None) -> tuple[str, LayerId | None]:
        """The image of `snapshot`, else the one `wanted`, else one made of this machine's own programs.

        `wanted` is a root file system's folder or tar; if no such file exists, it is the name of an image of the
        engine. Returns the engine's name of the image, and its layer in our store if it is one. Raises
        `WorldStartFailed`, `BackendUnavailable`, and what importing into the store raises.
        """
        key = snapshot.image or wanted
        async with self._one:
            if key not in self._known or not await asyncio.to_thread(self._engine.has_image, self._known[key][0]):
                self._known[key] = await asyncio.to_thread(self._find, snapshot, wanted)  # or again: it was pruned
            return self._known[key]

    def _find(self, snapshot: Snapshot, wanted: Path | None) -> tuple[str, LayerId | None]:
        if snapshot.image is None and wanted is not None:
            if not os.path.lexists(wanted):
                return self._named(str(wanted)), None
            snapshot = replace(snapshot, image=self._store.import_image(wanted, hold=True))
        if snapshot.image is None:
            root = RootFs.of_host()
            return self._imported(f"{HOST}:{root.digest()[:DIGITS]}", root.write), None
        folder = self._store.outside_dirs(snapshot)[0]
        name = self._imported(f"{OURS}:{snapshot.image[:DIGITS]}", lambda tar: write_folder(folder, tar))
        return name, snapshot.image

    def _named(self, name: str) -> str:
        if not self._engine.has_image(name):
            raise WorldStartFailed(
                f"{name} is neither a root file system's folder or tar nor an image of the Docker Engine: "
                f"name an existing one, or `docker pull {name}` first"
            )
        return name

    def _imported(self, name: str, write: Callable[[BinaryIO], None]) -> str:
        if not self._engine.has_image(name):
            with tempfile.TemporaryFile(dir=self._folder) as tar:
                write(tar)
                tar.seek(0)
                self._engine.import_tar(tar, name)
        return name
