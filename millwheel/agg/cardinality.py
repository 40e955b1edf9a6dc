"""How many distinct values there are, about: HyperLogLog with the estimator of O. Ertl (2017).

Decision 29 says why this sketch is ours.
"""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from math import ceil, inf, log, log2, sqrt
from typing import Any, Final

from millwheel.agg.aggregator import Aggregator
from millwheel.agg.numbers import counting
from millwheel.agg.reading import Of, Reader, Where
from millwheel.sdk.errors import UsageError
from millwheel.sdk.records import Record
from millwheel.sdk.spreading import bytes_of

__all__ = ["distinct_count"]

Registers = dict[int, int] | bytes
"""The rank of each register: those that are not 0 while they are few, then all of them.

Invariant: this depends on the set of values alone, also which of both forms it has. A rank only rises.
"""

_HASH_BITS: Final = 64
_SPARSE_SHARE: Final = 4
"""An entry of a dict takes about four bytes where it is stored, a register in ``bytes`` takes one."""


def distinct_count(of: Of, error: float, where: Where) -> Aggregator[Registers, int]:
    """About how many distinct values a field has. See :func:`millwheel.agg.distinct`."""
    if not 0.005 <= error <= 0.25:
        raise UsageError(f"the error of distinct is from 0.005 to 0.25, not {error}")
    sketch = _HyperLogLog(ceil(2 * log2(1.04 / error)))  # the standard error is 1.04 / sqrt(registers)
    reader = Reader(of)
    get = reader.get

    def add(registers: Registers, record: Record[Any]) -> Registers:
        return sketch.add(registers, get(record.value))

    def make() -> Aggregator[Registers, int]:
        return Aggregator(Registers, dict, counting(add, where), sketch.merge, sketch.estimate, int, specialise)

    def specialise(record_type: Any) -> Aggregator[Registers, int]:
        reader.type_in(record_type)  # raises for a field that does not exist
        return make()

    return make()


class _HyperLogLog:
    """A value's hash chooses one of ``2**bits`` registers. Of the hashes of a register, the largest rank is kept.

    The rank is one more than the zeros in front of the rest of the hash.
    """

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._size = 1 << bits

    def add(self, registers: Registers, value: Any) -> Registers:
        register, rank = _place(value, self._bits)
        if isinstance(registers, dict):
            registers[register] = max(registers.get(register, 0), rank)
            return self._compact(registers)
        if registers[register] >= rank:
            return registers
        return registers[:register] + bytes((rank,)) + registers[register + 1 :]

    def merge(self, one: Registers, other: Registers) -> Registers:
        if isinstance(one, bytes) and isinstance(other, bytes):
            return bytes(map(max, one, other))
        merged = one if isinstance(one, dict) else dict(enumerate(one))
        for register, rank in other.items() if isinstance(other, dict) else enumerate(other):
            merged[register] = max(merged.get(register, 0), rank)
        return self._compact(merged)

    def _compact(self, registers: dict[int, int]) -> Registers:
        if len(registers) * _SPARSE_SHARE <= self._size:
            return registers
        return bytes(registers.get(register, 0) for register in range(self._size))

    def estimate(self, registers: Registers) -> int:
        """The number of distinct values. Ertl's estimator has no thresholds, and needs no tables of corrections."""
        size, rest = self._size, _HASH_BITS - self._bits
        if isinstance(registers, bytes):
            with_rank = Counter(registers)
        else:
            with_rank = Counter(registers.values())
            with_rank[0] = size - len(registers)
        if with_rank[0] == size:
            return 0
        denominator = size * _tau(1 - with_rank[rest + 1] / size)
        for rank in range(rest, 0, -1):
            denominator = (denominator + with_rank[rank]) / 2
        denominator += size * _sigma(with_rank[0] / size)
        return round(size * size / (2 * log(2) * denominator))


def _place(value: Any, bits: int) -> tuple[int, int]:
    """The register of a value, and its rank."""
    if value.__class__ is float and value.is_integer():
        value = int(value)  # 1 and 1.0 are equal, so they are one value
    hashed = int.from_bytes(blake2b(bytes_of(value), digest_size=_HASH_BITS // 8).digest(), "big")
    rest = _HASH_BITS - bits
    return hashed >> rest, rest - (hashed & ((1 << rest) - 1)).bit_length() + 1


def _sigma(x: float) -> float:
    if x == 1:
        return inf
    total, before, weight = x, inf, 1.0
    while total != before:
        x, before = x * x, total
        total, weight = total + x * weight, weight * 2
    return total


def _tau(x: float) -> float:
    if x in (0, 1):
        return 0.0
    total, before, weight = 1 - x, inf, 1.0
    while total != before:
        x, before, weight = sqrt(x), total, weight / 2
        total -= (1 - x) ** 2 * weight
    return total / 3
