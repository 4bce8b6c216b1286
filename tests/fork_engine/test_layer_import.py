"""Layers of OCI images: whiteouts, opaque folders, implied folders, and hostile members."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest

from ramify.fork_engine.errors import ImageError, MergeConflict
from ramify.fork_engine.filesystem.stacked_folders import find_in_stack
from ramify.fork_engine.types import EntryKind


def member(name: str, kind: bytes = tarfile.REGTYPE, data: bytes = b"", **fields: Any) -> Any:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.mtime = kind, len(data), 1_700_000_000
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def stream(*members: Any) -> io.BytesIO:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return io.BytesIO(made.getvalue())


def imported(bench: Any, *members: Any, below: Any = ()) -> Any:
    return bench.store.import_layer(stream(*members), below, name="a layer")


def folder(name: str, mode: int = 0o755) -> Any:
    return member(name, tarfile.DIRTYPE, mode=mode)


def test_whiteouts_and_opaque_folders_become_overlays_own(bench: Any) -> None:
    low = imported(bench, folder("etc"), member("etc/old", data=b"1"), folder("var"), member("var/log", data=b"2"))
    top = imported(
        bench, folder("etc"), member("etc/.wh.old"), folder("var"), member("var/new"), member("var/.wh..wh..opq"),
        member(".wh..wh.plnk"), below=[low.layer],
    )  # fmt: skip
    entries = bench.store._layers.manifest(top.layer).entries
    assert entries["etc/old"].kind is EntryKind.WHITEOUT and entries["var"].opaque and len(entries) == 4
    image = bench.store.save_image([low.layer, top.layer], {"A": "1"})
    assert list(bench.store.outside(image)) == ["etc", "var", "var/new"]
    dirs = bench.store.outside_dirs(image)
    assert stat.S_ISCHR((dirs[1] / "etc/old").lstat().st_mode)
    assert find_in_stack(dirs, "etc/old") is None and find_in_stack(dirs, "var/log") is None
    assert find_in_stack(dirs, "etc") == dirs[1] / "etc" and image.env == {"A": "1"}
    assert bench.store.fsck().status == 0


def test_a_whiteout_hides_nothing_of_its_own_layer_in_any_order(bench: Any) -> None:
    made = imported(
        bench, member(".wh.a"), member("a", data=b"1"), member("b", data=b"1"), member(".wh.b"),
        folder("d"), member("d/in"), member(".wh.d"), member("f"), member("f/.wh.x"),
    )  # fmt: skip
    entries = bench.store._layers.manifest(made.layer).entries
    assert entries["a"].kind is entries["b"].kind is EntryKind.FILE and entries["d"].opaque
    assert sorted(entries) == ["a", "b", "d", "d/in", "f"]


def test_an_undeclared_folder_keeps_the_mode_below(bench: Any) -> None:
    low = imported(bench, folder(".", 0o555), folder("tmp", 0o1777))
    alone, over = (imported(bench, member("tmp/x"), below=below) for below in ((), (low.layer,)))
    assert alone.implied == over.implied == {"", "tmp"} and not alone.modes
    assert over.modes == {"": 0o555, "tmp": 0o1777}
    assert bench.store._layers.manifest(over.layer).entries["tmp"].mode == 0o1777
    assert imported(bench, member("tmp/x")).layer == alone.layer  # the same tar is the same layer


def test_equal_layers_are_stored_once_and_hard_links_stay(bench: Any) -> None:
    members = (member("a", data=b"abc"), member("b", tarfile.LNKTYPE, linkname="a"), member("a2", data=b"abc"))
    one, two = imported(bench, *members), imported(bench, *members)
    assert one.layer == two.layer and one.bytes == 6 and len(bench.on_disk("layers")) == 1


def test_devices_are_left_out_and_overlay_attributes_dropped(bench: Any) -> None:
    made = imported(
        bench, member("dev", tarfile.CHRTYPE), member("a", pax_headers={"SCHILY.xattr.user.overlay.redirect": "/etc"})
    )
    assert list(bench.store._layers.manifest(made.layer).entries) == ["a"]
    assert os.listxattr(bench.store._layers.fs(made.layer) / "a") == []


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ((member("a/../../b"),), "leads out"),
        ((member(".wh..."),), "leads out"),
        ((member("a/.wh.."),), "leads out"),
        ((member(".wh."),), "leads out"),
        ((member(".wh..wh..opq"),), "hides every layer"),
        ((member("l", tarfile.SYMTYPE, linkname="/etc"), member("l/passwd", data=b"x")), "replaced the folder"),
        ((member("h", tarfile.LNKTYPE, linkname="../../etc/passwd"),), "leads out"),
        ((member("h", tarfile.LNKTYPE, linkname="nowhere"),), "not in the tar"),
        ((member("x" * 300),), "no file system can hold"),
        ((member("a", pax_headers={"comment": "x" * (2 << 20)}),), "header of"),
    ],
)
def test_hostile_members_are_refused_and_nothing_is_made(bench: Any, members: Any, why: str) -> None:
    with pytest.raises(ImageError, match=why):
        imported(bench, *members)
    assert bench.on_disk("layers") == [] and bench.on_disk("tmp") == []


def test_room_is_bounded(bench: Any) -> None:
    with pytest.raises(ImageError, match="more bytes than"):
        bench.store.import_layer(stream(member("a", data=b"x" * 100)), name="bomb", room=99)


def test_a_stream_that_fails_at_its_end_leaves_nothing(bench: Any) -> None:
    class Liar(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            data = super().read(size)
            if not data:
                raise ValueError("digest")
            return data

    with pytest.raises(ValueError, match="digest"):
        bench.store.import_layer(Liar(stream(member("a")).getvalue()), name="liar")
    assert bench.on_disk("layers") == []


def test_a_high_image_is_squashed(bench: Any) -> None:
    layers = [imported(bench, member(f"f{n}", data=b"x")).layer for n in range(60)]
    image = bench.store.save_image(layers, {})
    assert len(image.outside) <= 48 and len(bench.store.outside(image)) == 60


def test_a_stack_is_searched_from_the_top(tmp_path: Path) -> None:
    low, top = tmp_path / "low", tmp_path / "top"
    (low / "a/b").mkdir(parents=True)
    (top / "a").mkdir(parents=True)
    (top / "c").write_text("")
    (low / "c").mkdir()
    (low / "c/d").write_text("")
    assert find_in_stack([low, top], "a/b") == low / "a/b"
    assert find_in_stack([low, top], "c/d") is None and find_in_stack([low, top], "") == top


def test_a_state_over_an_image_costs_what_changed_since(bench: Any) -> None:
    low, top = (
        imported(bench, member("a", data=b"1"), member("b", data=b"1")),
        imported(bench, member("b", data=b"2")),
    )
    image = bench.store.save_image([low.layer, top.layer], {})
    assert image.image_stack == (low.layer, top.layer) and bench.store.get(image.id) == image
    shown = bench.store._outside(image)
    assert not shown.delta and shown.locate("a").layer == low.layer and shown.locate("b").layer == top.layer
    upper, beside = bench.upper(image), bench.place()
    beside.mkdir()
    (beside / "c").write_text("3")
    after = bench.store.seal_upper(upper, image, outside=beside, move=True, **bench.seal)
    assert after.image_layers == 1 and list(bench.store._outside(after).delta) == ["c"]
    assert sorted(bench.store.outside(after)) == ["a", "b", "c"] and bench.store.fsck().status == 0


def test_states_over_images_merge_only_over_the_same(bench: Any) -> None:
    low, one, two = (imported(bench, member(name, data=b"1")).layer for name in "abc")
    base = bench.base({"file": "1\n"})
    over = bench.store.over_image(base, bench.store.save_image([low, one], {}))
    ours, theirs = bench.after(over, {"mine": "1"}), bench.after(over, {"theirs": "2"})
    merged = bench.store.merge(base, ours, theirs)  # the base was imported before any world stood over the image
    assert sorted(bench.texts(merged)) == ["file", "mine", "theirs"] and merged.image_stack == (low, one)
    other = bench.store.over_image(base, bench.store.save_image([low, two], {}))
    with pytest.raises(MergeConflict, match=r"/ \(type\)"):
        bench.store.merge(base, ours, bench.after(other, {"x": "1"}))
