"""bitgate.toml as types. Unknown keys are refused; `load.py` names the nearest known one."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    model_validator,
)

from bitgate.tools.config.axes import AXES
from bitgate.tools.config.units import ByteSize, Seconds
from bitgate.tools.engines.jobs import Sampling
from bitgate.tools.runs.launchers import Launcher, LocalLauncher

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
EngineName = Literal["vllm", "transformers", "megatron", "vllm_kernels", "python", "capture", "server"]
Owner = Literal["baseline", "consistency"]


def _known_axis(axis: str) -> str:
    if axis not in AXES:
        raise ValueError(f"unknown axis; allowed: {', '.join(AXES)}")
    return axis


def _launcher_table(value: object) -> object:
    return {"kind": value} if isinstance(value, str) else value


def _env_text(value: object) -> object:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Axis = Annotated[str, AfterValidator(_known_axis)]
EnvValue = Annotated[str, BeforeValidator(_env_text)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelConfig(Section):
    """`[model.NAME]`"""

    path: str = Field(description="Checkpoint directory, relative to the project root")
    weight_version: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Optimizer updates since the root model; every row and the evidence carry it"
    )


class ExpectConfig(Section):
    """`[side.NAME.expect]`: what check_provenance must find in the worker."""

    versions: dict[str, str] = Field(default={}, description="Distribution name -> version")
    commits: dict[str, str] = Field(default={}, description="Package -> git commit, possibly abbreviated")
    modules: dict[str, str] = Field(default={}, description="Imported module -> path it must come from")
    env: dict[EnvName, EnvValue] = Field(default={}, description="Variable -> value as the worker must have it")
    backends: dict[str, str] = Field(default={}, description="describe() key -> what the engine must have chosen")
    transport: str | None = Field(default=None, description="How ranks talk, such as NVLS, IB, SHM")
    loaded: tuple[str, ...] = Field(default=(), description="Shared objects or modules that must be loaded (globs)")
    not_loaded: tuple[str, ...] = Field(default=(), description="The same, that must not be loaded (globs)")


class SideConfig(Section):
    """`[side.NAME]`: a way to compute logprobs."""

    engine: EngineName = Field(description="The kernel stack's adapter")
    python: str | None = Field(default=None, description="The interpreter that has the engine")
    launcher: Annotated[Launcher, BeforeValidator(_launcher_table)] = Field(
        default_factory=LocalLauncher, description='How ranks are started: a name such as "local", or a table with kind'
    )
    env: dict[EnvName, EnvValue] = Field(default={}, description="Environment of every rank")
    options: dict[str, JsonValue] = Field(default={}, description="Passed to the engine")
    axes: tuple[Axis, ...] | None = Field(default=None, description="What the deployment uses; default: from options")
    owner: Owner | None = Field(default=None, description="The role that may run and change this side")
    expect: ExpectConfig = ExpectConfig()
    model: Name | None = Field(default=None, description="Its model when a call names none")
    module: str | None = Field(default=None, description="engine python: the file with the two functions")
    capture: str | None = Field(default=None, description="engine capture: the folder with capture.json")
    source: str | None = Field(default=None, description="The source tree that was read for this side")
    url: str | None = Field(default=None, description="engine server: where a `vllm serve` that you started listens")

    @model_validator(mode="after")
    def _engine_needs(self) -> SideConfig:
        if self.engine == "capture" and self.capture is None:
            raise ValueError("engine 'capture' needs `capture`, the folder with capture.json")
        if (self.engine == "server") != (self.url is not None):
            raise ValueError("`url` is the address of engine 'server', needed there and only there")
        if self.engine not in ("capture", "server") and self.python is None:
            raise ValueError(f"engine {self.engine!r} needs `python`, the interpreter that has it")
        if (self.engine == "python") != (self.module is not None):
            raise ValueError("`module` is the user's file of engine 'python', needed there and only there")
        return self


MAX_TOKENS = 100_000_000
Length = Annotated[int, Field(ge=1, le=10_000_000)]


class GeneratorConfig(Section):
    """`[workload.NAME.generator]`: seeded random prompts, the same on every machine."""

    seed: int = 0
    count: Annotated[int, Field(ge=1, le=1_000_000)] = 16
    length: Length | tuple[Length, Length] = Field(default=(10, 64), description="Tokens, or [shortest, longest]")
    vocab: Annotated[int, Field(ge=2)] | tuple[int, int] = Field(
        default=1000, description="Token ids are below this, or in [first, end)"
    )
    shared_prefix: Annotated[int, Field(ge=0)] = Field(default=0, description="Leading tokens shared inside a group")
    prefix_groups: Annotated[int, Field(ge=1)] = Field(default=1, description="Number of such groups")

    @model_validator(mode="after")
    def _ranges(self) -> GeneratorConfig:
        shortest, longest = self.lengths
        if shortest > longest:
            raise ValueError(f"length: [{shortest}, {longest}] has its shortest after its longest")
        if self.shared_prefix >= shortest:
            raise ValueError(f"shared_prefix {self.shared_prefix} must be shorter than the shortest prompt, {shortest}")
        first, end = self.token_range
        if not 0 <= first < end:
            raise ValueError(f"vocab: [{first}, {end}) holds no token id")
        if self.count * longest > MAX_TOKENS:
            raise ValueError(f"count x length: up to {self.count * longest} tokens; allowed are {MAX_TOKENS}")
        return self

    @property
    def lengths(self) -> tuple[int, int]:
        return (self.length, self.length) if isinstance(self.length, int) else self.length

    @property
    def token_range(self) -> tuple[int, int]:
        return (0, self.vocab) if isinstance(self.vocab, int) else self.vocab


class WorkloadConfig(Section):
    """`[workload.NAME]`: which tokens a check runs on."""

    prompts: str | None = Field(default=None, description="JSONL or parquet file of prompts")
    column: str = Field(default="prompt_token_ids", description="Column or key that holds a prompt")
    response_column: str | None = Field(default=None, description="Column or key of a response to force, token ids")
    limit: Annotated[int, Field(ge=1)] | None = Field(default=None, description="Only the first so many prompts")
    generator: GeneratorConfig | None = None
    sampling: Sampling = Sampling()
    max_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 32

    @model_validator(mode="after")
    def _one_source(self) -> WorkloadConfig:
        if (self.prompts is None) == (self.generator is None):
            raise ValueError("give either `prompts` (a file) or a `generator` table")
        return self


class PolicyConfig(Section):
    """`[policy]`: what a gate and a run are held to."""

    updates_per_step: Annotated[int, Field(ge=1)] = Field(default=1, description="Optimizer updates a rollout step")
    rollout_floor: Annotated[float, Field(gt=0, le=1)] = Field(default=0.70, description="Share of baseline speed")
    corrections: tuple[str, ...] = Field(default=(), description="Importance-sampling corrections in use, such as TIS")
    cross_rank_reduction: Literal["none", "fixed"] | None = Field(
        default=None, description="Reductions across ranks on the compared path: none, or in fixed order; gate C0 asks"
    )
    roots: tuple[str, ...] = Field(default=(), description="Folders besides the project root that paths may lie in")
    provenance_max_age: Seconds = Field(default=86_400.0, description="Older provenance counts as unknown")
    run_timeout: Seconds = Field(default=7200.0, description="A run that takes longer is ended")
    start_timeout: Seconds = Field(default=600.0, description="An engine that is not up by then is ended")
    run_disk: ByteSize = Field(default=20 * 1024**3, description="A run's folder may grow to this")
    disk_reserve: ByteSize = Field(default=1024**3, description="Free space a run must leave on the disk")
    log_limit: ByteSize = Field(default=64 * 1024**2, description="A rank's log is cut at this")


class Config(Section):
    """The merged configuration."""

    model: dict[Name, ModelConfig] = {}
    side: dict[Name, SideConfig] = {}
    workload: dict[Name, WorkloadConfig] = {}
    policy: PolicyConfig = PolicyConfig()
