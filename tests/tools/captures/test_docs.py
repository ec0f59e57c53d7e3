"""The example of docs/captures.md, run as it is printed, in the engine's interpreter."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from bitgate.tools.captures import open_captures
from bitgate.tools.compare import compare_legs
from bitgate.tools.engines.worker import capture as module

PAGE = Path(__file__).parents[3] / "docs/captures.md"

MODEL = """
class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(50, 16)
        self.dropout = torch.nn.Dropout({dropout})
        self.head = torch.nn.Linear(16, 50, bias=False)

    def forward(self, tokens):
        return self.head(self.dropout(torch.cumsum(self.embed(tokens), 1)))


torch.manual_seed(0)
samples = [(torch.randint(0, 50, (length,)), 3) for length in (9, 12, 20)]
capture_step(Tiny(), samples, "out")
"""


def own_loop(folder: Path, python: str, *, change: tuple[str, str] = ("", ""), dropout: float = 0.0) -> None:
    code = re.search(r"<!-- own-loop.*?```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert code is not None
    assert change[0] in code[1]
    (folder / "capture.py").write_bytes(Path(module.__file__).read_bytes())
    (folder / "train.py").write_text(code[1].replace(*change) + MODEL.format(dropout=dropout), encoding="utf-8")
    subprocess.run([python, "train.py"], cwd=folder, check=True)


def verdict(folder: Path) -> tuple[str, list[str]]:
    legs, reasons = open_captures({name: folder / "out" / name for name in ("recompute", "first_train_forward")})
    assert not reasons
    result = compare_legs(legs, required=legs)
    return result.verdict, [reason.code for reason in result.reasons]


@pytest.mark.engine
def test_the_printed_loop_makes_legs_that_pass(tmp_path: Path, engine_python: str) -> None:
    own_loop(tmp_path, engine_python)
    assert verdict(tmp_path) == ("pass", [])
    legs, _ = open_captures({"train": tmp_path / "out/first_train_forward"})
    computation = legs["train"].meta.computation
    assert computation is not None
    assert (computation.passes, computation.watched, computation.mode) == (3, True, "train")
    assert computation.grad and computation.backward
    assert computation.buffers[0].grad_fn == "SliceBackward0"


@pytest.mark.engine
@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("(-logprobs.mean()).backward()", "pass"), "not_the_train_forward"),
        (("logprobs=logprobs,", "logprobs=logprobs.detach(),"), "not_the_train_forward"),
        (("    model.train()\n", ""), "not_the_train_forward"),
        (("logits.float()", "logits.bfloat16()"), "logprob_precision"),
    ],
    ids=["no backward", "detached", "eval mode", "bf16 log_softmax"],
)
def test_what_is_not_the_train_forward_is_invalid(
    tmp_path: Path, engine_python: str, change: tuple[str, str], code: str
) -> None:
    own_loop(tmp_path, engine_python, change=change)
    found = verdict(tmp_path)
    assert found[0] == "invalid" and code in found[1]


@pytest.mark.engine
def test_dropout_in_the_train_forward_is_found(tmp_path: Path, engine_python: str) -> None:
    own_loop(tmp_path, engine_python, dropout=0.5)
    assert verdict(tmp_path) == ("fail", ["logprobs_differ", "cause_unresolved"])


@pytest.mark.engine
def test_a_tensor_copied_from_another_leg_is_exposed(tmp_path: Path, engine_python: str) -> None:
    code = """
import torch
from capture import CaptureWriter
values = -torch.rand(40)
for role in ("rollout", "recompute"):
    with CaptureWriter(f"out/{role}", engine="t", role=role, weights={"digest": "ab" * 32}) as capture:
        half = values[:20] if role == "rollout" else values.view(2, 20)[0].numpy()
        capture.add(sequence=0, positions=range(20), token_ids=range(20), logprobs=half)
        capture.computed(kind="forward", passes=1)
"""
    (tmp_path / "capture.py").write_bytes(Path(module.__file__).read_bytes())
    subprocess.run([engine_python, "-c", code], cwd=tmp_path, check=True)
    legs, _ = open_captures({name: tmp_path / "out" / name for name in ("rollout", "recompute")})
    reasons = compare_legs(legs, required=legs).reasons
    assert [reason.code for reason in reasons] == ["no_evidence_of_recompute"]
    assert "same buffer" in reasons[0].detail
