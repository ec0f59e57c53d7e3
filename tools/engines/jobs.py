"""The job a side's worker executes: one engine, one model, a list of steps. Written as JSON, read by the worker.

Every step names sequences of the job's `sequences.safetensors` by index; `groups` are the batches they are
submitted in: all sequences of a group together, the groups one after the other, in this order. Sequences in `company`
are submitted like the others but leave no rows. After a `Generate` step the tokens it sampled replace the responses of
its sequences for every later step of the job.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

Groups = list[list[int]]
Packing = Literal["engine", "single", "padded", "packed"]


class JobModel(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Sampling(JobModel):
    """Sampling as requested. `temperature = 0` is greedy."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None


class Target(JobModel):
    """Record as operators: the forward that computes (sequence, position), from points `inputs` to `output`.

    A point is (layer, name); the operators of `layers` are noted.
    """

    layers: list[int]
    inputs: list[tuple[int, str]]
    output: tuple[int, str]
    sequence: int
    position: int


class Observe(JobModel):
    """Watch the step's semantic points: a digest a row of each, or, with a target, its operators and their inputs.

    The engine's worker writes them to `observed/<step>/` beside the captures.
    """

    target: Target | None = None


class Generate(JobModel):
    """Sample `max_tokens` tokens after each prompt. Capture rows: one per generated token, phase decode.

    The tokens sampled are kept in the capture (rows carry token_id), and become later jobs' responses.
    """

    kind: Literal["generate"] = "generate"
    name: str
    groups: Groups
    max_tokens: int
    sampling: Sampling = Sampling()


class Decode(JobModel):
    """Forced-token decode: each response token is fed one step at a time, its logprob recorded before it is fed.

    `prefilled` response tokens are part of the prompt instead (so that a cached or chunked prefix can be exercised).
    `reset_cache` empties the prefix cache first.
    """

    kind: Literal["decode"] = "decode"
    name: str
    groups: Groups
    company: list[int] = []
    prefilled: int = 0
    reset_cache: bool = False
    observe: Observe | None = None


class Prefill(JobModel):
    """Score every response token in one prefill of prompt + response."""

    kind: Literal["prefill"] = "prefill"
    name: str
    groups: Groups
    company: list[int] = []
    packing: Packing = "engine"
    observe: Observe | None = None


class TrainForward(JobModel):
    """The forward whose graph makes the loss: gradients on, train mode, nothing detached; a backward proves it."""

    kind: Literal["train_forward"] = "train_forward"
    name: str
    groups: Groups
    packing: Packing = "engine"
    observe: Observe | None = None


class Canary(JobModel):
    """Change one resident weight by one ulp, score `groups` again, restore it, score once more.

    An engine of one rank takes more ulps when one is rounded away. Result: weight touched, ulps that it took, rows
    whose logprob changed (must be > 0), rows that differ after restoring (must be 0).
    """

    kind: Literal["canary"] = "canary"
    name: str = "canary"
    groups: Groups


class Follow(JobModel):
    """Wait for further steps, which the supervisor writes to `folder`, until it writes the end."""

    kind: Literal["follow"] = "follow"
    name: str = "follow"
    folder: str


class Provenance(JobModel):
    """After load and run: every rank writes what runs in it into its folder (check_provenance). No rows.

    Of the environment only `env_names` and names that start with one of `env_prefixes` are written down. `hash_files`:
    the worker hashes the files itself, because bitgate does not see them.
    """

    kind: Literal["provenance"] = "provenance"
    name: str = "provenance"
    watched: list[str] = []
    hash_files: bool = False
    env_names: list[str] = []
    env_prefixes: list[str] = []


class Load(JobModel):
    """Serving load, one turn at a time, each when a file in `turns` calls for it (ab_benchmark). No rows.

    Every turn submits `groups` with exactly `max_tokens` generated tokens a request, at most `concurrency` at once.
    """

    kind: Literal["load"] = "load"
    name: str = "load"
    groups: Groups
    max_tokens: int
    sampling: Sampling = Sampling()
    concurrency: int | None = None
    turns: str = Field(description="Folder of the turn files")
    arm: Literal["a", "b"]


Step = Annotated[
    Generate | Decode | Prefill | TrainForward | Canary | Follow | Provenance | Load,
    Field(discriminator="kind"),
]


class Job(JobModel):
    """`job.json`. The worker also digests the resident weights and describes what the engine really chose."""

    version: Literal[1] = 1
    run_id: str
    side: str
    engine: str
    model_path: str
    weight_version: int = 0
    options: dict[str, JsonValue] = {}
    sequences: str = Field(description="Path of sequences.safetensors")
    steps: list[Step]
    out: str = Field(description="Folder; rank r writes out/rank00000-style folders")
    lease: str = Field(description="Path of the lease file; its mtime is renewed every second")
    lease_max_age_s: float = 5.0
    log_limit: int = Field(default=64 * 1024**2, description="Bytes of a rank's log that are kept")
    module: str | None = Field(default=None, description="engine python: the user's module, from the configuration")
