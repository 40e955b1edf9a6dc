"""How many distinct values there are, about: HyperLogLog with the estimator of O. Ertl (2017).

Decision 29 says why this sketch is ours.
"""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from math import ceil, inf, log, log2, sqrt
from typing import Any, Final

import msgspec

from millwheel.agg.aggregator import Aggregator
from millwheel.agg.numbers import counting
from millwheel.agg.reading import Of, Reader, Where
from millwheel.sdk.errors import UsageError
from millwheel.sdk.records import Record
from millwheel.sdk.spreading import bytes_of

__all__ = ["distinct_count"]

Ranks = dict[int, int] | bytes
"""The rank of each register: those that are not 0 while they are few, then all of them."""


class Registers(msgspec.Struct, array_like=True):
    """``2**bits`` registers with their ranks.

    Invariant: this depends on the set of values alone, also which form its ranks have. A rank only rises.

    It keeps its own precision. So an update may change the error of an aggregate: open windows go on with the former.
    """

    bits: int
    ranks: Ranks


_HASH_BITS: Final = 64
_SPARSE_SHARE: Final = 4
"""An entry of a dict takes about four bytes where it is stored, a register in ``bytes`` takes one."""


def distinct_count(of: Of, error: float, where: Where) -> Aggregator[Registers, int]:
    """About how many distinct values a field has. See :func:`millwheel.agg.distinct`."""
    if not 0.005 <= error <= 0.25:
        raise UsageError(f"the error of distinct is from 0.005 to 0.25, not {error}")
    bits = ceil(2 * log2(1.04 / error))  # the standard error is 1.04 / sqrt(registers)
    reader = Reader(of)
    get = reader.get

    def new() -> Registers:
        return Registers(bits, {})

    def add(registers: Registers, record: Record[Any]) -> Registers:
        register, rank = _place(get(record.value), registers.bits)
        registers.ranks = _raised(registers, register, rank)
        return registers

    def make() -> Aggregator[Registers, int]:
        return Aggregator(Registers, new, counting(add, where), _merge, _estimate, int, specialise)

    def specialise(record_type: Any) -> Aggregator[Registers, int]:
        reader.type_in(record_type)  # raises for a field that does not exist
        return make()

    return make()


# A value's hash chooses one of ``2**bits`` registers. Of the hashes of a register, the largest rank is kept. The rank
# is one more than the zeros in front of the rest of the hash.


def _raised(registers: Registers, register: int, rank: int) -> Ranks:
    """The ranks with one of them raised."""
    ranks = registers.ranks
    if isinstance(ranks, dict):
        ranks[register] = max(ranks.get(register, 0), rank)
        return _compact(ranks, registers.bits)
    if ranks[register] >= rank:
        return ranks
    return ranks[:register] + bytes((rank,)) + ranks[register + 1 :]


def _merge(one: Registers, other: Registers) -> Registers:
    bits = min(one.bits, other.bits)
    mine, others = _folded(one, bits), _folded(other, bits)
    if isinstance(mine, bytes) and isinstance(others, bytes):
        return Registers(bits, bytes(map(max, mine, others)))
    merged = mine if isinstance(mine, dict) else dict(enumerate(mine))
    for register, rank in others.items() if isinstance(others, dict) else enumerate(others):
        merged[register] = max(merged.get(register, 0), rank)
    return Registers(bits, _compact(merged, bits))


def _folded(registers: Registers, bits: int) -> Ranks:
    """The ranks that the same values have in fewer registers."""
    more, ranks = registers.bits - bits, registers.ranks
    if not more:
        return ranks
    folded: dict[int, int] = {}
    for register, rank in ranks.items() if isinstance(ranks, dict) else enumerate(ranks):
        if rank:
            # The last bits of the register's number become the first bits of the rest of the hash.
            first = register & ((1 << more) - 1)
            longer = more - first.bit_length() + 1 if first else more + rank
            folded[register >> more] = max(folded.get(register >> more, 0), longer)
    return _compact(folded, bits)


def _compact(ranks: dict[int, int], bits: int) -> Ranks:
    if len(ranks) * _SPARSE_SHARE <= 1 << bits:
        return ranks
    return bytes(ranks.get(register, 0) for register in range(1 << bits))


def _estimate(registers: Registers) -> int:
    """The number of distinct values. Ertl's estimator has no thresholds, and needs no tables of corrections."""
    size, rest, ranks = 1 << registers.bits, _HASH_BITS - registers.bits, registers.ranks
    if isinstance(ranks, bytes):
        with_rank = Counter(ranks)
    else:
        with_rank = Counter(ranks.values())
        with_rank[0] = size - len(ranks)
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
