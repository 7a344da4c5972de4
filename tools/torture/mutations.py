"""Damaged copies of bytes and of JSON values."""

from __future__ import annotations

import random
import struct
from typing import Any

NUMBERS = (0, 1, -1, 2**15, 2**16 - 1, 2**31 - 1, -2**31, 2**32 - 1, 2**63 - 1)
VALUES: tuple[Any, ...] = (None, True, False, 0, -1, 1, 3.5, 1e30, -1e30, 10**20, float("nan"), float("inf"), "", "x",
                           "nan", [], [0], [-1, "x"], ["a"] * 3, {}, {"a": 1}, "../../etc/passwd", "\x1b[31m", [[[]]],
                           2**31, 10**9)


def mutated(content: bytes, rng: random.Random) -> bytes:
    """The bytes with one to four random changes."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        _mutate(data, rng)
    return bytes(data)


def _mutate(data: bytearray, rng: random.Random) -> None:
    if not data:
        data += bytes([rng.randrange(256)])
        return
    at = rng.randrange(min(len(data), 512)) if rng.random() < 0.5 else rng.randrange(len(data))  # headers often
    match rng.randrange(8):
        case 0 | 1:
            data[at] ^= 1 << rng.randrange(8)
        case 2:
            data[at] = rng.randrange(256)
        case 3:
            del data[at:]
        case 4:
            data[at:at] = rng.randbytes(rng.randint(1, 64))
        case 5:
            del data[at:at + rng.randint(1, 64)]
        case 6:
            number = rng.choice(NUMBERS) & 0xFFFFFFFF
            data[at:at + 4] = struct.pack(rng.choice("<>") + "I", number)
        case _:
            other = rng.randrange(len(data))
            data[at:at + 32] = data[other:other + 32]


def mutated_value(value: Any, rng: random.Random) -> Any:
    """A JSON value with one part replaced, removed, renamed or added."""
    if isinstance(value, dict) and value and rng.random() < 0.95:
        copy, key = dict(value), rng.choice(sorted(value))
        match rng.randrange(8):
            case 0:
                del copy[key]
            case 1:
                copy[key + "x"] = copy.pop(key)
            case _:
                copy[key] = mutated_value(copy[key], rng)
        return copy
    if isinstance(value, list) and value and rng.random() < 0.7:
        copy, at = list(value), rng.randrange(len(value))
        if rng.random() < 0.3:
            del copy[at]
        else:
            copy[at] = mutated_value(copy[at], rng)
        return copy
    return rng.choice(VALUES)
