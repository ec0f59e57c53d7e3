"""Run by the engine's interpreter: what a `python` side's own modules are called; prints the points they became."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from bitgate.tools.engines.worker.probes.record import Record
from bitgate.tools.engines.worker.probes.recorder import Recorder
from bitgate.tools.engines.worker.probes.tap_python import PythonTaps
from bitgate.tools.engines.worker.sequences import Sequences


class Turn(nn.Module):
    def forward(self, x: Tensor, *, by: Tensor) -> Tensor:
        return x * by


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_norm, self.k_norm, self.turn = nn.Identity(), nn.Identity(), Turn()

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.turn(
            self.q_norm(x[:, :4].reshape(-1, 2, 2)) + self.k_norm(x[:, 4:, None]), by=x[:, :2, None]
        )
        return made


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = Attention()

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.self_attn(x)
        return made


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer()])


def main() -> None:
    state = Model()

    def score(group: list[int], sequences: Any, mode: str) -> list[Tensor]:
        state.layers[0](torch.randn(5, 6))
        return []

    module = SimpleNamespace(model=lambda given: given)
    engine = SimpleNamespace(_module=module, _state=state, _score=score)
    recorder = Recorder()
    taps = PythonTaps(recorder, engine, set())
    taps.start()
    engine._score([0], Sequences.of([([1, 2, 3], [4, 5])]), "prefill")
    taps.remove()
    try:
        Record(recorder, lambda *_: None, lambda: 5)(0, "own", [1.0])  # type: ignore[arg-type]
    except TypeError as error:
        said = str(error)
    points = sorted(name for layer, name in recorder.series if layer == 0)
    print(json.dumps({"points": points, "no tensor": said}))


main()
