from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitgate.tools.config.model import GeneratorConfig, WorkloadConfig
from bitgate.tools.config.project import Project
from bitgate.tools.config.workloads import TokenSequence, generate_prompts, read_sequences, sequences_digest
from bitgate.tools.errors import ConfigError
from bitgate.tools.run_compare import CompareRequest, plan

SMALL = GeneratorConfig(seed=7, count=3, length=(4, 6), vocab=100)


def test_generated_prompts_are_the_same_everywhere() -> None:
    assert generate_prompts(SMALL) == PINNED


PINNED = [(65, 7, 6, 68, 62), (4, 14, 61, 41), (49, 51, 73, 74)]


def test_another_seed_gives_other_prompts() -> None:
    assert generate_prompts(SMALL.model_copy(update={"seed": 8})) != PINNED


def test_more_prompts_start_with_the_fewer() -> None:
    assert generate_prompts(SMALL.model_copy(update={"count": 5}))[:3] == PINNED


def test_a_group_shares_its_prefix_and_nothing_more() -> None:
    prompts = generate_prompts(GeneratorConfig(count=6, length=40, shared_prefix=30, prefix_groups=2, vocab=50_000))

    assert len({prompt[:30] for prompt in prompts}) == 2
    assert prompts[0][:30] == prompts[2][:30] == prompts[4][:30]
    assert len({prompt[30:] for prompt in prompts}) == 6


@given(
    seed=st.integers(0, 2**63),
    count=st.integers(1, 20),
    shortest=st.integers(1, 30),
    spread=st.integers(0, 30),
    first=st.integers(0, 100),
    size=st.integers(1, 5),
)
def test_lengths_and_ids_stay_in_their_ranges(
    seed: int, count: int, shortest: int, spread: int, first: int, size: int
) -> None:
    config = GeneratorConfig(seed=seed, count=count, length=(shortest, shortest + spread), vocab=(first, first + size))

    prompts = generate_prompts(config)

    assert len(prompts) == count
    assert all(shortest <= len(prompt) <= shortest + spread for prompt in prompts)
    assert all(first <= token < first + size for prompt in prompts for token in prompt)


def test_a_configured_workload_gives_sequences(project: Project) -> None:
    sequences = project.workload("short").sequences()

    assert len(sequences) == 4 and all(3 <= len(s.prompt) <= 6 and s.response == () for s in sequences)


def test_the_digest_of_sequences_sees_one_token() -> None:
    assert sequences_digest([TokenSequence((1, 2))]) != sequences_digest([TokenSequence((1, 3))])
    assert sequences_digest([TokenSequence((1, 2))]) != sequences_digest([TokenSequence((1,), (2,))])


def jsonl(path: Path, *rows: Any) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return path


def read(path: Path, **config: Any) -> list[TokenSequence]:
    return read_sequences(path, WorkloadConfig(prompts=str(path), **config))


def test_prompts_are_read_from_jsonl(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "p.jsonl", {"prompt_token_ids": [1, 2]}, "", {"prompt_token_ids": [3], "other": "x"})

    assert read(path) == [TokenSequence((1, 2)), TokenSequence((3,))]
    assert read(path, limit=1) == [TokenSequence((1, 2))]


def test_responses_to_force_come_from_their_own_key(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "p.jsonl", {"ids": [1, 2], "answer": [5, 6]})

    assert read(path, column="ids", response_column="answer") == [TokenSequence((1, 2), (5, 6))]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("{not json", ["line 1", "not JSON"]),
        ([1, 2], ["no object"]),
        ({"prompt": "text"}, ["'prompt_token_ids'", "found: prompt", "`column`"]),
        ({"prompt_token_ids": "text"}, ["list of token ids", "tokenise it once"]),
        ({"prompt_token_ids": []}, ["is empty"]),
        ({"prompt_token_ids": [1, -1]}, ["holds -1"]),
        ({"prompt_token_ids": [1, True]}, ["holds True"]),
        ({"prompt_token_ids": [1.5]}, ["holds 1.5"]),
        ({"prompt_token_ids": [2**31]}, ["from 0 to"]),
    ],
)
def test_a_row_that_is_no_prompt_is_named(tmp_path: Path, row: Any, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        read(jsonl(tmp_path / "p.jsonl", row))

    for word in ["p.jsonl", *words]:
        assert word in str(caught.value)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no prompt"):
        read(jsonl(tmp_path / "p.jsonl"))


def test_a_missing_file_and_an_unknown_kind_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.jsonl: cannot be read"):
        read(tmp_path / "none.jsonl")
    with pytest.raises(ConfigError, match=r"\.jsonl, \.ndjson, \.parquet"):
        read(jsonl(tmp_path / "p.csv"))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (None, "cannot be read"),
        ([], "holds no prompt"),
        ([{"ids": [1]}], "name the key"),
        ([{"prompt_token_ids": []}], "is empty"),
        ([{"prompt_token_ids": [1, -2]}], "token ids from 0"),
    ],
)
def test_a_call_on_a_file_without_prompts_is_refused_before_its_run(
    write: Callable[..., Path], rows: list[Any] | None, words: str
) -> None:
    root = write(
        '[side.rollout]\nengine = "python"\npython = "python3"\nmodule = "m.py"\n'
        '[model.m]\npath = "m"\n[workload.w]\nprompts = "p.jsonl"\n'
    )
    if rows is not None:
        jsonl(root / "p.jsonl", *rows)

    with pytest.raises(ConfigError, match=words):
        plan(Project.load(root), CompareRequest(check="repeat"))


def test_parquet_without_pyarrow_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(ConfigError, match="pip install pyarrow"):
        read(tmp_path / "p.parquet")
