from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest

from ramify.cli.path_options import NamedPath


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="Python finds the link where the path is used")
def test_a_link_that_leads_to_itself_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(link)
    with pytest.raises(click.BadParameter, match="leads to itself"):
        NamedPath(path_type=Path).convert(str(link / "file"), None, None)


def test_an_empty_path_is_refused() -> None:
    with pytest.raises(click.BadParameter, match="empty"):
        NamedPath().convert("", None, None)
