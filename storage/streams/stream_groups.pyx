# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The groups of a stream by name, in the order of their creation.

With very many streams, most have one group at most, which needs no dict.
"""

from libc.stdint cimport uint64_t

cimport cython

from millstream.entry_id cimport EntryId, id_less
from millstream.storage.groups.due_index cimport bound_of
from millstream.storage.groups.group cimport Group
from millstream.storage.groups.pending cimport EXPIRE, PendingAt
from millstream.storage.groups.pending_chunks cimport find_pending

from millstream.storage.blocks.lazyfree import discard_items


cdef inline bytes name_of(group):
    return (<Group>group).name


@cython.no_gc
cdef class StreamGroups:
    """The groups of a stream. `has_ttl`: a group may have a time to live."""

    def __dealloc__(self):
        if self.by_name is not None:
            discard_items(self.by_name)

    cdef uint64_t count(self) noexcept:
        if self.by_name is not None:
            return len(self.by_name)
        return self.only is not None

    cdef list all(self):
        """The groups in the order of their creation."""
        if self.by_name is not None:
            return list(self.by_name.values())
        return [] if self.only is None else [self.only]

    cdef dict by_names(self):
        """The groups by name; read-only."""
        if self.by_name is not None:
            return self.by_name
        return {} if self.only is None else {name_of(self.only): self.only}

    cdef object find(self, bytes name):
        """The group with this name, or None."""
        if self.by_name is not None:
            return self.by_name.get(name)
        if self.only is not None and name_of(self.only) == name:
            return self.only
        return None

    cdef int add(self, group) except -1:
        """Add a group with a new name. Most streams of very many have one group at most, and a dict
        would be larger than the group."""
        self.has_ttl = self.has_ttl or (<Group?>group).ttl_ms > 0
        if self.by_name is not None:
            self.by_name[name_of(group)] = group
        elif self.only is None:
            self.only = group
        else:
            self.by_name = {
                name_of(self.only): self.only, name_of(group): group}
            self.only = None
        return 0

    cdef bint drop(self, bytes name):
        """Remove a group with its pending entries; False when there is none."""
        if self.by_name is not None:
            return self.by_name.pop(name, None) is not None
        if self.only is None or name_of(self.only) != name:
            return False
        self.only = None
        return True

    cdef int set_ttl(self, group, uint64_t ttl_ms) except -1:
        (<Group?>group).ttl_ms = ttl_ms
        self.has_ttl = self.has_ttl or ttl_ms > 0
        return 0

    cdef uint64_t live_count(self, uint64_t now_ms) except? 0xffffffffffffffff:
        """The number of groups whose time to live has not ended; constant time if no group has
        one."""
        cdef Group group
        cdef uint64_t count = self.count()
        if self.has_ttl:
            for group in self.all():
                if group.ttl_ms and group.is_over(now_ms):
                    count -= 1
        return count

    cdef list due(self, uint64_t now_ms):
        """The names of groups whose time to live has ended, or with pending entries that may have
        expired."""
        cdef Group group
        return [group.name for group in self.all() if bound_of(group.pendings, EXPIRE) <= now_ms or (
            group.ttl_ms and group.is_over(now_ms))]

    cdef bint is_held(self, uint64_t ms, uint64_t seq) noexcept:
        """True if a group has not read this entry yet, or has not acknowledged it."""
        cdef Group group
        for group in self.all():
            if id_less(group.offset_ms, group.offset_seq, ms, seq):
                return True
        return self.has_pending(ms, seq)

    cdef bint has_pending(self, uint64_t ms, uint64_t seq) noexcept:
        """True if this ID is pending in a group."""
        cdef Group group
        cdef PendingAt at
        for group in self.all():
            if group.pendings.count and find_pending(group.pendings, EntryId(ms, seq), &at) != NULL:
                return True
        return False

    cdef int forget_gone(self) except -1:
        """Forget which pending entries no longer exist: their IDs may be used again."""
        cdef Group group
        for group in self.all():
            group.forget_gone()
        return 0

    cdef uint64_t size_bytes(self) except? 0xffffffffffffffff:
        """An estimate of the memory used."""
        cdef Group group
        cdef uint64_t total = 0
        for group in self.all():
            total += group.size_bytes()
        return total


cdef StreamGroups NO_GROUPS = StreamGroups.__new__(StreamGroups)


cdef StreamGroups no_groups():
    """One object for all streams without groups; nothing is added to it."""
    return NO_GROUPS
