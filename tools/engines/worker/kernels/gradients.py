"""Whether gradients are right: each parameter's against a float64 reference, within a bound from the dtype.

Pure functions of tensors; needs torch alone. The forward being equal to the last bit says nothing about this: a
backward that is the identity leaves every logprob as it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

CONFIDENCE = 6.0
"""lambda of the bound: it fails with probability at most 2 n exp(-lambda^2 (1 - u)^2 / 2), 4e-6 for n = 130."""


def unit_roundoff(dtype: torch.dtype) -> float:
    """u: half the distance from 1 to the next number (2^-8 for bfloat16)."""
    return float(torch.finfo(dtype).eps) / 2


def rounding_bound(
    dtype: torch.dtype, roundings: int, *, accumulations: int = 0, confidence: float = CONFIDENCE
) -> float:
    """Relative error of a value that was rounded to `dtype` n times in a row, and summed up in float32 in between.

    exp(lambda sqrt(n) u + n u^2 / (1 - u)) - 1, with the same exponent added for `accumulations` additions in float32.
    Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis, SIAM J. Sci. Comput. 41(5), 2019,
    theorem 2.4: roundings are modelled as independent of mean zero; the worst case would be n u / (1 - n u).
    """
    parts = ((unit_roundoff(dtype), roundings), (unit_roundoff(torch.float32), accumulations))
    return math.expm1(sum(confidence * math.sqrt(n) * u + n * u * u / (1 - u) for u, n in parts))


ROUNDINGS_A_LAYER = 32
"""To the storage dtype on the longest path through one decoder layer, there and back: 16 operator outputs each way
(norm 2, fused qkv 1, head norm 2, rope 2, attention 1, o_proj 1, sum 1, norm 2, gate_up 1, silu-mul 2, down 1)."""

ROUNDINGS_OUTSIDE = 8
"""Embedding, final norm, head and logits, there and back."""


def model_roundings(layers: int) -> int:
    """n of a decoder of `layers` layers."""
    return ROUNDINGS_A_LAYER * layers + ROUNDINGS_OUTSIDE


def model_accumulations(layers: int, *, width: int, tokens: int, vocab: int) -> int:
    """Additions on the same path: 8 sums over `width` (norms and products) and 3 over `tokens` (attention) a layer, the
    head's and the softmax's, there and back; and the sum over tokens that a weight's gradient is."""
    return 2 * (layers * (8 * width + 3 * tokens) + width + vocab) + tokens


@dataclass(frozen=True)
class ParameterGradient:
    """One parameter's figures. `code` is None when its gradient is right, else a row of bitgate's reason table.

    relative_error: |g - r| / |r| in the 2-norm. scale: <g, r> / <r, r>. cosine: of g and r. None where undefined.
    """

    name: str
    code: str | None
    detail: str
    relative_error: float | None = None
    scale: float | None = None
    cosine: float | None = None


@dataclass(frozen=True)
class GradientCheck:
    """All parameters, and what a verdict is made of."""

    bound: float
    parameters: tuple[ParameterGradient, ...]

    @property
    def wrong(self) -> tuple[ParameterGradient, ...]:
        return tuple(item for item in self.parameters if item.code is not None)

    @property
    def has_power(self) -> bool:
        """Whether any parameter was compared with a gradient that is not zero."""
        return any(item.relative_error is not None for item in self.parameters)

    @property
    def verdict(self) -> str:
        if self.wrong:
            return "fail"
        return "pass" if self.has_power else "inconclusive"

    @property
    def worst(self) -> ParameterGradient | None:
        compared = [item for item in self.parameters if item.relative_error is not None]
        return max(compared, key=lambda item: item.relative_error or 0.0, default=None)


def check_gradients(
    given: Mapping[str, Tensor | None],
    reference: Mapping[str, Tensor],
    *,
    bound: float,
    frozen: Collection[str] = (),
) -> GradientCheck:
    """Compares every parameter of `reference` (float64) but the `frozen` ones, which must have no gradient.

    A parameter whose reference is exactly zero (an expert that no token chose) must be zero or absent.
    """
    names = sorted(reference)
    found = [
        _frozen(name, given.get(name)) if name in frozen else _one(name, given.get(name), reference[name], bound)
        for name in names
    ]
    found += [
        ParameterGradient(
            name, "gradient_unexpected", f"{name}: has a gradient, but the reference has no such parameter"
        )
        for name in sorted(set(given) - set(reference))
    ]
    return GradientCheck(bound, tuple(found))


def _frozen(name: str, given: Tensor | None) -> ParameterGradient:
    if given is None:
        return ParameterGradient(name, None, f"{name}: frozen, no gradient")
    return ParameterGradient(name, "gradient_unexpected", f"{name}: is frozen, but has a gradient")


def _one(name: str, given: Tensor | None, reference: Tensor, bound: float) -> ParameterGradient:
    expected = float(reference.norm())
    if given is None:
        if expected == 0.0:
            return ParameterGradient(name, None, f"{name}: no gradient, and the reference is zero")
        return ParameterGradient(
            name, "gradient_unreached", f"{name}: no gradient reached it; its norm should be {expected:.3g}"
        )
    if given.shape != reference.shape:
        shapes = f"{tuple(given.shape)}, the reference {tuple(reference.shape)}"
        return ParameterGradient(name, "gradient_differs", f"{name}: gradient has shape {shapes}")
    if not bool(given.isfinite().all()):
        count = int((~given.isfinite()).sum())
        return ParameterGradient(
            name, "gradient_not_finite", f"{name}: {count} of {given.numel()} elements are not finite"
        )
    return _compare(name, given.to(torch.float64), reference, expected, bound)


def _compare(name: str, given: Tensor, reference: Tensor, expected: float, bound: float) -> ParameterGradient:
    norm = float(given.norm())
    if expected == 0.0:
        code = "gradient_differs" if norm else None
        return ParameterGradient(name, code, f"{name}: norm {norm:.3g}, the reference is zero")
    if norm == 0.0:
        return ParameterGradient(name, "gradient_zero", f"{name}: zero; its norm should be {expected:.3g}", 1.0, 0.0)
    error = float((given - reference).norm()) / expected
    product = float((given * reference).sum())
    scale, cosine = product / expected**2, product / (expected * norm)
    if error <= bound:
        return ParameterGradient(name, None, f"{name}: relative error {error:.3g}", error, scale, cosine)
    detail = (
        f"{name}: relative error {error:.3g}, bound {bound:.3g}; {_likeness(given, reference, scale, cosine, bound)}"
    )
    return ParameterGradient(name, "gradient_differs", detail, error, scale, cosine)


def _likeness(given: Tensor, reference: Tensor, scale: float, cosine: float, bound: float) -> str:
    """What the wrong gradient looks like: a hint, computed, not a cause."""
    if given.ndim == 2 and given.shape[0] == given.shape[1]:
        transposed = float((given.T - reference).norm() / reference.norm())
        if transposed <= bound:
            return "it equals the reference transposed"
    if cosine >= 1 - bound**2:
        return f"the direction is right, the size is {scale:.4g} times the reference"
    if cosine <= bound**2 - 1:
        return f"it points the opposite way, {scale:.4g} times the reference"
    return f"cosine {cosine:.3f}, scale {scale:.4g}"


OPERATOR_ROUNDINGS = 4
"""Of one operator's VJP: its saved output, the incoming and the outgoing gradient, and one inside."""

Function = Callable[..., Tensor | tuple[Tensor, ...]]


def check_vjp(
    function: Function,
    reference: Function,
    inputs: Mapping[str, Tensor],
    *,
    bound: float | None = None,
    seed: int = 0,
    frozen: Collection[str] = (),
) -> GradientCheck:
    """One operator's backward: `function(*inputs)` against `reference(*inputs in float64)`, with the same cotangents.

    The cotangents are random plus the output itself: the derivative of a scale-invariant operator along its output is
    zero, so that a missing projection term shows at any width, where random vectors alone would hide it as 1/sqrt(n).
    Integer inputs pass through. Default bound: `OPERATOR_ROUNDINGS` roundings to the narrowest input dtype.
    """
    floating = [name for name, tensor in inputs.items() if tensor.is_floating_point()]
    if bound is None:
        dtypes = [inputs[name].dtype for name in floating]
        bound = max(rounding_bound(dtype, OPERATOR_ROUNDINGS) for dtype in dtypes)
    exact = {n: t.detach().to(torch.float64).requires_grad_(True) if n in floating else t for n, t in inputs.items()}
    outputs = _outputs(reference(*exact.values()))
    cotangents = _cotangents(outputs, seed)
    expected = torch.autograd.grad(outputs, [exact[n] for n in floating], cotangents, allow_unused=True)
    given = _given(function, inputs, floating, cotangents, frozen)
    wanted = {n: torch.zeros_like(exact[n]) if g is None else g for n, g in zip(floating, expected, strict=True)}
    return check_gradients(given, wanted, bound=bound, frozen=frozen)


def _outputs(value: Tensor | tuple[Tensor, ...]) -> list[Tensor]:
    values = value if isinstance(value, tuple) else (value,)
    return [v for v in values if v.is_floating_point()]


def _cotangents(outputs: Sequence[Tensor], seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [
        out.detach() / out.detach().std().clamp_min(1e-30)
        + torch.randn(out.shape, generator=generator, dtype=torch.float64)
        for out in outputs
    ]


def _given(
    function: Function,
    inputs: Mapping[str, Tensor],
    floating: Sequence[str],
    cotangents: Sequence[Tensor],
    frozen: Collection[str],
) -> dict[str, Tensor | None]:
    leaves = {
        name: tensor.detach().clone().requires_grad_(name in floating and name not in frozen)
        for name, tensor in inputs.items()
    }
    outputs = _outputs(function(*leaves.values()))
    pairs = [(o, c.to(o.dtype)) for o, c in zip(outputs, cotangents, strict=True) if o.requires_grad]
    if pairs:
        torch.autograd.backward([o for o, _ in pairs], [c for _, c in pairs])
    return {name: leaves[name].grad for name in floating}
