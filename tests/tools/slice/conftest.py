from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bitgate.tools.engines import worker
from bitgate.tools.slice.refusal import Refusal

sys.path.insert(0, str(Path(__file__).parent))

from slicing import HERE, Sliced, engine_call, order, slice_of


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny checkpoint of every family and of every quantised format."""
    out = tmp_path_factory.mktemp("tiny")
    engine_call(str(HERE / "make_tiny.py"), str(out))
    return out


@pytest.fixture(scope="session")
def sliced(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Sliced | Refusal]:
    """Every tiny checkpoint, cut; a refusal where it was refused."""
    out = tmp_path_factory.mktemp("slices")
    found: dict[str, Sliced | Refusal] = {}
    for source in sorted(tiny.iterdir()):
        try:
            found[source.name] = slice_of(source, out / source.name, shard_bytes=60_000)
        except Refusal as refusal:
            found[source.name] = refusal
    return found


@pytest.fixture(scope="session")
def proofs(sliced: dict[str, Sliced | Refusal], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Reports of transformers and of window equivalence for every slice, from one process."""
    folder = tmp_path_factory.mktemp("proofs")
    (folder / "bitgate_worker").symlink_to(Path(worker.__file__).parent)
    orders = {name: order(name, item) for name, item in sliced.items() if isinstance(item, Sliced)}
    (folder / "orders.json").write_text(json.dumps(orders, allow_nan=False), encoding="utf-8")
    engine_call(str(HERE / "prove_all.py"), str(folder / "orders.json"), str(folder / "results.json"), str(folder))
    results: dict[str, Any] = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return results
