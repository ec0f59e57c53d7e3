"""`bitgate verify` asks for nothing but to read: signatures and submissions too are replayed where none may write."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bitgate.gates.verify import verify


@pytest.fixture
def read_only() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())
    yield folder
    if os.geteuid() != os.getuid():
        os.seteuid(os.getuid())
    folder.chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.parametrize("log", [False, True], ids=["closed", "with its log left behind"])
def test_a_ledger_that_may_only_be_read_is_replayed_whole(world, signers, read_only, log):
    world.walk("C1")
    head = world.store.head()
    if not log:
        world.store.ledger.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    path = world.store.ledger.path
    for name in (path.name, *([f"{path.name}-wal"] if log else [])):
        shutil.copyfile(path.with_name(name), read_only / name)
    read_only.chmod(0o555)
    if os.getuid() == 0:
        os.seteuid(65534)  # permissions bind everybody but root
    found = verify(read_only / path.name, head=head.hash, reviewers=signers, artifacts=False)
    assert found.problems == []
    assert (found.ledger.rows, found.replay.votes) == (head.seq, 1)
    assert not list(read_only.glob("*-shm"))
