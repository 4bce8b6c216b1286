"""Whether whole processes can be dumped here with CRIU (the host side of checkpoint tier (a)), and its installation.

`make criu` installs CRIU 4 and the libraries that it was built against into a folder of its own, from the machine's
own Debian package sources. Debian 12 has CRIU 3.17, which fails on recent kernels; Debian 13 has 4.1. apt downloads
the packages with a state folder of its own and checks their signatures; then they are unpacked. Nothing is installed
on the system, no root is needed, and the system's programs keep their libraries.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ramify import paths
from ramify.sandboxes.contract import WorldSpec

COMMAND = "command.json"
"""The file that completes an installation. It holds the command's words, with absolute paths."""


def folder() -> Path:
    """$RAMIFY_CRIU, else `criu` in Ramify's home."""
    named = os.environ.get("RAMIFY_CRIU")
    return paths.expanded(named).absolute() if named else paths.home() / "criu"


def command() -> tuple[str, ...]:
    """CRIU's command line, to which a verb is added; empty if CRIU is not installed."""
    try:
        return tuple(json.loads((folder() / COMMAND).read_text()))
    except FileNotFoundError:
        return ()


def why_not(spec: WorldSpec) -> str:
    """Why worlds of this specification cannot be dumped; "" if they can."""
    if not spec.dumpable:
        return "the world was not made to be dumped: make it with dumpable=True"
    if spec.secrets:
        return "the world holds secrets, and an image of its memory would keep them"
    if not command():
        return f"CRIU is not installed in {folder()}: make criu"
    return ""


SUITE = "trixie"  # Debian 13
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
DEFAULT_SOURCE = "http://deb.debian.org/debian"
OLDEST = 4  # on recent kernels, version 3 cannot restore what it dumped


class InstallFailed(Exception):
    """CRIU could not be fetched or does not work here."""


def source() -> str:
    """The Debian archive that this machine's apt uses."""
    etc = Path("/etc/apt")
    listed = [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*"))]
    text = "\n".join(file.read_text(errors="replace") for file in listed if file.is_file())
    found = re.search(r"^(?:URIs:|deb(?:\s+\[[^]]*\])?)\s+(\S*/debian/?)(?:\s|$)", text, re.MULTILINE)
    return found[1].rstrip("/") if found else DEFAULT_SOURCE


def apt_options(state: Path) -> list[str]:
    """Options that make apt keep all its state in `state`. Of the system's files it reads only its configuration."""
    for name in ("lists/partial", "archives/partial"):
        (state / name).mkdir(parents=True)
    (state / "sources.list").write_text(f"deb [signed-by={KEYRING}] {source()} {SUITE} main\n")
    (state / "status").touch()
    places = {
        "Dir::Etc::sourcelist": state / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "Dir::State::lists": state / "lists",
        "Dir::State::status": state / "status",
        "Dir::Cache": state,
        "Dir::Cache::archives": state / "archives",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "",
        "Debug::NoLocking": "true",
    }
    return [word for name, value in places.items() for word in ("-o", f"{name}={value}")]


def download(state: Path) -> list[Path]:
    """Download the package files of CRIU and its dependencies."""
    options = apt_options(state)
    for words in (["update", "--quiet"], ["install", "--quiet", "--yes", "--download-only", "criu"]):
        done = subprocess.run(["apt-get", *options, *words], capture_output=True, text=True)
        if done.returncode != 0:
            raise InstallFailed(
                f"apt-get {words[0]} from {source()} failed: {done.stderr.strip() or done.stdout.strip()}"
            )
    return sorted((state / "archives").glob("*.deb"))


def unpack(packages: list[Path], into: Path) -> None:
    for package in packages:
        subprocess.run(["dpkg-deb", "--extract", str(package), str(into)], check=True)
    for waste in ("usr/share", "usr/include", "etc"):
        shutil.rmtree(into / waste, ignore_errors=True)


def working_command(folder: Path) -> list[str]:
    """CRIU's command line, with its own dynamic linker. Raises `InstallFailed` if it does not work on this kernel."""
    loader = next(iter(sorted(folder.glob("usr/lib/*/ld-linux*.so.*"))), None)
    program = folder / "usr/sbin/criu"
    if loader is None or not program.exists():
        raise InstallFailed(f"the packages of {SUITE} contain no criu for this machine")
    words = [str(loader), "--library-path", str(loader.parent), str(program)]
    told = subprocess.run([*words, "--version"], capture_output=True, text=True).stdout
    version = re.search(r"^Version: (\d+)", told, re.MULTILINE)
    if version is None or int(version[1]) < OLDEST:
        raise InstallFailed(f"{program} is {told.strip() or 'no criu'!r}: CRIU {OLDEST} or later is needed")
    checked = subprocess.run([*words, "check", "--unprivileged"], capture_output=True, text=True)
    if checked.returncode != 0:
        raise InstallFailed(f"criu check says: {(checked.stderr or checked.stdout).strip()}")
    return words


def install(folder: Path) -> None:
    """Install a working CRIU in `folder`, completely or not at all. Keep one that is there and works."""
    if (folder / COMMAND).exists():
        working_command(folder)
        return
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise InstallFailed(
                f"{tool} is not installed: install CRIU 4 by other means, and name its folder in RAMIFY_CRIU"
            )
    if not KEYRING.exists():
        raise InstallFailed(
            f"{KEYRING} is missing, so the packages could not be verified: install debian-archive-keyring"
        )
    paths.make_private(folder.parent)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".criu-") as aside:
        made = Path(aside, "criu")
        made.mkdir()
        unpack(download(Path(aside, "apt")), made)
        working_command(made)
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)
    (folder / COMMAND).write_text(json.dumps(working_command(folder)))


def main() -> int:
    place = folder()
    try:
        install(place)
    except InstallFailed as error:
        print(f"criu: {error}", file=sys.stderr)
        return 1
    version = subprocess.run([*command(), "--version"], capture_output=True, text=True)
    print(f"criu: {version.stdout.splitlines()[0]} works, in {place}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
