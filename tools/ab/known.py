"""What ab_benchmark must know of the ledger, as values: the freeze, its band, and which bit-passes there are.

Whoever starts a run reads the ledger and hands this on (server/known.py); the tool never looks into it.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Known(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Band(Known):
    """What the frozen baseline did in its A/A run, on this workload: tokens a second, lowest and median turn."""

    evidence_id: str
    workload: str
    median: float
    lowest: float


class Freeze(Known):
    version: int
    manifest: str = Field(description="Digest of the frozen manifest")
    digests: dict[str, str] = Field(description="Side name -> frozen side digest")
    band: Band | None = None


class BitPass(Known):
    """A pass of run_compare rollout_vs_trainer, grade observed."""

    evidence_id: str
    finished_at: str
    side_digest: str
    architecture_digest: str
    weights_digest: str


class LedgerFacts(Known):
    """`read` is False when the run was started by something that knows no ledger: then nothing of it can be claimed."""

    read: bool = False
    freeze: Freeze | None = None
    bit_passes: tuple[BitPass, ...] = ()
