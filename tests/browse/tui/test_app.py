"""The browser, driven by its keys on the recorded story."""

from __future__ import annotations

from typing import Any

import pytest

FORK, INNER = "root/fork.1.0", "root/fork.1.0.1/fork.2.0"


async def test_graph_shows_open_ends_and_starts_at_the_newest_node(browse: Any) -> None:
    async with browse() as it:
        assert it.tree == [
            "○ run_tests: 5/5 passed ✎1 (root)",
            "● merge root/fork.1.0.1 ✎2 c4ec0014",
            "├┐",
            "│● merge (fork.1.0.1 merged) c4ec0012",
            "││○ try_edit: 5/5 passed ✗ (fork.2.0.0 merged)",
            "│├┘",
            "│● try_edit: 4/5 passed c4ec0008",
            "││○ try_edit: 4/5 passed ↺ (fork.1.0.2 released)",
            "│││○ try_edit: 4/5 passed (fork.1.0.0 released)",
            "├┴┴┘",
            "● workspace c4ec0000",
        ]
        assert it.here == it.tree[0]
        for word in ("repair", "5eed00000001", "done", "4 checkpoints", "3 model calls", "met"):
            assert word in it.head


async def test_cursor_stops_only_at_nodes_and_details_follow(browse: Any) -> None:
    async with browse() as it:
        await it.press("j", "j")
        assert it.here == it.tree[3]  # past the line that parts
        assert "c4ec0012ffffffffffffffff" in it.text
        await it.press("k")
        assert it.here == it.tree[1]
        assert "merge root/fork.1.0.1" in it.text
        await it.press("G")
        assert "workspace" in it.here
        await it.press("down")
        assert "workspace" in it.here
        await it.press("g")
        assert it.here == it.tree[0]


@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
async def test_each_tab_describes_the_node(browse: Any, size: tuple[int, int]) -> None:
    async with browse(size=size) as it:
        await it.press("j")
        for said in ("merge root/fork.1.0.1", "5eed00000001", "/src/agent.py:repair", "repaired"):
            assert said in it.text
        assert 'State\nrun_tests\n  {"Report": {"passed": 3}}\n' in it.text
        await it.press("2")
        assert "2 paths changed since its parent" in it.screen
        await it.press("3")
        assert "█" in it.screen
        assert "deadline 90.0 s" in it.screen
        await it.press("4")
        for said in ("How do I mend gcd?", "You mend programs.", "120 in, 16 out", "2 attempts", "stage 1/2 x2"):
            assert said in it.text
        await it.press("]")
        assert "3/5 passed" in it.screen
        await it.press("]")
        assert "None: no irreversible step ran." in it.screen
        await it.press("]")
        assert "checkpoint" in it.screen


async def test_enter_leads_from_a_list_to_details_and_from_a_bar_to_its_node(browse: Any) -> None:
    async with browse() as it:
        await it.press("j", "2", "tab", "j", "enter")
        assert it.pane.current.text.startswith("diff --git a/gcd.py b/gcd.py")
        shown = it.text
        assert "-    return a\n+    return gcd(b, a % b) if b else a" in shown
        assert "+why" in shown
        await it.press("3", "a")
        at = next(row for row, one in enumerate(it.pane.lines) if one.text.strip().startswith("try_edit"))
        it.pane.move_to(at)
        await it.press("enter")
        assert "try_edit" in it.here


async def test_files_are_compared_with_a_marked_node(browse: Any) -> None:
    async with browse() as it:
        await it.press("m")
        assert it.app._marked is None  # not sealed: nothing to compare with
        await it.press("G", "m", "g", "j", "j", "d")
        assert "0 paths changed" not in it.text
        assert "2 paths changed since c4ec0000ff (root)" in it.text
        assert "marked c4ec0000ff" in it.head
        await it.press("d")
        assert "changed since its parent" in it.text
        await it.press("G", "m")
        assert "marked" not in it.head


FINDS = {
    "fork.2.0.0": "try_edit: 5/5 passed ✗ (fork",  # a branch
    "3/5 pass": "merge root/fork.1.0.1",  # what came of a step
    "valueerror": "try_edit: 5/5 passed ✗ (fork",  # why an attempt failed
    "mend gcd?": "run_tests: 5/5",  # a prompt
    "notes.txt": "merge root/fork.1.0.1",  # a path that changed
    "c4ec0008": "4/5 passed c4ec",
}


async def test_branch_search_includes_results_prompts_and_paths(browse: Any) -> None:
    async with browse() as it:
        for needle, found in FINDS.items():
            await it.press("g")
            await it.search(needle)
            await it.until(lambda found=found: found in it.here)
        await it.press("g")
        await it.search("RELEASED")  # capitals matter where there are some
        await it.until(lambda: "nowhere" in it.said)
        assert it.branches.cursor == 0


async def test_n_repeats_the_search_round_the_end_and_in_the_details(browse: Any) -> None:
    async with browse() as it:
        await it.search("4/5")
        rows = []
        for key in ("n", "n", "n", "N"):
            rows.append(it.branches.cursor)
            await it.press(key)
            await it.until(lambda: it.branches.cursor != rows[-1])
        assert rows == [6, 7, 8, 6]
        await it.press("g", "tab")
        await it.search("workspace")
        await it.until(lambda: "workspace" in it.pane.current.text)
        assert it.branches.cursor == 0


async def test_zoom_shows_one_part(browse: Any) -> None:
    async with browse(size=(80, 24)) as it:
        await it.press("z")
        assert "1 State" not in it.screen
        assert "workspace c4ec0000" in it.screen
        await it.press("tab")
        assert "1 State" in it.screen
        assert "run_tests: 5/5" not in it.screen
        await it.press("z")
        assert "1 State" in it.screen
        assert "run_tests: 5/5" in it.screen


@pytest.mark.parametrize("asking", ["question_mark", "R", "f"])
async def test_ctrl_c_quits_from_any_dialog(browse: Any, asking: str) -> None:
    async with browse() as it:
        await it.press(asking)
        await it.press("ctrl+c")
        assert it.app.return_code == 0


async def test_question_mark_lists_the_keys_and_q_quits(browse: Any) -> None:
    async with browse() as it:
        await it.press("question_mark")
        assert "mark a node" in it.screen
        await it.press("escape")
        assert "mark a node" not in it.screen
        await it.press("q")
        assert it.app.return_code == 0
