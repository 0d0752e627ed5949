# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The filter of a group (WHERE), and its order by key (ORDER, RUN)."""

from libc.stdint cimport uint32_t, uint64_t

from millstream.encoding cimport Slice
from millstream.storage.blocks.entry_filter cimport EntryFilter
from millstream.storage.blocks.field_reader cimport FieldReader
from millstream.storage.blocks.layout cimport Entry, View
from millstream.storage.groups.key_order cimport KeyOrder

limits.parked_max = 100000


def set_parked_max(uint32_t parked_max) -> None:
    """Set the most entries that a group parks."""
    limits.parked_max = parked_max


cdef class Picking:
    """The filter and the order of a group. `where` has the words of the filter (EntryFilter), `seed` is
    for the hashes of keys. `keys` are those of another object with the same order."""

    def __init__(self, list where not None, bytes order not None, bytes field not None,
                 uint64_t seed, uint32_t run, KeyOrder keys=None):
        self.filter = EntryFilter(where) if where else None
        self.order = order
        self.field = field
        self.run = run
        if order != b"NONE":
            self.keys = KeyOrder(seed, run) if keys is None else keys
            self.keys.run = run
        if order == b"FIELD":
            self.reader = FieldReader(field)

    @property
    def where(self) -> list:
        """The words of the filter."""
        return [] if self.filter is None else self.filter.words

    @property
    def conditions(self) -> int:
        return 0 if self.filter is None else self.filter.count

    @property
    def seed(self) -> int:
        return 0 if self.keys is None else self.keys.seed

    @property
    def parked(self) -> int:
        """The number of parked entries."""
        return 0 if self.keys is None else self.keys.parked_count

    cdef bint has_key(self, const View* view, const Entry* entry, uint64_t* hash) except -1:
        """Get the hash of the key of an entry of the block that was begun; False if it is not ordered."""
        cdef Slice value
        if self.keys is None:
            return False
        hash[0] = 0
        if self.reader is None:
            return True
        if not self.reader.find(view, entry, &value):
            return False
        hash[0] = self.keys.hash_of(value.ptr, value.size)
        return True
