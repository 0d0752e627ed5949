"""A set of numbers of 64 bits in 8 bytes a slot. A set of Python takes 60 to 85 bytes a number."""

from __future__ import annotations

from array import array

_FIRST_SLOTS = 1 << 10
_EMPTY = 0


class SeenKeys:
    """The hashes of the keys that were seen. At least a third of the slots is empty."""

    def __init__(self) -> None:
        self._slots = _empty(_FIRST_SLOTS)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, number: int) -> bool:
        """Add a number; False if it was there. The hash 0 counts as 1."""
        number = number or 1
        slots = self._slots
        mask = len(slots) - 1
        at = number & mask
        while found := slots[at]:
            if found == number:
                return False
            at = (at + 1) & mask
        slots[at] = number
        self._count += 1
        if 3 * self._count > 2 * len(slots):
            self._grow()
        return True

    def _grow(self) -> None:
        before = self._slots
        slots = self._slots = _empty(2 * len(before))
        mask = len(slots) - 1
        for number in before:
            if number == _EMPTY:
                continue
            at = number & mask
            while slots[at]:
                at = (at + 1) & mask
            slots[at] = number


def _empty(slots: int) -> array[int]:
    return array("Q", (_EMPTY,)) * slots
