"""Linears in fixed tiles of rows: what `batch_invariant` does to every matrix product of the CPU engine.

oneDNN picks its kernel by the number of rows, so a row's bits depend on its company. A product that is always
computed on exactly `TILE_ROWS` rows (zero-padded) uses one kernel whatever the batch is. A training-side forward
that calls `tiled_rows` with the same product gets the same bits.

Only torch is needed here.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable

import torch

Product = Callable[[torch.Tensor], torch.Tensor]

TILE_ROWS = 16


def tiled_rows(product: Product, x: torch.Tensor, rows: int = TILE_ROWS) -> torch.Tensor:
    """`product` of x [..., K], taken `rows` rows at a time: [..., N].

    `product` maps [rows, K] to [rows, N] and must treat its rows independently up to rounding.
    """
    flat = x.reshape(-1, x.shape[-1])
    if flat.shape[0] == 0:
        return product(x)
    outputs = [product(tile) for tile in _tiles(flat, rows)]
    joined = torch.cat(outputs)[: flat.shape[0]]
    return joined.reshape(*x.shape[:-1], joined.shape[-1])


def _tiles(flat: torch.Tensor, rows: int) -> list[torch.Tensor]:
    missing = -flat.shape[0] % rows
    if missing:
        flat = torch.cat([flat, flat.new_zeros(missing, flat.shape[1])])
    return list(flat.contiguous().split(rows))


# The compiled engine may not trace the loop above (its length is the batch): one opaque operator, whose products
# are looked up by a number that is part of the graph. Weakly: a layer that is packed again drops its old product and
# weight, and a graph that still asks for them fails instead of computing with old weights.
_PRODUCTS: weakref.WeakValueDictionary[int, Product] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count()


# `Library` rather than `custom_op`: the latter costs some 30 us a call.
LIBRARY = torch.library.Library("bitgate", "FRAGMENT")
LIBRARY.define("tiled_product(Tensor x, int product, int outputs) -> Tensor")


def _tiled_product(x: torch.Tensor, product: int, outputs: int) -> torch.Tensor:
    return tiled_rows(_PRODUCTS[product], x)


def _tiled_product_shape(x: torch.Tensor, product: int, outputs: int) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], outputs)


LIBRARY.impl("tiled_product", _tiled_product, "CompositeExplicitAutograd")
torch.library.register_fake("bitgate::tiled_product", _tiled_product_shape, lib=LIBRARY)


def tiled(product: Product, outputs: int) -> Product:
    """`product` in fixed tiles, as one operator that torch.compile does not look into. `outputs` is N."""
    number = next(_NUMBERS)
    _PRODUCTS[number] = product

    def operator(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.bitgate.tiled_product(x, number, outputs)
        return result

    operator.__dict__["product"] = product
    return operator
