"""capture.json, format 1, as a type. The writer is `tools/engines/worker/capture.py`; prose is docs/captures.md."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

FORMAT = "bitgate.capture"
VERSION = 1

Hex64 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Count = Annotated[int, Field(ge=0, le=1 << 48)]


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Shard(Part):
    """This folder is shard `index` of `count`; all of them together are one capture."""

    index: Annotated[int, Field(ge=0)] = 0
    count: Annotated[int, Field(ge=1, le=65536)] = 1


class ModelInfo(Part):
    name: str | None = None
    architecture_digest: Hex64 | None = None
    vocab_size: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Tokens of the model's vocabulary, without lanes that a kernel pads it with"
    )


class Weights(Part):
    digest: Hex64 = Field(description="Root digest under the checkpoint's own names")
    version: Count = 0
    tensors: Count | None = None


class Logprobs(Part):
    mode: Name = Field(description="raw_logprobs, or what the engine calls another kind")
    temperature: float = Field(description="What logits were divided by before the recorded log_softmax")
    dtype: Name = Field(description="Narrowest dtype that the values had before they were stored as fp32")


class RowsFile(Part):
    file: Name
    count: Count
    masked: Count
    sequences: Count


class Buffer(Part):
    """Memory that handed-in logprobs lay in. `serial` names it within its process, also when an address is reused."""

    serial: Count
    pointer: Annotated[int, Field(ge=0)]
    bytes: Count
    device: Name
    grad_fn: str | None = None


class Computation(Part):
    """Evidence that the logprobs were computed for this capture."""

    id: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    kind: Name
    passes: Count = Field(description="Forward passes")
    watched: bool = Field(description="Passes were counted by a hook on the model, not stated")
    mode: Literal["train", "eval", "unknown"]
    grad: bool
    backward: bool
    seconds: Annotated[float, Field(ge=0)]
    tokens: Count | None = None
    host: str
    process: str
    buffers: Annotated[tuple[Buffer, ...], Field(max_length=4096)] = ()


class CaptureMeta(Part):
    """The whole of capture.json."""

    format: Literal["bitgate.capture"]
    version: Literal[1]
    engine: Name
    role: Name
    shard: Shard = Shard()
    model: ModelInfo = ModelInfo()
    weights: Weights
    tokenizer_digest: Hex64 | None = None
    sampling: dict[str, JsonValue] | None = Field(
        description="Parameters as used; null when the tokens were given and nothing was sampled"
    )
    logprobs: Logprobs
    rows: RowsFile
    computation: Computation | None = None
    parallel: dict[str, int] = {}
    provenance: dict[str, JsonValue] = {}
