from __future__ import annotations

from pathlib import Path

import pytest

from bitgate.tools.config.paths import confined
from bitgate.tools.errors import RequestError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    inside = tmp_path / "project"
    (inside / "captures").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "project-2").mkdir()
    return inside


def test_a_path_inside_resolves(root: Path) -> None:
    assert confined("captures/x", "capture", root) == root / "captures" / "x"
    assert confined(str(root / "captures"), "capture", root) == root / "captures"
    assert confined("captures/../captures", "capture", root) == root / "captures"


@pytest.mark.parametrize(
    "text",
    [
        "..",
        "../elsewhere",
        "/etc/passwd",
        "captures/../../elsewhere",
        "../project-2",
        "",
        "a\0b",
        "/",
        "~/x/../../../..",
    ],
)
def test_a_path_outside_is_refused(root: Path, text: str) -> None:
    if text.startswith("~"):
        text = text.replace("~", "captures")
    with pytest.raises(RequestError, match="allowed: a path under"):
        confined(text, "capture", root)


def test_a_name_that_no_file_can_have_is_refused(root: Path) -> None:
    with pytest.raises(RequestError, match="cannot be resolved"):
        confined("a" * 5000, "capture", root)


def test_a_link_that_leads_out_is_refused(root: Path) -> None:
    (root / "link").symlink_to(root.parent / "elsewhere")

    with pytest.raises(RequestError, match="roots"):
        confined("link/x", "capture", root)


def test_a_loop_of_links_is_refused(root: Path) -> None:
    (root / "a").symlink_to(root / "b")
    (root / "b").symlink_to(root / "a")

    with pytest.raises(RequestError):
        confined("a/x", "capture", root)


def test_a_root_of_the_policy_opens_its_folder_and_no_more(root: Path) -> None:
    extra = root.parent / "elsewhere"

    assert confined(str(extra / "x"), "capture", root, [extra]) == extra / "x"
    with pytest.raises(RequestError):
        confined(str(root.parent / "project-2"), "capture", root, [extra])


def test_a_root_given_as_a_link_is_followed_first(root: Path) -> None:
    link = root.parent / "data"
    link.symlink_to(root.parent / "elsewhere")

    assert confined(str(link / "x"), "capture", root, [link]) == root.parent / "elsewhere" / "x"
