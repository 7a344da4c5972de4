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
FUSED = ("contract",)  # a product and a sum may be rounded once
ROUNDING = 1.5 * 2.0**23  # added to a float below 2^22, it leaves the nearest integer in the lowest bits
FLOAT, INT, INDEX = ir.FloatType(), ir.IntType(32), ir.IntType(64)
FLOATS, INTS = (ir.VectorType(kind, LANES) for kind in (FLOAT, INT))
# 2^g = sum_k c_k g^k for |g| <= 1/2, to the precision of float32
POWERS = (1.5403530e-4, 1.3333558e-3, 9.6181291e-3, 5.5504109e-2, 2.4022651e-1, 6.9314718e-1, 1.0)


class Vector(types.Type):
    """The Numba type of a vector."""

    def __init__(self) -> None:
        super().__init__(name=f"Vector{LANES}")


vector = Vector()


class Group(types.Type):
    """The Numba type of several vectors: one for each of the noisy images that share the loads of training images."""

    def __init__(self, count: int) -> None:
        super().__init__(name=f"Group{count}x{LANES}")
        self.count = count


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Vector) -> None:
        super().__init__(manager, kind, FLOATS)


@register_model(Group)
class _GroupModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Group) -> None:
        super().__init__(manager, kind, ir.ArrayType(FLOATS, kind.count))


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


def _pointer(context: Any, builder: Any, array: Any, value: Any, index: Any) -> Any:
    """The address of an element of an array, counted from its start."""
    index = builder.sext(index, INDEX) if index.type.width < INDEX.width else index
    return builder.gep(context.make_array(array)(context, builder, value).data, [index])


def _row(context: Any, builder: Any, array: Any, value: Any, row: Any) -> Any:
    """The address of a row of an array [rows, LANES]."""
    start = builder.mul(builder.sext(row, INDEX) if row.type.width < INDEX.width else row, INDEX(LANES))
    return builder.bitcast(_pointer(context, builder, array, value, start), FLOATS.as_pointer())


def _pack(builder: Any, values: list[Any]) -> Any:
    """A group of vectors."""
    group = ir.Constant(ir.ArrayType(FLOATS, len(values)), ir.Undefined)
    for b, value in enumerate(values):
        group = builder.insert_value(group, value, b)
    return group


def _unpack(builder: Any, group: Any) -> list[Any]:
    return [builder.extract_value(group, b) for b in range(group.type.count)]


def _splat(builder: Any, number: Any) -> Any:
    undefined = ir.Constant(FLOATS, ir.Undefined)
    return builder.shuffle_vector(builder.insert_element(undefined, number, INT(0)), undefined, INTS([0] * LANES))


@intrinsic
def load(_, array, row):  # type: ignore[no-untyped-def]
    """A row of floats."""
    def build(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return builder.load(_row(context, builder, array, *args), align=LINE)
    return vector(array, row), build


@intrinsic
def store(_, array, row, value):  # type: ignore[no-untyped-def]
    """Write a row of floats."""
    def build(context, builder, sig, args):  # type: ignore[no-untyped-def]
        builder.store(args[2], _row(context, builder, array, *args[:2]), align=LINE)
        return context.get_dummy_value()
    return types.void(array, row, value), build


@intrinsic
def load_group(_, members, array, row):  # type: ignore[no-untyped-def]
    """As many rows as the tuple `members` is long."""
    def build(context, builder, sig, args):  # type: ignore[no-untyped-def]
        start = _row(context, builder, array, *args[1:])
        return _pack(builder, [builder.load(builder.gep(start, [INT(b)]), align=LINE) for b in range(members.count)])
    return Group(members.count)(members, array, row), build


@intrinsic
def store_group(_, array, row, group):  # type: ignore[no-untyped-def]
    """Write the vectors of a group to adjacent rows."""
    def build(context, builder, sig, args):  # type: ignore[no-untyped-def]
        start = _row(context, builder, array, *args[:2])
        for b, value in enumerate(_unpack(builder, args[2])):
            builder.store(value, builder.gep(start, [INT(b)]), align=LINE)
        return context.get_dummy_value()
    return types.void(array, row, group), build


def _accumulation(add: bool, squares: bool) -> Any:
    """A function that adds terms of pixel k to a group of chains, or subtracts them: (x - s_b)^2 for shifts s [d, b];
    or x s_b, and x^2 to the last chain."""
    @intrinsic
    def accumulate(_, group, x, shifts, k):  # type: ignore[no-untyped-def]
        def build(context, builder, sig, args):  # type: ignore[no-untyped-def]
            *chains, own = _unpack(builder, args[0])
            pixel, index = args[1], builder.sext(args[3], INDEX) if args[3].type.width < INDEX.width else args[3]
            first = _pointer(context, builder, shifts, args[2], builder.mul(index, INDEX(len(chains))))
            combine = builder.fadd if add else builder.fsub
            for b, chain in enumerate(chains):
                shift = _splat(builder, builder.load(builder.gep(first, [INT(b)])))
                difference = builder.fsub(pixel, shift) if squares else None
                term = builder.fmul(difference or pixel, difference or shift, flags=FUSED)
                chains[b] = combine(chain, term, flags=FUSED)
            if not squares:
                own = combine(own, builder.fmul(pixel, pixel, flags=FUSED), flags=FUSED)
            return _pack(builder, [*chains, own])
        return group(group, x, shifts, k), build
    return accumulate


plus, minus, plus_squares = _accumulation(True, False), _accumulation(False, False), _accumulation(True, True)


@intrinsic
def settle(_, group, far):  # type: ignore[no-untyped-def]
    """The distances of a group of chains: each chain plus the last one, plus `far`."""
    def build(context, builder, sig, args):  # type: ignore[no-untyped-def]
        *chains, own = _unpack(builder, args[0])
        own = builder.fadd(own, args[1])
        return _pack(builder, [builder.fadd(chain, own) for chain in chains])
    return Group(group.count - 1)(group, far), build


@intrinsic
def nearness(_, distances, best, index, bits):  # type: ignore[no-untyped-def]
    """(best_b - distance_b) bits, for numbers best_b that are adjacent in an array, from a flat index."""
    def build(context, builder, sig, args):  # type: ignore[no-untyped-def]
        first, factor = _pointer(context, builder, best, *args[1:3]), _splat(builder, args[3])
        numbers = [builder.load(builder.gep(first, [INT(b)])) for b in range(distances.count)]
        return _pack(builder, [builder.fmul(builder.fsub(_splat(builder, number), distance), factor)
                               for number, distance in zip(numbers, _unpack(builder, args[0]), strict=True)])
    return distances(distances, best, index, types.float32), build


@intrinsic
def highest(_, group):  # type: ignore[no-untyped-def]
    """The largest of the vectors of a group, lane by lane."""
    def build(context, builder, sig, args):  # type: ignore[no-untyped-def]
        top, *others = _unpack(builder, args[0])
        for value in others:
            top = builder.select(builder.fcmp_ordered(">", value, top), value, top)
        return top
    return vector(group), build


@intrinsic
def powers(_, group, lowest):  # type: ignore[no-untyped-def]
    """2^v for v < 127, and 0 for v <= lowest, which must be at least -126.

    2^g for the fraction g, |g| <= 1/2, times 2^k by the exponent's bits.
    """
    def power(builder: Any, v: Any, least: Any) -> Any:
        shifted = builder.fadd(v, FLOATS([ROUNDING] * LANES))  # k in its lowest bits
        g = builder.fsub(v, builder.fsub(shifted, FLOATS([ROUNDING] * LANES)))
        fraction = FLOATS([POWERS[0]] * LANES)
        for coefficient in POWERS[1:]:
            product = builder.fmul(fraction, g, flags=FUSED)
            fraction = builder.fadd(product, FLOATS([coefficient] * LANES), flags=FUSED)
        exponent = builder.shl(builder.bitcast(shifted, INTS), INTS([23] * LANES))
        scaled = builder.bitcast(builder.add(builder.bitcast(fraction, INTS), exponent), FLOATS)
        return builder.select(builder.fcmp_ordered(">", v, least), scaled, FLOATS([0.0] * LANES))

    def build(context, builder, sig, args):  # type: ignore[no-untyped-def]
        least = _splat(builder, args[1])
        return _pack(builder, [power(builder, value, least) for value in _unpack(builder, args[0])])
    return group(group, types.float32), build


@intrinsic
def times(_, group, factor):  # type: ignore[no-untyped-def]
    """Every vector of a group multiplied by the same vector."""
    def build(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return _pack(builder, [builder.fmul(value, args[1]) for value in _unpack(builder, args[0])])
    return group(group, factor), build


@intrinsic
def squared(_, group):  # type: ignore[no-untyped-def]
    """The squares of the vectors of a group."""
    def build(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return _pack(builder, [builder.fmul(value, value) for value in _unpack(builder, args[0])])
    return group(group), build


@intrinsic
def add_totals(_, sums, index, group):  # type: ignore[no-untyped-def]
    """Add the sum of each vector of a group to adjacent float64 entries of an array, from a flat index.

    Halves are added to each other; the vectors of a group are packed while they get shorter. The order of additions
    does not depend on the size of the group.
    """
    def build(context, builder, sig, args):  # type: ignore[no-untyped-def]
        parts, length = _unpack(builder, args[2]), LANES
        while length > 1:
            pairs = [parts[k:k + 2] for k in range(0, len(parts), 2)] if length < LANES else [[part] for part in parts]
            parts, length = [_halved(builder, pair, length) for pair in pairs], length // 2
        first = _pointer(context, builder, sums, *args[:2])
        at = builder.bitcast(first, ir.VectorType(ir.DoubleType(), group.count).as_pointer())
        total = builder.fpext(parts[0], at.type.pointee)
        builder.store(builder.fadd(builder.load(at, align=8), total), at, align=8)
        return context.get_dummy_value()
    return types.void(sums, index, group), build


def _halved(builder: Any, pair: list[Any], length: int) -> Any:
    """One vector of the segments of one or two vectors, each of which is added up to half of its length."""
    both = pair[0].type.count * len(pair)
    low = [start + k for start in range(0, both, length) for k in range(length // 2)]
    halves = [ir.VectorType(INT, len(low))([lane + offset for lane in low]) for offset in (0, length // 2)]
    second = pair[-1] if len(pair) == 2 else ir.Constant(pair[0].type, ir.Undefined)
    return builder.fadd(*(builder.shuffle_vector(pair[0], second, half) for half in halves))


@intrinsic
def full(_, number):  # type: ignore[no-untyped-def]
    """A vector of equal values."""
    return vector(types.float32), lambda context, builder, sig, args: _splat(builder, args[0])


@intrinsic
def any_above(_, value, limit):  # type: ignore[no-untyped-def]
    """Whether an entry of a vector exceeds a number."""
    def build(context, builder, sig, args):  # type: ignore[no-untyped-def]
        above = builder.bitcast(builder.fcmp_ordered(">", args[0], _splat(builder, args[1])), ir.IntType(LANES))
        return builder.icmp_unsigned("!=", above, ir.IntType(LANES)(0))
    return types.boolean(value, types.float32), build


@intrinsic
def count_ones(_, word):  # type: ignore[no-untyped-def]
    """How many bits of an integer are set."""
    def build(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return builder.ctpop(args[0])
    return types.int64(types.uint64), build


@intrinsic
def least(_, value):  # type: ignore[no-untyped-def]
    """The smallest entry of a vector."""
    def build(context, builder, sig, args):  # type: ignore[no-untyped-def]
        name = f"llvm.vector.reduce.fmin.v{LANES}f32"
        function = builder.module.globals.get(name) or ir.Function(
            builder.module, ir.FunctionType(FLOAT, [FLOATS]), name)
        return builder.call(function, [args[0]], fastmath=FAST)
    return types.float32(value), build
