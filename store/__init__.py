"""The SQLite evidence store: hash chain, artifacts, migrations, verification. Imports nothing else of bitgate."""

from bitgate.store.artifacts import ArtifactStore
from bitgate.store.chain import GENESIS, Entry, Head
from bitgate.store.errors import Damaged, NotFound, Refused, StoreError, Unavailable
from bitgate.store.store import Store
from bitgate.store.verify import Problem, VerifyReport, verify_ledger

__all__ = [
    "GENESIS",
    "ArtifactStore",
    "Damaged",
    "Entry",
    "Head",
    "NotFound",
    "Problem",
    "Refused",
    "Store",
    "StoreError",
    "Unavailable",
    "VerifyReport",
    "verify_ledger",
]
