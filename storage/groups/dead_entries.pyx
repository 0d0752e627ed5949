# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The dead entries of a group: they have ended, and are not copied to the dead letter stream yet.

Their records wait forever (`pending.is_dead`). Why they have ended is in `Details`: the reason, the
consumer, and the text of the last failure. A record that is no longer dead forgets it
(`PendingList.end_wait`).
"""

from libc.stdint cimport uint64_t

from millstream.storage.groups.consumers cimport Details
from millstream.storage.groups.pending_list cimport PendingList

from itertools import islice


cdef Details details_of(PendingList pending):
    """The details of a group that had dead entries; None for others."""
    cdef Details details = pending.details()
    return None if details is None or details.dead is None else details


cpdef Py_ssize_t dead_count(PendingList pending) except -1:
    """The number of dead entries."""
    cdef Details details = details_of(pending)
    return 0 if details is None else len(details.dead) + len(details.uncopied)


cpdef dict dead_entries(PendingList pending):
    """The dead entries by ID (ms, seq): (reason, consumer, text) each."""
    cdef Details details = details_of(pending)
    return {} if details is None else {**details.uncopied, **details.dead}


cdef tuple dead_facts(PendingList pending, uint64_t ms, uint64_t seq):
    """The (reason, consumer, text) of a dead entry that may be copied."""
    return details_of(pending).dead[ms, seq]


cdef list first_dead(PendingList pending, Py_ssize_t limit):
    """Up to `limit` IDs (ms, seq) of dead entries that may be copied, the longest dead first."""
    cdef Details details = details_of(pending)
    return [] if details is None else list(islice(details.dead, limit))


cdef int set_dead(PendingList pending, uint64_t ms, uint64_t seq, tuple facts,
                  bint may_be_copied) except -1:
    """Store the (reason, consumer, text) of an entry whose record is dead."""
    cdef Details details = pending.own_details()
    if details.dead is None:
        details.dead = {}
        details.uncopied = {}
    details.dead.pop((ms, seq), None)
    (details.dead if may_be_copied else details.uncopied)[ms, seq] = facts
    return 0
