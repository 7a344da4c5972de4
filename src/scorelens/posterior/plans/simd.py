"""Vectors of LANES float32 values for Numba kernels: one value for each of LANES images.

Numba vectorizes a loop only where it can prove that arrays do not overlap. These vectors are LLVM's own: they stay in
registers, and suit any instruction set. They are loaded from and stored to rows of arrays [rows, LANES] that start at a
cache line (`aligned`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.imputils import lower_builtin
from numba.extending import intrinsic, models, register_model, type_callable

LANES = 32
LINE = 64  # bytes of a cache line
FAST = ("nnan", "nsz", "reassoc", "contract")  # sums in any order; no NaN
FLOAT, INT, INDEX = ir.FloatType(), ir.IntType(32), ir.IntType(64)
FLOATS, INTS, BYTES = (ir.VectorType(kind, LANES) for kind in (FLOAT, INT, ir.IntType(8)))
# 2^g = sum_k c_k g^k for |g| <= 1/2, to the precision of float32
POWERS = (1.5403530e-4, 1.3333558e-3, 9.6181291e-3, 5.5504109e-2, 2.4022651e-1, 6.9314718e-1, 1.0)


class Vector(types.Type):
    """The Numba type of a vector."""

    def __init__(self) -> None:
        super().__init__(name=f"Vector{LANES}")


vector = Vector()


@register_model(Vector)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Vector) -> None:
        super().__init__(manager, kind, FLOATS)


def aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An uninitialized array that starts at a cache line."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(size + LINE, np.uint8)
    start = -raw.ctypes.data % LINE
    return raw[start:start + size].view(dtype).reshape(shape)


def _define(function: Callable[..., Any], method: str) -> None:
    """An arithmetic operator of two vectors."""
    @type_callable(function)
    def returns(context: Any) -> Callable[..., Any]:
        return lambda a, b: vector if a == b == vector else None

    @lower_builtin(function, Vector, Vector)
    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return getattr(builder, method)(*args, flags=FAST)


_define(operator.add, "fadd")
_define(operator.sub, "fsub")
_define(operator.mul, "fmul")


def _pointer(context: Any, builder: Any, array: Any, value: Any, row: Any, kind: Any) -> Any:
    """The address of a row of an array [rows, LANES]."""
    row = builder.sext(row, INDEX) if row.type.width < INDEX.width else row
    data = context.make_array(array)(context, builder, value).data
    return builder.bitcast(builder.gep(data, [builder.mul(row, INDEX(LANES))]), kind.as_pointer())


@intrinsic
def load(_, array, row):  # type: ignore[no-untyped-def]
    """A row of floats, or of bytes as floats."""
    def build(context, builder, sig, args):  # type: ignore[no-untyped-def]
        if array.dtype == types.uint8:
            address = _pointer(context, builder, array, *args, BYTES)
            return builder.uitofp(builder.load(address, align=LANES), FLOATS)
        return builder.load(_pointer(context, builder, array, *args, FLOATS), align=LINE)
    return vector(array, row), build


@intrinsic
def store(_, array, row, value):  # type: ignore[no-untyped-def]
    """Write a row of floats."""
    def build(context, builder, sig, args):  # type: ignore[no-untyped-def]
        builder.store(args[2], _pointer(context, builder, array, *args[:2], FLOATS), align=LINE)
        return context.get_dummy_value()
    return types.void(array, row, value), build


@intrinsic
def full(_, number):  # type: ignore[no-untyped-def]
    """A vector of equal values."""
    def build(context, builder, sig, args):  # type: ignore[no-untyped-def]
        undefined = ir.Constant(FLOATS, ir.Undefined)
        first = builder.insert_element(undefined, args[0], INT(0))
        return builder.shuffle_vector(first, undefined, INTS([0] * LANES))
    return vector(types.float32), build


@intrinsic
def exp2(_, value):  # type: ignore[no-untyped-def]
    """2^v for v <= 0: 2^g for the fraction g, |g| <= 1/2, times 2^k by the exponent's bits; below 2^-126 it is that."""
    def build(context, builder, sig, args):  # type: ignore[no-untyped-def]
        lowest = FLOATS([-126.0] * LANES)
        v = builder.select(builder.fcmp_ordered(">", args[0], lowest), args[0], lowest)
        k = builder.fptosi(builder.fsub(v, FLOATS([0.5] * LANES)), INTS)  # towards zero: the nearest integer
        g = builder.fsub(v, builder.sitofp(k, FLOATS))
        power = FLOATS([POWERS[0]] * LANES)
        for coefficient in POWERS[1:]:
            power = builder.fadd(builder.fmul(power, g, flags=FAST), FLOATS([coefficient] * LANES), flags=FAST)
        exponent = builder.shl(builder.add(k, INTS([127] * LANES)), INTS([23] * LANES))
        return builder.fmul(power, builder.bitcast(exponent, FLOATS))
    return vector(value), build


@intrinsic
def count_ones(_, word):  # type: ignore[no-untyped-def]
    """How many bits of an integer are set."""
    def build(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return builder.ctpop(args[0])
    return types.int64(types.uint64), build


def _reduction(name: str, *first: float) -> Any:
    """A function from a vector to a number."""
    @intrinsic
    def reduce(_, value):  # type: ignore[no-untyped-def]
        def build(context, builder, sig, args):  # type: ignore[no-untyped-def]
            full_name, start = f"llvm.vector.reduce.{name}.v{LANES}f32", [FLOAT(number) for number in first]
            function = builder.module.globals.get(full_name) or ir.Function(
                builder.module, ir.FunctionType(FLOAT, [*(FLOAT for _ in start), FLOATS]), full_name)
            return builder.call(function, [*start, args[0]], fastmath=FAST)
        return types.float32(value), build
    return reduce


least, total = _reduction("fmin"), _reduction("fadd", 0.0)
