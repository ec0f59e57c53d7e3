"""What a wheel holds: every package and every file that is read at run time, named in pyproject.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
FOLDERS: dict[str, str] = SETUPTOOLS["package-dir"]


def package_of(folder: Path) -> str:
    return ".".join(("bitgate", *folder.relative_to(ROOT).parts))


def files() -> list[Path]:
    found = [path for folder in FOLDERS.values() for path in (ROOT / folder).rglob("*") if path.is_file()]
    return [path for path in found if "__pycache__" not in path.parts]


def test_every_folder_with_modules_is_a_package_of_the_wheel() -> None:
    packages = {package_of(path.parent) for path in files() if path.suffix == ".py"}

    assert packages == set(SETUPTOOLS["packages"])
    assert [
        name
        for name in packages
        if not (ROOT / name.removeprefix("bitgate.").replace(".", "/") / "__init__.py").is_file()
    ] == []


def test_every_file_that_is_no_module_is_package_data() -> None:
    named = {
        path
        for package, patterns in SETUPTOOLS["package-data"].items()
        for name in (SETUPTOOLS["packages"] if package == "*" else [package])
        for pattern in patterns
        for path in (ROOT / name.removeprefix("bitgate.").replace(".", "/")).glob(pattern)
    }

    assert {path for path in files() if path.suffix != ".py"} <= named


def test_every_room_tells_type_checkers_that_it_is_typed() -> None:
    assert [folder for folder in FOLDERS.values() if not (ROOT / folder / "py.typed").is_file()] == []
