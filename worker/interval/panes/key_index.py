"""Numbers for keys, found for many keys at once: a hash table in NumPy columns (section 4.2).

Keys that come as a column of Arrow get their numbers without an object or a step for each of them. The index is a
cache: nothing of it is stored, and it may be emptied at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from millwheel.rpc.column_keys import ColumnKeys
    from millwheel.sdk.columns import Column, Rows

__all__ = ["MAX_KEY", "MIXERS", "KeyIndex", "distinct", "selector"]

_WORD: Final = 8
_LENGTH: Final = "u1"
"""The type of lengths: a column of bytes stays in the processor's caches."""
MAX_KEY: Final = 4 * _WORD
"""Longer keys have no numbers: each further word costs time for all keys."""
_KEY_BYTES: Final = 50
"""Bytes counted for a key's object and its place in a list, besides its content."""
_MAX_PROBES: Final = 32
"""Keys that need more steps have no numbers. A sender could choose keys that all meet in one place (G8)."""
_SLACK: Final = 4
"""The table has at least so many places for each key, so most keys are found at the first one."""
_FEW: Final = 16
"""Numbers that are fewer than one in so many are sorted, and others are marked in a column of all."""
MIXERS: Final = (
    0x9E3779B97F4A7C15,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0xD6E8FEB86659FD93,
    0xA0761D6478BD642F,
)
"""Odd constants that spread the bits of the words of a key, and of its length."""


class KeyIndex:
    """Numbers of keys, from zero on.

    Invariant: while the index is not emptied, a number belongs to one key, and ``keys`` has it at that place.
    """

    __slots__ = ("_lengths", "_most_probes", "_places", "_words", "generation", "keys")

    def __init__(self, most_probes: int = _MAX_PROBES) -> None:
        """``most_probes``: after so many steps the search for a key ends."""
        self._most_probes = most_probes
        self.keys: list[bytes] = []
        self.generation = 0
        """How often it was emptied. Numbers of one generation mean nothing in another one."""
        self._clear()

    def _clear(self) -> None:
        import numpy as np

        self.keys = []
        self._places: Column = np.full(1 << 10, -1, np.int32)
        self._lengths: Column = np.zeros(0, _LENGTH)
        self._words: list[Column] = []

    def empty(self) -> None:
        """Forget all keys."""
        self.generation += 1
        self._clear()

    @property
    def bytes(self) -> int:
        """Approximate memory."""
        columns = self._places, self._lengths, *self._words
        return len(self.keys) * (_KEY_BYTES + _WORD * len(self._words)) + sum(column.nbytes for column in columns)

    def numbers_of(self, keys: ColumnKeys, indexes: Column | slice) -> Column | None:
        """The numbers of some keys. Those that it does not know get one. None: some of them cannot have one."""
        import numpy as np

        column = keys.column
        if column is None:
            return None
        _, offsets, content = column.buffers()
        bounds = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
        starts, ends = bounds[:-1][indexes].astype(np.int64), bounds[1:][indexes].astype(np.int64)
        lengths = ends - starts
        longest = int(lengths.max(initial=0))
        if longest > MAX_KEY:
            return None
        # Of these keys alone: a delivery comes in many parts, and none of them may cost as much as the whole (G8).
        low, high = (int(starts.min()), int(ends.max())) if len(starts) else (0, 0)
        padded = np.zeros(high - low + MAX_KEY + _WORD, np.uint8)
        if high > low:
            padded[: high - low] = np.frombuffer(content, np.uint8)[low:high]
        words = _words_of(padded, starts - low, lengths, longest)
        self._make_room(len(lengths), len(words))
        return self._find(words, lengths, (padded, starts - low))

    def _make_room(self, more: int, lanes: int) -> None:
        """Make room for so many keys, of so many words."""
        import numpy as np

        count, size = len(self.keys), len(self._lengths)
        if count + more > size:
            room = max(count + more, 2 * size) - size
            self._lengths = np.concatenate((self._lengths, np.zeros(room, _LENGTH)))
            self._words = [np.concatenate((one, np.zeros(room, np.uint64))) for one in self._words]
        while len(self._words) < lanes:
            self._words.append(np.zeros(len(self._lengths), np.uint64))
        places = len(self._places)
        if _SLACK * (count + more) > places:
            while _SLACK * (count + more) > places:
                places *= 2
            self._places = np.full(places, -1, np.int32)
            if not self._put_back(count):
                self.empty()
                self._make_room(more, lanes)

    def _put_back(self, count: int) -> bool:
        """Put all known keys into a new table. Returns whether none of them needs too many steps (G8).

        They come at once, and each was added alone before. So their steps may be far more than they were.
        """
        import numpy as np

        places = self._places_of([one[:count] for one in self._words], self._lengths[:count])
        left = np.arange(count, dtype=np.int32)
        for _ in range(self._most_probes):
            if not len(left):
                break
            free = self._places[places] < 0
            self._places[places[free]] = left[free]
            behind = self._places[places] != left
            left, places = left[behind], (places[behind] + 1) & (len(self._places) - 1)
        return not len(left)

    def _places_of(self, words: list[Column], lengths: Column) -> Column:
        """The first place of each key."""
        import numpy as np

        mixed = lengths.astype(np.uint64) * np.uint64(MIXERS[-1])
        for word, mixer in zip(words, MIXERS, strict=False):
            # A word of zeros changes nothing: so a key has one place, however many words others have.
            mixed ^= word * np.uint64(mixer)
        mixed ^= mixed >> np.uint64(32)
        mixed *= np.uint64(MIXERS[0])
        return (mixed >> np.uint64(32)).astype(np.int64) & (len(self._places) - 1)

    def _find(self, words: list[Column], lengths: Column, content: tuple[Any, Column]) -> Column | None:
        import numpy as np

        places, numbers, left = self._places_of(words, lengths), np.zeros(0, np.int64), np.zeros(0, np.int64)
        for step in range(self._most_probes):
            found = self._places[places].astype(np.int64)  # NumPy is slower with indexes of other types
            empty = (found < 0).nonzero()[0]
            if len(empty):
                found[empty] = self._add(places[empty], empty, words, lengths, content)
            # Keys of one length have as many words that are not zero.
            other = self._lengths[found] != lengths
            for known, word in zip(self._words, words, strict=False):
                other |= known[found] != word
            behind = other.nonzero()[0]
            if step == 0:
                numbers, left = found, behind
            else:
                numbers[left] = found  # those of other keys are found at a later step
                left = left[behind]
            if not len(behind):
                return numbers
            places = (places[behind] + 1) & (len(self._places) - 1)
            words, lengths = [word[behind] for word in words], lengths[behind]
            content = content[0], content[1][behind]
        return None

    def _add(
        self,
        places: Column,
        empty: Column,
        words: list[Column],
        lengths: Column,
        content: tuple[Any, Column],
    ) -> Column:
        """One of the keys at each empty place gets a number. Returns what these places have then.

        Args:
            places: They are empty, and may occur several times.
            empty: Which of the keys are to be there.
            words: The words of all keys.
            lengths: Their lengths.
            content: Their bytes, and where each of them begins.
        """
        import numpy as np

        self._places[places] = empty
        first = (self._places[places] == empty).nonzero()[0]
        begin, end = len(self.keys), len(self.keys) + len(first)
        self._places[places[first]] = np.arange(begin, end)
        chosen = empty[first]
        self._lengths[begin:end] = own = lengths[chosen]
        for known, word in zip(self._words, words, strict=False):  # behind these, all words are zero as yet
            known[begin:end] = word[chosen]
        self.keys += _keys_in(content[0], content[1][chosen], own)
        return self._places[places]


def _keys_in(content: Any, starts: Column, lengths: Column) -> list[bytes]:
    """The keys with these lengths in a buffer, as objects. NumPy makes those of one length together."""
    import numpy as np

    least = int(lengths.min(initial=MAX_KEY))
    if least == lengths.max(initial=0):
        return _keys_of_length(content, starts, least)
    keys = np.empty(len(starts), object)
    for length in distinct(lengths, MAX_KEY + 1).tolist():
        mine = np.flatnonzero(lengths == length)
        keys[mine] = _keys_of_length(content, starts[mine], length)
    found: list[bytes] = keys.tolist()
    return found


def _keys_of_length(content: Any, starts: Column, length: int) -> list[bytes]:
    import numpy as np

    if not length:
        return [b""] * len(starts)
    found: list[bytes] = np.ndarray((len(content) - length + 1,), f"V{length}", content, 0, (1,))[starts].tolist()
    return found


def distinct(numbers: Column, below: int) -> Column:
    """The numbers, in increasing order and without repetitions. All are below ``below``."""
    import numpy as np

    if len(numbers) * _FEW < below:
        ordered = np.sort(numbers)
        return ordered[np.flatnonzero(np.diff(ordered, prepend=-1))]
    marks = np.zeros(below, np.bool_)
    marks[numbers] = True
    return np.flatnonzero(marks)


def selector(indexes: Sequence[int]) -> slice | Rows:
    """What selects the items of a column at these indexes, as NumPy does it fastest."""
    import numpy as np

    if isinstance(indexes, range) and indexes.step == 1:
        return slice(indexes.start, indexes.stop)
    return np.array(indexes, np.int64)


def _words_of(padded: Any, starts: Column, lengths: Column, longest: int) -> list[Column]:
    """The keys as words of eight bytes. Behind the end of a key there are zeros."""
    import numpy as np

    at = np.ndarray((len(padded) - _WORD + 1,), "<u8", padded, 0, (1,))
    masks = np.array([(1 << 8 * size) - 1 for size in range(_WORD + 1)], np.uint64)
    found = []
    for offset in range(0, max(longest, 1), _WORD):
        rest = np.clip(lengths - offset, 0, _WORD)
        found.append(at[starts + offset].astype(np.uint64, copy=False) & masks[rest])
    return found
