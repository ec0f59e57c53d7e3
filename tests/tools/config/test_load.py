from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from bitgate.tools.config.load import load_config
from bitgate.tools.config.project import Project
from bitgate.tools.errors import ConfigError

SIDE = '[side.{0}]\nengine = "vllm"\npython = "python3"\n'


def complaint(root: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(root)
    return str(caught.value)


def test_fragments_are_merged_with_the_main_file(write: Any) -> None:
    root = write(SIDE.format("rollout"), consistency=SIDE.format("trainer"), policy="[policy]\nrollout_floor = 0.8\n")

    config = load_config(root)

    assert sorted(config.side) == ["rollout", "trainer"]
    assert config.policy.rollout_floor == 0.8


def test_a_side_defined_twice_names_both_files(write: Any) -> None:
    text = complaint(write(SIDE.format("rollout"), agent=SIDE.format("rollout")))

    assert "[side.rollout] is defined in both" in text
    assert "bitgate.toml" in text and "bitgate.d/agent.toml" in text


def test_a_fragment_cannot_add_a_key_to_another_files_side(write: Any) -> None:
    assert "defined in both" in complaint(write(SIDE.format("rollout"), agent='[side.rollout.env]\nVLLM_X = "1"\n'))


def test_a_policy_key_given_twice_names_both_files(write: Any) -> None:
    text = complaint(write("[policy]\nrollout_floor = 0.7\n", agent="[policy]\nrollout_floor = 0.1\n"))

    assert "[policy.rollout_floor] is defined in both" in text and "agent.toml" in text


@pytest.mark.parametrize(
    ("text", "key", "nearest"),
    [
        ("[polcy]\n", "polcy", "policy"),
        ("[policy]\nrollout_flor = 0.7\n", "policy.rollout_flor", "rollout_floor"),
        (SIDE.format("r") + "optons = {}\n", "side.r.optons", "options"),
        (SIDE.format("r") + "[side.r.expect]\nversion = {}\n", "side.r.expect.version", "versions"),
        (SIDE.format("r") + 'launcher = { kind = "torchrun", nprocs = 2 }\n', "nprocs", "nproc"),
        (SIDE.format("env") + "axis = []\n", "side.env.axis", "axes"),
        ("[workload.w.generator]\nvocabs = 3\n", "workload.w.generator.vocabs", "vocab"),
        ("[workload.w]\n[workload.w.generator]\n[workload.w.sampling]\ntemprature = 1\n", "temprature", "temperature"),
    ],
)
def test_an_unknown_key_names_its_file_and_the_nearest_known_key(write: Any, text: str, key: str, nearest: str) -> None:
    error = complaint(write("", agent=text))

    assert "bitgate.d/agent.toml: unknown key" in error and key in error
    assert f"Did you mean '{nearest}'?" in error


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SIDE.format("r").replace("vllm", "vlm"), ["side.r.engine", "'vlm'", "'vllm'"]),
        ('[side.r]\nengine = "vllm"\n', ["side.r", "needs `python`"]),
        ('[side.r]\nengine = "capture"\n', ["needs `capture`"]),
        ('[side.r]\nengine = "python"\npython = "p"\n', ["`module`"]),
        (SIDE.format("r") + 'axes = ["prefil"]\n', ["unknown axis", "chunked_prefill"]),
        (SIDE.format("r") + 'launcher = "slurm"\n', ["launcher", "srun"]),
        (SIDE.format("r") + 'env = { "A-B" = "1" }\n', ["env"]),
        (SIDE.format("r") + 'owner = "me"\n', ["owner", "baseline"]),
        ('[side."a/b"]\nengine = "vllm"\npython = "p"\n', ["side.a/b"]),
        ("[policy]\nrollout_floor = 1.5\n", ["policy.rollout_floor"]),
        ('[policy]\nprovenance_max_age = "two days"\n', ["provenance_max_age", "24h"]),
        ('[policy]\nrun_disk = "10 parsecs"\n', ["run_disk", "10 GiB"]),
        ("[policy]\nrun_timeout = nan\n", ["run_timeout"]),
        ("[workload.w]\nmax_tokens = 3\n", ["either `prompts`"]),
        ("[workload.w.generator]\nlength = [9, 2]\n", ["shortest after its longest"]),
        ("[workload.w.generator]\nlength = 4\nshared_prefix = 4\n", ["shared_prefix"]),
        ("[workload.w.generator]\nvocab = [5, 5]\n", ["no token id"]),
        ("side = 3\n", ["side"]),
        ("[side\n", ["not valid TOML"]),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_allowed(write: Any, text: str, words: list[str]) -> None:
    error = complaint(write(text))

    assert "bitgate.toml" in error
    for word in words:
        assert word in error


def test_a_file_that_is_not_utf8_is_named(write: Any) -> None:
    root = write("")
    (root / "bitgate.d" / "x.toml").write_bytes(b'[model.a]\npath = "\xff"\n')

    assert "x.toml: not valid TOML" in complaint(root)


def test_all_problems_are_told_at_once(write: Any) -> None:
    text = complaint(write("[polcy]\n[policy]\nrollout_floor = 2\n"))

    assert len(text.splitlines()) == 2


def test_durations_and_sizes_are_read_as_people_write_them(write: Any) -> None:
    policy = load_config(
        write('[policy]\nprovenance_max_age = "7d"\nrun_timeout = "90m"\nrun_disk = "1.5 GiB"\nlog_limit = 1000\n')
    ).policy

    assert (policy.provenance_max_age, policy.run_timeout) == (604_800.0, 5400.0)
    assert (policy.run_disk, policy.log_limit) == (1_610_612_736, 1000)


def test_an_empty_file_gives_the_defaults(write: Any) -> None:
    policy = load_config(write("")).policy

    assert (policy.updates_per_step, policy.rollout_floor, policy.corrections) == (1, 0.70, ())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[model.a]\npath = "a\\u0000b"\n', "model.a.path: holds a NUL character"),
        (SIDE.format("r") + 'env = { A = "x\\u0000" }\n', "side.r.env.A: holds a NUL"),
        (SIDE.format("r") + "options = { a = [1, nan] }\n", "side.r.options.a.1: holds the number nan"),
        ("[policy]\nrun_disk = 1" + "0" * 5000, "not valid TOML"),
        ("#" * 1_100_000, "larger than 1048576 bytes"),
        ("[workload.w.generator]\ncount = 1000000\nlength = 10000000\n", "allowed are 100000000"),
        (f'[model.{"a" * 100_000}]\npath = "x"\n', "model.aaa"),
        ("\n".join(f"key{n} = 1" for n in range(1000)), "… and 980 more"),
        ("a = " + "[" * 20_000 + "]" * 20_000, "not valid TOML"),
    ],
    ids=["NUL", "NUL in env", "nan", "long number", "large", "tokens", "long name", "many", "deep"],
)
def test_a_hostile_file_is_refused_in_few_words(write: Any, text: str, words: str) -> None:
    said = complaint(write(text))

    assert words in said
    assert len(said) < 6000


@pytest.mark.parametrize("kind", ["fifo", "folder", "link to nothing"])
def test_a_fragment_that_is_no_file_is_named_without_waiting(write: Any, kind: str) -> None:
    root = write("")
    fragment = root / "bitgate.d" / "a.toml"
    make = {
        "fifo": lambda: os.mkfifo(fragment),
        "folder": fragment.mkdir,
        "link to nothing": lambda: fragment.symlink_to("nowhere"),
    }
    make[kind]()

    assert str(fragment) in complaint(root)
    with pytest.raises(ConfigError, match=r"a\.toml"):
        Project.load(root)


def test_a_byte_order_mark_is_not_part_of_the_text(write: Any) -> None:
    root = write("\ufeff[policy]\nrollout_floor = 0.8\n")

    assert load_config(root).policy.rollout_floor == 0.8
