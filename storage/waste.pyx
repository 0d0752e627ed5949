# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""What the data has let go of and what takes long to free: given back a little at a time.

The blocks of a large stream that was deleted, those cut off by a trim, the tables of a database that
was flushed. Freeing a million objects at once would hold everybody up for a tenth of a second and
more; kept here they are freed in the server's idle moments, 1000 in about half a millisecond. A
thread would take the interpreter's lock as long. Nobody else frees in parts, so all this is off
(`defer`) but in a server.
"""

from libc.stdint cimport UINT64_MAX, uint64_t

from millstream.storage.skiplist cimport SkipList

cdef enum:
    # So many blocks of a trim are freed at once.
    AT_ONCE = 1024
    # Of a stream that goes, since very many may go together: with a command or with their time.
    AT_ONCE_EACH = 16

cdef bint deferring = False
cdef list lists = []
cdef list tables = []  # (keyspace, dict)
cdef list pendings = []  # chunks of pending entries, as a SharedPending has them
cdef list containers = []  # lists, dicts and deques that only this module holds


def defer(bint wanted) -> None:
    """Whether what is large is kept to be freed later; if not, all that is kept is freed now."""
    global deferring
    deferring = wanted
    if not wanted:
        tables.clear()
        containers.clear()
        pendings.clear()
        while free_some(AT_ONCE):
            pass


cdef bint is_deferring() noexcept:
    return deferring


cdef int discard(SkipList blocks) except -1:
    """Take over the blocks that a stream has no more; nobody else may hold the list."""
    if deferring and blocks.blocks > AT_ONCE_EACH:
        lists.append(blocks)
    return 0


cdef int discard_part(SkipList part) except -1:
    """Take over what was cut off from a list; a first part of it is freed at once."""
    if part.free_blocks(AT_ONCE):
        lists.append(part)
    return 0


cdef int free_parts(SkipList whole) except -1:
    """Free all that was cut off from a list, so that its totals are what it has."""
    cdef SkipList part
    for part in [one for one in lists if (<SkipList>one).cut_from is whole]:
        part.free_blocks(UINT64_MAX)
        lists.remove(part)
    return 0


def discard_table(keyspace, dict table not None) -> None:
    """Take over a dict that only a snapshot of its keyspace or a long KEYS may still look at. One
    with few keys may have many blocks."""
    if deferring and table:
        tables.append((keyspace, table))


cpdef int discard_items(items) except -1:
    """Take over a list, dict or deque that nothing else holds; a short one is freed at once."""
    if deferring and len(items) > AT_ONCE:
        containers.append(items)
    return 0


cdef int discard_pending(shared) except -1:
    """Take over the pending entries of a group that is gone."""
    pendings.append(shared)
    return 0


cpdef bint has_waste() noexcept:
    """Whether anything is kept to be freed later."""
    return len(lists) > 0 or len(tables) > 0 or len(containers) > 0 or len(pendings) > 0


def free_some(uint64_t most) -> bool:
    """Free about so many blocks or keys; whether there is more that may be freed now. What a
    snapshot or a long KEYS looks at has to wait for its end."""
    cdef SkipList blocks
    if lists:
        blocks = lists[len(lists) - 1]
        if not blocks.free_blocks(most):
            lists.pop()
        return True
    if pendings:
        if not pendings[len(pendings) - 1].free_some(most):
            pendings.pop()
        return True
    if containers:
        if not empty_some(containers[len(containers) - 1], most):
            containers.pop()
        return True
    for place in tables:
        keyspace, table = place
        if not keyspace.is_walked:
            if not empty_some(table, most):
                tables.remove(place)
            return True
    return False


cdef bint empty_some(items, uint64_t most) except -1:
    """Remove up to `most` items of a container; False when none is left."""
    remove = items.popitem if isinstance(items, dict) else items.pop
    while most and items:
        remove()
        most -= 1
    return len(items) > 0
