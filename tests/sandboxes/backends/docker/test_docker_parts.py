"""The parts of the docker backend that need no engine: counters, libraries, root file systems, captured changes."""

from __future__ import annotations

import io
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.sandboxes.agent.container_changes import apply, capture
from ramify.sandboxes.backends.docker.host_programs import (
    PLACE,
    RootFs,
    is_loader,
    libraries,
    make_portable_python,
    write_folder,
)
from ramify.sandboxes.errors import BackendUnavailable
from ramify.sandboxes.linux.cgroups import kills_for_memory
from tests.samples import sample

Tree = dict[str, "str | Tree"]  # a folder's entries: a file's text, or a folder


def test_kills_for_memory_under_version_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = "9:memory:/docker/a\n8:pids:/docker/a\n4:cpu,cpuacct:/docker/a\n0::/\n"
    monkeypatch.setattr(Path, "read_text", _reading({"/proc/7/cgroup": own}))
    _write(tmp_path / "memory/docker/a/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert kills_for_memory(7, tmp_path) == 3


def test_kills_for_memory_under_version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", _reading({"/proc/7/cgroup": "0::/system.slice/docker-a.scope\n"}))
    _write(tmp_path / "system.slice/docker-a.scope/memory.events", "max 9\noom 2\noom_kill 1\noom_group_kill 0\n")
    assert kills_for_memory(7, tmp_path) == 1


def test_a_kernel_that_does_not_count_has_killed_nothing(tmp_path: Path) -> None:
    assert kills_for_memory(os.getpid(), tmp_path) == 0
    assert kills_for_memory(2**22 + 1) == 0


def test_a_portable_python_runs_without_the_hosts_libraries(tmp_path: Path) -> None:
    portable_python = make_portable_python(tmp_path / "python")
    (tmp_path / "python" / "lib" / portable_python.standard.name).rmdir()
    (tmp_path / "python" / "lib" / portable_python.standard.name).symlink_to(portable_python.standard)
    command = [part.replace(PLACE, str(portable_python.folder)) for part in portable_python.running("container")[:-2]]
    program = "import sys, ctypes, socket; print(sys.prefix); print(open('/proc/self/maps').read())"
    done = subprocess.run([*command, "-c", program], capture_output=True, text=True, check=True, env={})
    prefix, *maps = done.stdout.splitlines()
    assert prefix == str(portable_python.folder)
    loaded = {line[73:] for line in maps if ".so" in line}
    assert loaded
    for library in loaded:
        assert any(map(Path(library).is_relative_to, (portable_python.folder, portable_python.standard)))


def test_libraries_are_listed_by_the_names_used_to_load_them() -> None:
    bash = shutil.which("bash")
    assert bash is not None
    found = libraries([Path(bash), Path(sys.executable).resolve()])
    assert any(name.startswith("libc.") for name in found)
    assert sum(map(is_loader, found)) == 1
    assert all(path.is_file() for path in found.values())


def test_a_root_file_system_contains_the_listed_files(tmp_path: Path) -> None:
    root = RootFs.of_host(python=False, texts={"etc/mark": "ü\n"})
    tar = io.BytesIO()
    root.write(tar)
    tar.seek(0)
    with tarfile.open(fileobj=tar) as read:
        assert read.getmember("tmp").mode == 0o1777
    subprocess.run(["tar", "-x", "-C", tmp_path], input=tar.getvalue(), check=True)
    assert (tmp_path / "etc" / "mark").read_text() == "ü\n"
    inside = subprocess.run(
        [*_loader(tmp_path), str(tmp_path / "usr/bin/bash"), "-c", "echo $BASH_VERSION"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert inside.stdout.strip()
    assert root.digest() == RootFs.of_host(python=False, texts={"etc/mark": "ü\n"}).digest()
    assert root.digest() != RootFs.of_host(python=False).digest()


def test_a_missing_program_is_named() -> None:
    with pytest.raises(BackendUnavailable, match="no-such-program is not on this machine"):
        RootFs.of_host(extra=["no-such-program"])


def test_everything_in_a_folders_tar_belongs_to_root(tmp_path: Path) -> None:
    _write(tmp_path / "image" / "etc" / "file", "x")
    (tmp_path / "image" / "link").symlink_to("/etc/file")
    tar = io.BytesIO()
    write_folder(tmp_path / "image", tar)
    tar.seek(0)
    with tarfile.open(fileobj=tar) as read:
        members = {member.name.lstrip("./"): member for member in read}
    assert {(member.uid, member.gid, member.uname) for member in members.values()} == {(0, 0, "root")}
    assert members["link"].linkname == "/etc/file"
    assert {"etc", "etc/file", "link"} <= members.keys()


names = st.sampled_from(["a", "b", "c", "ü *"])
trees: st.SearchStrategy[Tree] = st.recursive(
    st.dictionaries(names, st.sampled_from(["", "one", "two"]), max_size=3),
    lambda inner: st.dictionaries(names, st.one_of(st.sampled_from(["", "one"]), inner), max_size=3),
    max_leaves=12,
)


@settings(max_examples=sample(10, 30), deadline=None)
@given(image=trees, first=trees, second=trees)
def test_captured_and_applied_changes_give_the_same_tree(image: Tree, first: Tree, second: Tree) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        for number, tree in enumerate((first, second)):
            folder = root / f"round{number}"
            _grow(folder / "before", image)
            _grow(folder / "after", tree)
            changed, removed = _engines_list(image, tree)
            (folder / "layers").mkdir()
            capture(changed, removed, folder / "after", folder / "layers" / "000")
            apply(sorted((folder / "layers").iterdir()), folder / "before")
            assert _shape(folder / "before") == _shape(folder / "after")


def test_a_folder_made_anew_hides_what_the_image_has(tmp_path: Path) -> None:
    _grow(tmp_path / "before", {"d": {"old": "1", "both": "1"}, "e": "1"})
    _grow(tmp_path / "after", {"d": {"new": "2", "both": "2"}, "e": "1"})
    (tmp_path / "layers").mkdir()
    capture(["/d/new", "/d/both"], ["/d"], tmp_path / "after", tmp_path / "layers" / "000")
    apply(sorted((tmp_path / "layers").iterdir()), tmp_path / "before")
    assert _shape(tmp_path / "before") == {"d": {"new": "2", "both": "2"}, "e": "1"}
    assert os.listxattr(tmp_path / "before" / "d") == []


def test_modes_times_links_and_pipes_are_captured(tmp_path: Path) -> None:
    after, before = tmp_path / "after", tmp_path / "before"
    _write(after / "home" / "file", "text")
    before.mkdir()
    (after / "home" / "file").chmod(0o4750)
    (after / "home" / "link").symlink_to("nowhere")
    os.mkfifo(after / "home" / "pipe", 0o640)
    os.utime(after / "home" / "file", ns=(1, 1_000_000_007))
    (after / "home").chmod(0o711)
    os.utime(after / "home", ns=(1, 2_000_000_007))
    (tmp_path / "layers").mkdir()
    changed = ["/home", "/home/file", "/home/link", "/home/pipe", "/home/went-meanwhile"]
    capture(changed, [], after, tmp_path / "layers" / "000")
    apply(sorted((tmp_path / "layers").iterdir()), before)
    status = (before / "home" / "file").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_mtime_ns) == (0o4750, 1_000_000_007)
    assert (before / "home" / "link").readlink() == Path("nowhere")
    assert stat.S_ISFIFO((before / "home" / "pipe").stat().st_mode)
    home = (before / "home").stat()
    assert (stat.S_IMODE(home.st_mode), home.st_mtime_ns) == (0o711, 2_000_000_007)


def test_a_link_where_a_folder_was_is_not_followed(tmp_path: Path) -> None:
    """Applying a layer must not write through a link that leads elsewhere."""
    _write(tmp_path / "elsewhere" / "file", "safe")
    _grow(tmp_path / "before", {})
    (tmp_path / "before" / "d").symlink_to(tmp_path / "elsewhere")
    _grow(tmp_path / "after", {"d": {"file": "new"}})
    (tmp_path / "layers").mkdir()
    capture(["/d", "/d/file"], [], tmp_path / "after", tmp_path / "layers" / "000")
    apply(sorted((tmp_path / "layers").iterdir()), tmp_path / "before")
    assert (tmp_path / "elsewhere" / "file").read_text() == "safe"
    assert (tmp_path / "before" / "d" / "file").read_text() == "new"


def _engines_list(image: Tree, tree: Tree, above: str = "") -> tuple[list[str], list[str]]:
    """The changes as the engine would list them: changed and removed paths; a folder in a file's place is new, and so
    on."""
    changed: list[str] = []
    removed = [f"{above}/{name}" for name in image if name not in tree]
    for name, now in tree.items():
        path, was = f"{above}/{name}", image.get(name)
        if isinstance(now, dict):
            inner = _engines_list(was if isinstance(was, dict) else {}, now, path)
            if was is None or not isinstance(was, dict) or inner[0] or inner[1]:
                changed.append(path)
            changed += inner[0]
            removed += inner[1]
        elif now != was:
            changed.append(path)
    return changed, removed


def _grow(folder: Path, tree: Tree) -> None:
    folder.mkdir(parents=True)
    for name, what in tree.items():
        if isinstance(what, dict):
            _grow(folder / name, what)
        else:
            (folder / name).write_text(what)


def _shape(folder: Path) -> Tree:
    return {path.name: _shape(path) if path.is_dir() else path.read_text() for path in sorted(folder.iterdir())}


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def _loader(root: Path) -> list[str]:
    (loader,) = (path for path in root.rglob("ld-*") if path.is_file() and os.access(path, os.X_OK))
    folders = {str(path.parent) for path in root.rglob("*.so.*")}
    return [str(loader), "--library-path", ":".join(sorted(folders))]


def _reading(texts: dict[str, str]) -> Callable[[Path], str]:
    """`Path.read_text` with replaced texts for some paths."""
    real = Path.read_text
    return lambda path: texts[str(path)] if str(path) in texts else real(path)
