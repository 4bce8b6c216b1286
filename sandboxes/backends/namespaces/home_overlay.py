"""What lies beside the tree in a world: overlays of the user's home and /tmp, or an image's whole root and its user.

All of it is copy-on-write. A world writes into `outside/`, by paths relative to "/", and a seal makes a layer of
that. Below are the outside layers of its snapshot, and at the bottom the host's own home, live, or the image. The
lowest layer is a skeleton of empty folders that other mounts need as mount points; it is part of no snapshot. Neither
is the hosts file for an image without one.

`image_user` finds the user of a world over an image, as the image's own files name it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ramify.fork_engine.view import find_in_stack
from ramify.sandboxes.agent.mount_server import LayerEntry, Overlay
from ramify.sandboxes.backends.credentials import CREDENTIALS
from ramify.sandboxes.errors import WorldStartFailed
from ramify.sandboxes.host.mount_server_client import MountServerClient
from ramify.sandboxes.linux.mount_table import MountTable

NO_HOME = "/tmp/home"  # for a user who has no home
IN_EVERY_ROOT = ("dev", "proc", "sys", "run", "tmp", "var", "var/tmp")
HOSTS = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n"
APT_SETTINGS = 'APT::Sandbox::User "root";\n'
BASHES = ("bin/bash", "usr/bin/bash", "usr/local/bin/bash")


@dataclass(frozen=True, slots=True)
class SideOverlay:
    """One overlay beside the tree. `lowers` as in `mount_server.Mount`."""

    point: str
    lowers: tuple[str, ...]
    upper: str

    def over(self, work: str) -> Overlay:
        return Overlay(self.upper, work, "")


class HomeOverlays:
    """What the worlds of one backend share. `home` is None for a user without one. `hidden`: resolved paths."""

    def __init__(
        self, session: Path, trees: MountServerClient, home: Path | None, hidden: Sequence[Path] = ()
    ) -> None:
        self._trees, self._hidden = trees, hidden
        self.store = ""  # the folder of the layers, resolved
        self.home = home if home is not None and home.is_dir() and home != Path("/") else None
        self.exposed: list[str] = []  # credentials outside the home that links in it lead to
        self._around_session = self.home is not None and session.is_relative_to(self.home.resolve())
        self._made: dict[str, asyncio.Future[None]] = {}  # what the mount server was asked to make once, by name
        self._skeletons: dict[tuple[Path, ...], str] = {}  # their names, by the places that they were made for
        self._added: dict[tuple[Path, ...], tuple[str, ...]] = {}  # by image: the layer of what it lacks, if it does

    @property
    def inside(self) -> str:
        """HOME in a world."""
        return NO_HOME if self.home is None else str(self.home)

    async def overlays_over_host(
        self, folder: Path, layers: Sequence[Path], places: Iterable[Path]
    ) -> list[SideOverlay]:
        """The overlays of one world's home and /tmp. `places`: where more will be mounted."""
        skeleton = await self._skeleton(places)
        tmp = SideOverlay("/tmp", (f"{skeleton}/tmp", *_folder_in_layers(layers, "tmp")), str(folder / "outside/tmp"))
        if self.home is None:
            return [tmp]
        inside = str(self.home).lstrip("/")
        lowers: tuple[str, ...] = (f"{skeleton}/home", str(self.home), await self._mask(self.home))
        if self._around_session:
            lowers = (await self._read_only_home(skeleton, lowers),)
        home = SideOverlay(
            str(self.home), (*lowers, *_folder_in_layers(layers, inside)), str(folder / "outside" / inside)
        )
        return [home] if self.home.is_relative_to("/tmp") else [tmp, home]  # no upper inside an overlay

    async def overlays_over_image(
        self, folder: Path, image: Sequence[Path], layers: Sequence[Path], places: Iterable[Path]
    ) -> list[SideOverlay]:
        """The overlay of one world's whole root. `image`: its layers, lowest first; `layers`: those above it."""
        lowers = (
            f"{await self._skeleton(places)}/root",
            *map(str, image),
            *await self._added_to(tuple(image)),
            *map(str, layers),
        )
        return [SideOverlay("/", lowers, str(folder / "outside"))]

    async def _added_to(self, image: tuple[Path, ...]) -> tuple[str, ...]:
        """The layer with what an image leaves to its runtime, as most do with the names of this machine."""
        if image not in self._added:
            pieces = await asyncio.to_thread(added_entries, image, only_user=os.geteuid() != 0)
            point = f"names-{image[-1].parent.name}" if len(image) == 1 else f"names-{_digest(map(str, image))}"
            if pieces:
                await self._once(point, lambda: self._trees.make_layer(point, pieces))
            self._added[image] = (f"@{point}",) if pieces else ()
        return self._added[image]

    async def _once(self, name: str, make: Callable[[], Coroutine[object, object, None]]) -> None:
        if name not in self._made:
            self._made[name] = asyncio.ensure_future(make())
        await asyncio.shield(self._made[name])

    async def _read_only_home(self, skeleton: str, lowers: tuple[str, ...]) -> str:
        """A read-only overlay of the home below the worlds' own. An overlay may not write below one of its own
        layers, where the session lies, so the home has to look like another file system."""
        point = f"home-{skeleton[1:]}"

        async def mount() -> None:
            await self._trees.mount(lowers, [Overlay("", "", point)])

        await self._once(point, mount)
        return f"@{point}"

    async def _mask(self, home: Path) -> str:
        """The layer that hides the credentials."""

        async def make_layer() -> None:
            if mounted := MountTable.read().below(str(home.resolve())):
                raise WorldStartFailed(
                    f"{mounted[0]} is mounted inside the home folder {home}, and the kernel makes no "
                    "copy-on-write view of a folder with a mount in it. Unmount it, or start "
                    "Ramify with HOME set to another folder"
                )
            pieces, self.exposed = await asyncio.to_thread(mask_entries, home, self._hidden)
            await self._trees.make_layer("mask", pieces)

        await self._once("mask", make_layer)
        return "@mask"

    async def _skeleton(self, places: Iterable[Path]) -> str:
        key = tuple(places)
        if key not in self._skeletons:
            wanted = sorted({str(place) for place in (*key, self.inside)})
            name = f"skeleton-{_digest(wanted)}"
            await self._once(name, lambda: self._trees.make_layer(name, skeleton(wanted, self.home)))
            self._skeletons[key] = f"@{name}"
        return self._skeletons[key]


def skeleton(places: Sequence[str], home: Path | None) -> list[LayerEntry]:
    """Mount points for all the places, as they lie in an image's root, in /tmp, and in the home."""
    pieces = {path: LayerEntry(path, "folder") for path in ("root", "tmp", "home")}
    pieces |= {f"root/{path}": LayerEntry(f"root/{path}", "folder") for path in IN_EVERY_ROOT}
    for path in ("tmp", "root/tmp", "root/var/tmp"):
        pieces[path] = LayerEntry(path, "folder", 0o1777)
    below = {"root": "/", "tmp": "/tmp/", **({"home": f"{home}/"} if home is not None else {})}
    for place in places:
        is_file = Path(place).exists() and not Path(place).is_dir()
        for part, top in below.items():
            if place.startswith(top):
                path = f"{part}/{place[len(top) :]}"
                for parent in reversed(Path(path).parents[:-1]):
                    pieces.setdefault(str(parent), LayerEntry(str(parent), "folder"))
                pieces.setdefault(path, LayerEntry(path, "file" if is_file else "folder"))
    return list(pieces.values())


def added_entries(image: Sequence[Path], *, only_user: bool = False) -> list[LayerEntry]:
    """What an image leaves to its runtime: a hosts file, if it has none, or an empty one as `docker export` writes.

    `image`: its layers, lowest first. `only_user`: its root is the only user inside, so apt must not change to
    another. Blocks.
    """
    etc, hosts = find_in_stack(image, "etc"), find_in_stack(image, "etc/hosts")
    if etc is not None and not _is_folder(etc):
        return []
    added: list[LayerEntry] = []
    if hosts is None or not (hosts.is_symlink() or hosts.lstat().st_size):
        added.append(LayerEntry("etc/hosts", "file", 0o644, text=HOSTS))
    apt = {path: find_in_stack(image, path) for path in ("etc/apt", "etc/apt/apt.conf.d")}
    if only_user and all(found is not None and _is_folder(found) for found in apt.values()):
        added += [_like(found, path) for path, found in apt.items() if found is not None]
        added.append(LayerEntry("etc/apt/apt.conf.d/00ramify", "file", 0o644, text=APT_SETTINGS))
    if not added:
        return []
    return [_like(image[-1], ""), LayerEntry("etc", "folder") if etc is None else _like(etc, "etc"), *added]


def _is_folder(path: Path) -> bool:
    return stat.S_ISDIR(path.lstat().st_mode)


def _like(folder: Path, path: str) -> LayerEntry:
    """An entry at `path` with the mode and the time of a folder."""
    status = folder.lstat()
    return LayerEntry(path, "folder", stat.S_IMODE(status.st_mode), status.st_mtime_ns)


def _digest(words: Iterable[str]) -> str:
    return hashlib.sha256(os.fsencode("\0".join(words))).hexdigest()[:16]


def mask_entries(home: Path, hidden: Sequence[Path] = ()) -> tuple[list[LayerEntry], list[str]]:
    """Whiteouts for a home: for the credentials in it, and for hidden files. Hidden folders are covered by mounts
    instead. Also returns credentials outside the home that links lead to. Blocks."""
    real_home = home.resolve()
    status, parents, mounts = real_home.stat(), dict[Path, Path](), MountTable.read()
    pieces = {"": LayerEntry("", "folder", stat.S_IMODE(status.st_mode), status.st_mtime_ns)}
    elsewhere = []
    for name in CREDENTIALS:
        there = os.path.lexists(f"{home}/{name}")
        if not there and "/" not in name:
            pieces[name] = LayerEntry(name, "whiteout")
            continue
        path = home / name
        above = parents.get(path.parent) or parents.setdefault(path.parent, path.parent.resolve())
        if not there:
            if above.is_dir():  # a later login may make it
                if above.is_relative_to(real_home):
                    _white_out(above / path.name, real_home, pieces)
                else:
                    elsewhere.append(str(above / path.name))
            continue
        for real in {above / path.name, path.resolve()}:
            for shown in map(Path, mounts.names(str(real))):
                if shown.is_relative_to(real_home):
                    _white_out(shown, real_home, pieces)
                else:
                    elsewhere.append(str(shown))
    for path in hidden:
        if path.is_relative_to(real_home) and path != real_home and not path.is_dir():
            _white_out(path, real_home, pieces)
    return list(pieces.values()), elsewhere


def _white_out(path: Path, home: Path, pieces: dict[str, LayerEntry]) -> None:
    """Add a whiteout for a path of the home, or for the first missing folder on the way to it."""
    inside = path.relative_to(home)
    for parent in reversed(inside.parents[:-1]):
        if (known := pieces.get(str(parent))) is not None:
            if known.kind != "folder":
                return
            continue
        if not (home / parent).is_dir():
            pieces[str(parent)] = LayerEntry(str(parent), "whiteout")
            return
        status = (home / parent).stat()
        pieces[str(parent)] = LayerEntry(str(parent), "folder", stat.S_IMODE(status.st_mode), status.st_mtime_ns)
    pieces[str(inside)] = LayerEntry(str(inside), "whiteout")


def bash_of_image(layers: Sequence[Path]) -> str:
    """The path of the image's bash, from inside. `layers`: of its root, lowest first. Raises `WorldStartFailed`."""
    for name in BASHES:
        if find_in_stack(layers, name) is not None:
            return f"/{name}"
    raise WorldStartFailed(
        f"the image has no bash ({', '.join(BASHES)}), in which worlds run their commands: install it in the image"
    )


def _folder_in_layers(layers: Sequence[Path], inside: str) -> tuple[str, ...]:
    """The folder `inside` of those layers that have it."""
    return tuple(str(layer / inside) for layer in layers if (layer / inside).is_dir())


_MOST_BYTES = 1 << 20
_LARGEST_ID = (1 << 32) - 2


@dataclass(frozen=True, slots=True)
class ImageUser:
    uid: int
    gid: int
    home: str


def image_user(layers: Sequence[Path], named: str) -> ImageUser:
    """The user that USER names: a name or a number, with a group or without; "" for root. `layers`: of the image's
    root, lowest first. Raises `WorldStartFailed` for a name that the image does not have."""
    user, _, group = (named or "0").partition(":")
    found = next((row for row in _rows(layers, "etc/passwd", 6) if user in (row[0], row[2])), None)
    if found is None and not user.isdecimal():
        raise WorldStartFailed(
            f"the image has no user {user!r} in its /etc/passwd: name one that it has, or a number"
        )
    uid = _number(user if found is None else found[2], user)
    gid = _group(layers, group) if group else _number(found[3], user) if found is not None else 0
    home = found[5] if found is not None and found[5].startswith("/") else "/root" if uid == 0 else "/"
    return ImageUser(uid, gid, home)


def _group(layers: Sequence[Path], group: str) -> int:
    if group.isdecimal():
        return _number(group, group)
    for row in _rows(layers, "etc/group", 3):
        if row[0] == group:
            return _number(row[2], group)
    raise WorldStartFailed(f"the image has no group {group!r} in its /etc/group: name one that it has, or a number")


def _number(text: str, name: str) -> int:
    if not text.isdecimal() or len(text) > 10 or int(text) > _LARGEST_ID:
        raise WorldStartFailed(f"the user or group {name!r} of the image has an invalid id, {text[:20]!r}")
    return int(text)


def _rows(layers: Sequence[Path], path: str, least: int) -> list[list[str]]:
    """The lines of a file of the image, split at colons. A link or a device in its place counts as no file."""
    at = find_in_stack(layers, path)
    if at is None or not stat.S_ISREG(at.lstat().st_mode):
        return []
    with os.fdopen(os.open(at, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        text = file.read(_MOST_BYTES).decode(errors="replace")
    rows = (line.split(":") for line in text.splitlines())
    return [row for row in rows if len(row) >= least]
