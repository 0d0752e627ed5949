# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The groups of a stream by name, in the order of their creation.

With very many streams, most have one group at most. A dict would be larger than the group.
"""

from libc.stdint cimport uint64_t

from millstream.entry_id cimport EntryId, id_less
from millstream.storage.groups.due_index cimport bound_of
from millstream.storage.groups.group cimport Group, has_ended, is_parked, size_bytes_of
from millstream.storage.groups.pending cimport EXPIRE, PendingAt
from millstream.storage.groups.pending_chunks cimport find_pending


cdef inline bytes name_of(group):
    return (<Group?>group).name


cdef uint64_t group_count(groups) noexcept:
    if groups is None:
        return 0
    return len(<dict>groups) if type(groups) is dict else 1


cdef list all_groups(groups):
    """The groups in the order of their creation."""
    if groups is None:
        return []
    return list((<dict>groups).values()) if type(groups) is dict else [groups]


cdef dict groups_by_name(groups):
    """The groups by name; read-only."""
    if groups is None:
        return {}
    return groups if type(groups) is dict else {name_of(groups): groups}


cdef object find_group(groups, bytes name):
    """The group with this name, or None."""
    if groups is None:
        return None
    if type(groups) is dict:
        return (<dict>groups).get(name)
    return groups if name_of(groups) == name else None


cdef object with_group(groups, group):
    """These groups and one with a new name. A dict is changed in place."""
    if groups is None:
        return group
    if type(groups) is not dict:
        groups = {name_of(groups): groups}
    (<dict>groups)[name_of(group)] = group
    return groups


cdef object without_group(groups, bytes name):
    """These groups without one that is among them. A dict is changed in place."""
    if type(groups) is not dict:
        return None
    del (<dict>groups)[name]
    return groups or None


cdef uint64_t count_live_groups(groups, uint64_t now_ms) except? 0xffffffffffffffff:
    """The number of groups whose time to live has not ended."""
    cdef Group group
    cdef uint64_t count = group_count(groups)
    for group in all_groups(groups):
        if has_ended(group, now_ms):
            count -= 1
    return count


cdef list due_groups(groups, uint64_t now_ms):
    """The names of groups whose time to live has ended, or with pending entries that may have
    expired."""
    cdef Group group
    return [group.name for group in all_groups(groups)
            if bound_of(group.pending.records, EXPIRE) <= now_ms or has_ended(group, now_ms)
            or group.rules is not None and group.rules.copy_at_ms <= now_ms]


cdef bint is_held_by_group(groups, uint64_t ms, uint64_t seq) noexcept:
    """True if a group has not read this entry yet, has not acknowledged it, or has parked it."""
    cdef Group group
    for group in all_groups(groups):
        if id_less(group.offset_ms, group.offset_seq, ms, seq) or is_parked(group, EntryId(ms, seq)):
            return True
    return has_pending(groups, ms, seq)


cdef bint has_pending(groups, uint64_t ms, uint64_t seq) noexcept:
    """True if this ID is pending in a group."""
    cdef Group group
    cdef PendingAt at
    for group in all_groups(groups):
        if group.pending.records.count and find_pending(
                group.pending.records, EntryId(ms, seq), &at) != NULL:
            return True
    return False


cdef int forget_gone(groups) except -1:
    """Forget which pending entries no longer exist: their IDs may be used again."""
    cdef Group group
    for group in all_groups(groups):
        group.pending.forget_gone()
    return 0


cdef uint64_t groups_size_bytes(groups) except? 0xffffffffffffffff:
    """An estimate of the memory used."""
    cdef Group group
    cdef uint64_t total = 0
    for group in all_groups(groups):
        total += size_bytes_of(group)
    return total
