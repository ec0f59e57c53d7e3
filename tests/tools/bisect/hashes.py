"""Run by the engine's interpreter: what the row hash makes of tensors of every dtype, printed as JSON.

`rows`: bytes and digests, for a second implementation to check; `facts`: name -> what holds, each true or false.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bitgate.tools.engines.worker.probes import hashing
from bitgate.tools.engines.worker.probes.hashing import digests, row_sums, salt_of

DTYPES = (
    torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool,
)  # fmt: skip
DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
KEY = np.asarray([[3, 70_000_000_000]], np.int64)
RNG = np.random.default_rng(11)


def random_rows(count: int, width: int, dtype: torch.dtype) -> Tensor:
    """Any bits there are, NaNs and denormals included."""
    if dtype == torch.bool:
        return torch.from_numpy(RNG.integers(0, 2, (count, width), dtype=np.uint8)).to(torch.bool)
    size = torch.empty(0, dtype=dtype).element_size()
    drawn = torch.from_numpy(RNG.integers(0, 256, (count, width * size), dtype=np.uint8))
    return drawn.view(dtype)


def hashed(tensor: Tensor, keys: Any = None) -> list[str]:
    """128 bits in hexadecimal, a row."""
    keys = np.repeat(KEY, tensor.shape[0], axis=0) if keys is None else keys
    made = digests(row_sums(tensor).cpu().numpy(), keys, salt_of(tensor))
    return [f"{int(a):016x}{int(b):016x}" for a, b in made]


def rows() -> Iterator[dict[str, Any]]:
    for dtype in DTYPES:
        for width in (1, 7, 64, 1025):
            tensor = random_rows(3, width, dtype)
            keys = RNG.integers(-(1 << 40), 1 << 40, (3, 2))
            for row, key, digest in zip(tensor, keys, hashed(tensor, keys), strict=True):
                data = row.contiguous().view(torch.uint8).numpy().tobytes().hex()
                yield {"dtype": str(dtype), "width": width, "key": key.tolist(), "bytes": data, "digest": digest}


def flips(dtype: torch.dtype) -> bool:
    """Every bit of a row, at every place, changes the digest, and no two of these digests are equal."""
    row = random_rows(1, 24, dtype).view(torch.uint8)
    bits = range(1) if dtype == torch.bool else range(8)
    changed = [row.clone() for _ in range(row.shape[1]) for _ in bits]
    for number, copy in enumerate(changed):
        copy[0, number // len(bits)] ^= 1 << (number % len(bits))
    made = hashed(torch.cat([row, *changed]).view(dtype))
    return len(set(made)) == 1 + len(changed)


def unlike(*tensors: Tensor) -> bool:
    made = [tuple(hashed(tensor)) for tensor in tensors]
    return len(set(made)) == len(made)


def values() -> Iterator[tuple[str, bool]]:
    x = torch.randn(1, 64)
    y = x.clone()
    y[0, 3], y[0, 40] = x[0, 40], x[0, 3]
    yield "two values that change places", unlike(x, y)
    yield "a row read backwards", unlike(x, x.flip(1))
    yield "every value negated", unlike(x, -x)
    yield "zeros, ones, and zeros of the other sign", unlike(torch.zeros(1, 64), torch.ones(1, 64), -torch.zeros(1, 64))
    nans = torch.tensor([[0x7FC00000, 0x7FC00001, -0x400000]], dtype=torch.int32).view(torch.float32)
    yield "NaNs of other payload or sign", len({hashed(nans[:, i : i + 1])[0] for i in range(3)}) == 3
    yield "zeros of other widths", unlike(*(torch.zeros(1, n) for n in range(9)))
    yield "zeros of other dtypes", unlike(*(torch.zeros(1, 8, dtype=d) for d in DTYPES))
    yield "the same bytes in another dtype", unlike(x, x.view(torch.int32))
    yield "a value that moves on by one", unlike(*(torch.eye(64)[i : i + 1] for i in range(64)))
    pairs = torch.eye(64)
    yield "sums that agree, of other values", unlike(pairs[:1] + pairs[3:4], pairs[1:2] + pairs[2:3])
    keys = np.asarray([[0, 1], [1, 0], [0, 1 << 32], [1 << 32, 0], [-1, 0], [0, -1]])
    yield "one row under other keys", len(set(hashed(x.repeat(6, 1), keys))) == 6


def places() -> Iterator[tuple[str, bool]]:
    """Where the bits lie and what is beside them does not matter."""
    for dtype in DTYPES:
        x = random_rows(40, 33, dtype)
        wanted = hashed(x)
        fused = torch.cat([random_rows(40, 5, dtype), x, random_rows(40, 4, dtype)], dim=1)
        yield f"{dtype}: columns of a wider tensor", hashed(fused[:, 5:38]) == wanted
        yield f"{dtype}: transposed storage", hashed(x.t().contiguous().t()) == wanted
        yield f"{dtype}: every second row of a taller tensor", hashed(x.repeat_interleave(2, 0)[::2]) == wanted
        yield f"{dtype}: more dimensions", hashed(x.reshape(40, 3, 11)) == wanted
        split = [hashed(x[a:b]) for a, b in ((0, 1), (1, 17), (17, 18), (18, 40))]
        yield f"{dtype}: rows in other batches", sum(split, []) == wanted
        order = torch.from_numpy(RNG.permutation(40))
        yield f"{dtype}: rows in another order", hashed(x[order]) == [wanted[i] for i in order.tolist()]
        wide = hashing._wide_product(hashing._bytes(x))
        yield f"{dtype}: the same sums in float64", torch.equal(row_sums(x), wide)
        for device in DEVICES[1:]:
            moved, slice_ = x.to(device), fused.to(device)[:, 5:38]
            yield f"{dtype}: on {device}", hashed(moved) == wanted == hashed(slice_) and hashed(moved[:1]) == wanted[:1]


def shapes() -> Iterator[tuple[str, bool]]:
    for device in DEVICES:
        yield f"no rows, on {device}", tuple(row_sums(torch.zeros(0, 8, device=device)).shape) == (0, 16)
        yield f"rows without values, on {device}", not row_sums(torch.zeros(3, 0, device=device)).any()
    scalars = random_rows(5, 1, torch.int64)
    yield "rows of one number, with and without a dimension", hashed(scalars.reshape(5)) == hashed(scalars)
    wide = random_rows(2, 150_001, torch.bfloat16)
    for device in DEVICES:
        sums = row_sums(wide.to(device)).cpu()
        yield f"as wide as a vocabulary, on {device}", torch.equal(sums, hashing._wide_product(hashing._bytes(wide)))
    extreme = torch.full((20, 200_000), -128, dtype=torch.int8)
    for device in DEVICES:
        sums = row_sums(extreme.to(device)).cpu()
        yield f"sums beyond 31 bits, on {device}", torch.equal(sums, hashing._wide_product(extreme))


def threads() -> Iterator[tuple[str, bool]]:
    x, before = random_rows(257, 1024, torch.bfloat16), torch.get_num_threads()
    wanted = hashed(x)
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        yield f"{count} threads", hashed(x) == wanted
    torch.set_num_threads(before)


def devices() -> Iterator[tuple[str, bool]]:
    """The int8 product is used only where it is exact."""
    for device in DEVICES:
        yield f"int8 products are exact on {device}", hashing._multiplies_int8(device)
    x, exact = random_rows(40, 33, torch.float32), torch._int_mm
    wanted = hashed(x)

    def saturated(a: Tensor, b: Tensor) -> Tensor:
        """As processors multiply that add two products in 16 bits."""
        pairs = (a[:, 0::2, None].int() * b[None, 0::2].int()) + (a[:, 1::2, None].int() * b[None, 1::2].int())
        return pairs.clamp(-(1 << 15), (1 << 15) - 1).sum(dim=1).int()

    def clamped(a: Tensor, b: Tensor) -> Tensor:
        total = (a.to(torch.float64) @ b.to(torch.float64)).clamp(-(1 << 31), (1 << 31) - 1)
        return total.to(torch.int32)

    def refused(a: Tensor, b: Tensor) -> Tensor:
        raise RuntimeError("not implemented")

    for name, replacement in (("saturates at 16 bits", saturated), ("is not there", refused)):
        torch._int_mm = replacement
        hashing._multiplies_int8.cache_clear()
        yield f"a product that {name} is not used", not hashing._multiplies_int8("cpu") and hashed(x) == wanted
    torch._int_mm = clamped
    hashing._multiplies_int8.cache_clear()
    extreme = torch.full((20, 200_000), -128, dtype=torch.int8)
    same = torch.equal(row_sums(extreme), hashing._wide_product(extreme))
    yield "a product that saturates at 32 bits never gets there", hashing._multiplies_int8("cpu") and same
    torch._int_mm = exact
    hashing._multiplies_int8.cache_clear()


def agreement() -> dict[str, float]:
    """Rows that differ in two bytes: how often one column's sums agree (at most 1 in 256), and whole digests."""
    a = random_rows(1, 64, torch.uint8).repeat(100_000, 1)
    at = torch.from_numpy(RNG.integers(0, 64, (100_000, 2)))
    b = a.scatter(1, at, random_rows(100_000, 2, torch.uint8))
    differs = (a != b).any(dim=1)
    sums = [row_sums(x[differs]) for x in (a, b)]
    first, second = (digests(s.numpy(), np.repeat(KEY, len(s), axis=0), 1) for s in sums)
    return {
        "rows": int(differs.sum()),
        "column": float((sums[0] == sums[1]).to(torch.float64).mean()),
        "digests": int((first == second).all(axis=1).sum()),
        "halves": int((first == second).sum()),
    }


def main() -> None:
    parts: tuple[Callable[[], Iterator[tuple[str, bool]]], ...] = (values, places, shapes, threads, devices)
    facts = {name: bool(holds) for part in parts for name, holds in part()}
    facts |= {f"{dtype}: one bit": flips(dtype) for dtype in DTYPES}
    print(json.dumps({"rows": list(rows()), "facts": facts, "agreement": agreement()}))


if __name__ == "__main__":
    sys.exit(main())
