"""Compare the merged view with a plain model of overlayfs."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.fork_engine.manifest import Manifest
from ramify.fork_engine.types import Entry, EntryKind
from ramify.fork_engine.view import HostOverlayView, View, changes_over_host, differing, layer_between
from tests.samples import sample

TOP = Entry(EntryKind.DIR, 0o755)
NAMES = st.sampled_from(["a", "b", "a-", "0"])
LEAF = st.sampled_from([EntryKind.FILE, EntryKind.SYMLINK])
TREES = st.recursive(
    st.builds(Entry, kind=LEAF, mode=st.sampled_from([1, 2])),
    lambda inner: st.dictionaries(NAMES, inner),
    max_leaves=8,
)
UPPERS = st.recursive(
    st.builds(Entry, kind=st.sampled_from([EntryKind.FILE, EntryKind.WHITEOUT]), mode=st.sampled_from([3, 4])),
    lambda inner: st.tuples(st.booleans(), st.dictionaries(NAMES, inner)),
    max_leaves=8,
)
Tree = dict[str, "Entry | Tree"]


def flatten(tree: object, prefix: str = "") -> dict[str, Entry]:
    flat: dict[str, Entry] = {}
    opaque, children = tree if isinstance(tree, tuple) else (False, tree)
    if prefix:
        flat[prefix] = Entry(EntryKind.DIR, 0o755, opaque=opaque)
    assert isinstance(children, dict)
    for name, child in children.items():
        path = f"{prefix}/{name}" if prefix else name
        flat.update({path: child} if isinstance(child, Entry) else flatten(child, path))
    return flat


def overlay(lower: object, upper: object) -> object:
    """A model of overlayfs that applies one level at a time."""
    if isinstance(upper, Entry):
        return None if upper.kind is EntryKind.WHITEOUT else upper
    opaque, names = upper if isinstance(upper, tuple) else (False, upper)
    merged = {} if opaque or not isinstance(lower, dict) else dict(lower)
    for name, child in names.items():
        result = overlay(merged.get(name), child)
        merged.pop(name, None)
        if result is not None:
            merged[name] = result
    return merged


@settings(max_examples=sample(30, 300), deadline=None)
@given(st.dictionaries(NAMES, TREES), st.lists(st.dictionaries(NAMES, UPPERS), max_size=4))
def test_stacking_is_what_overlayfs_shows(base: Tree, uppers: list[Tree]) -> None:
    view, model = View(Manifest(flatten(base), TOP)), base
    for upper in uppers:
        view, model = view.stacked(Manifest(flatten(upper), TOP)), overlay(model, upper)
        expected = flatten(model)
        assert dict(view) == expected
        assert list(view) == sorted(expected) and len(view) == len(expected)
        assert all((path in view) == (path in expected) for path in [*expected, "nowhere", "a/nowhere"])
        for folder in [path for path in expected if view.is_folder(path)] + [""]:
            below = {path for path in expected if path.startswith(folder + "/") or not folder}
            assert set(view.below(folder)) == below


@settings(max_examples=sample(30, 300), deadline=None)
@given(
    st.dictionaries(NAMES, TREES), st.dictionaries(NAMES, TREES), st.lists(st.dictionaries(NAMES, UPPERS), max_size=2)
)
def test_the_layer_between_two_views_leads_from_one_to_the_other(base: Tree, goal: Tree, uppers: list[Tree]) -> None:
    before = View(Manifest(flatten(base), TOP))
    for upper in uppers:
        before = before.stacked(Manifest(flatten(upper), TOP))
    after = View(Manifest(flatten(goal), TOP))
    changed = differing(before, after)
    assert changed == sorted(p for p in before.keys() | after.keys() if before.get(p) != after.get(p))
    layer = Manifest(layer_between(before, after, changed), TOP)
    assert dict(before.stacked(layer)) == dict(after)


@settings(max_examples=sample(30, 300), deadline=None)
@given(
    st.dictionaries(NAMES, TREES),
    st.lists(st.dictionaries(NAMES, UPPERS), max_size=2),
    st.lists(st.dictionaries(NAMES, UPPERS), min_size=1, max_size=2),
)
def test_a_layer_over_the_host_hides_only_what_it_is_to_hide(
    host: Tree, below: list[Tree], above: list[Tree]
) -> None:
    """Also in a folder that hides the host's already, such as every folder that a world made in its home."""
    before, shown = HostOverlayView(), View(Manifest(flatten(host), TOP))
    for upper in below:
        before, shown = before.stacked(Manifest(flatten(upper), TOP)), shown.stacked(Manifest(flatten(upper), TOP))
    after, goal = before, shown
    for upper in above:
        after, goal = after.stacked(Manifest(flatten(upper), TOP)), goal.stacked(Manifest(flatten(upper), TOP))
    layer = Manifest(layer_between(before, after, differing(before, after)), TOP)
    assert dict(shown.stacked(layer)) == dict(goal)


def test_hard_links_move_to_the_next_path_when_the_first_is_removed() -> None:
    file = Entry(EntryKind.FILE, 1)
    linked = Manifest({p: Entry(EntryKind.FILE, link="" if p == "a" else "a") for p in "abc"}, TOP)
    view = View(linked)
    assert [view[p].link for p in "abc"] == ["", "a", "a"]
    view = view.stacked(Manifest({"a": file}, TOP))
    assert [view[p].link for p in "abc"] == ["", "", "b"]
    view = view.stacked(Manifest({"b": Entry(EntryKind.WHITEOUT)}, TOP))
    assert [view[p].link for p in "ac"] == ["", ""]


def test_changes_over_the_host_tell_files_and_not_the_folders_that_lead_to_them() -> None:
    def layer(**entries: Entry) -> Manifest:
        folders = {"home": TOP, "home/me": TOP}
        files = {f"home/me/{name}": entry for name, entry in entries.items()}
        return Manifest({**folders, **files}, TOP)

    def file(digest: str) -> Entry:
        return Entry(EntryKind.FILE, 0o644, digest=digest)

    gone = Entry(EntryKind.WHITEOUT)
    before = HostOverlayView().stacked(layer(old=file("1"), later=file("1"), back=gone))
    after = before.stacked(layer(old=file("2"), later=gone, back=file("1"), new=file("1"), hosts=gone))
    told = [(one.path.removeprefix("home/me/"), one.kind.value) for one in changes_over_host(before, after)]
    assert told == [
        ("back", "added"),
        ("hosts", "removed"),
        ("later", "removed"),
        ("new", "added"),
        ("old", "modified"),
    ]
