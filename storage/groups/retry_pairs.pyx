# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The retry pairs of a group: (retry, expire), stored once and numbered.

Most records of a group have the same retry and expire times, so a record has the number of a pair. Number 0
is for records without one.
`Pendings.retry_times` has the pairs by number, `Details` their count, and the numbers by pair.
"""

from libc.stdint cimport UINT64_MAX as NEVER, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

from millstream.storage.groups.consumers cimport Details
from millstream.storage.groups.pending cimport NO_RETRY, RETRY_TIMES_MAX, Pendings, RetryTimes

from millstream.errors import CommandError

cdef enum:
    # Most groups have only a few pairs: these are compared one by one.
    FEW_PAIRS = 8


cdef uint32_t number_of(Pendings* pendings, Details details, uint64_t retry_ms,
                        uint64_t expire_ms) except 0:
    """The number of a (retry, expire) pair, from 1. Use the number before requesting
    another one: when all numbers are used, a pair without records is replaced."""
    cdef uint32_t number
    cdef const RetryTimes* times = pendings.retry_times
    cdef uint32_t compared = 0 if times == NULL else min(
        details.retry_times_count, <uint32_t>FEW_PAIRS)
    for number in range(1, compared):
        if times[number].retry_ms == retry_ms and times[number].expire_ms == expire_ms and (
                times[number].known):
            return number
    pair = (retry_ms, expire_ms)
    if details.retry_numbers is None:
        details.retry_numbers = {}
    known = details.retry_numbers.get(pair)
    if known is not None:
        return known
    number = free_number(pendings, details)
    details.retry_numbers[pair] = number
    pendings.retry_times[number].retry_ms = retry_ms
    pendings.retry_times[number].expire_ms = expire_ms
    pendings.retry_times[number].known = True
    return number


cdef uint32_t free_number(Pendings* pendings, Details details) except 0:
    if not details.free_retry_times and details.retry_times_count > RETRY_TIMES_MAX:
        free_unused(pendings, details)
        if not details.free_retry_times:
            raise CommandError("ERR too many different RETRY pairs are pending in this group")
    if details.free_retry_times:
        return details.free_retry_times.pop()
    make_space(pendings, details)
    pendings.retry_times[details.retry_times_count].known = False
    pendings.retry_times[details.retry_times_count].uses = 0
    details.retry_times_count += 1
    return details.retry_times_count - 1


cdef int make_space(Pendings* pendings, Details details) except -1:
    """Allocate space for one more pair, and for number 0."""
    cdef RetryTimes* moved
    cdef uint32_t wanted
    if details.retry_times_count == details.retry_times_capacity or pendings.retry_times == NULL:
        wanted = max(<uint32_t>4, details.retry_times_capacity * 2)
        moved = <RetryTimes*>realloc(pendings.retry_times, wanted * sizeof(RetryTimes))
        if moved == NULL:
            raise MemoryError("no memory for a retry pair")
        pendings.retry_times = moved
        details.retry_times_capacity = wanted
    if details.retry_times_count == 0:
        pendings.retry_times[0].known = False
        pendings.retry_times[0].uses = 0
        details.retry_times_count = 1
    return 0


cdef int set_older_timeout(Pendings* pendings, Details details, uint64_t timeout_ms) except -1:
    """Set the timeout of entries without a pair; 0: they are never due."""
    if pendings.retry_times == NULL:
        make_space(pendings, details)
    pendings.retry_times[NO_RETRY].known = timeout_ms > 0
    pendings.retry_times[NO_RETRY].retry_ms = timeout_ms
    pendings.retry_times[NO_RETRY].expire_ms = 0
    return 0


cdef int free_unused(Pendings* pendings, Details details) except -1:
    cdef RetryTimes* times
    cdef uint32_t i
    details.free_retry_times = []
    for i in range(details.retry_times_count - 1, 0, -1):
        times = &pendings.retry_times[i]
        if times.known and times.uses == 0:
            del details.retry_numbers[times.retry_ms, times.expire_ms]
            times.known = False
            details.free_retry_times.append(i)
    return 0


cdef bint has_unpaired(Pendings* pendings, Details details) noexcept:
    """True if entries without a retry pair are pending."""
    cdef uint64_t paired = 0
    cdef uint32_t i
    for i in range(1, 0 if details is None else details.retry_times_count):
        paired += pendings.retry_times[i].uses
    return paired < pendings.count


cdef list retry_pairs(Pendings* pendings, Details details):
    """The pairs by number as [retry, expire], None for unused numbers."""
    cdef uint32_t i
    cdef list pairs = [None]
    if details is None:
        return pairs
    for i in range(1, details.retry_times_count):
        pairs.append([pendings.retry_times[i].retry_ms, pendings.retry_times[i].expire_ms]
                     if pendings.retry_times[i].known else None)
    return pairs


cdef int load_pairs(Pendings* pendings, Details details, list pairs) except -1:
    """Restore the pairs of a dump in a new group."""
    cdef uint32_t number
    details.retry_numbers = {}
    for pair in pairs[1:]:
        number = free_number(pendings, details)
        if pair is not None:
            pendings.retry_times[number].retry_ms, pendings.retry_times[number].expire_ms = pair
            pendings.retry_times[number].known = True
            details.retry_numbers[pair] = number
    details.free_retry_times = [i for i in range(len(pairs) - 1, 0, -1) if pairs[i] is None]
    return 0


cdef int copy_pairs(Pendings* pendings, Details details, Pendings* other,
                    Details other_details) except -1:
    """Copy the pairs of another group, with their numbers, to a group that has none."""
    cdef size_t size = other_details.retry_times_capacity * sizeof(RetryTimes)
    if not size:
        return 0
    free(pendings.retry_times)
    pendings.retry_times = <RetryTimes*>malloc(size)
    if pendings.retry_times == NULL:
        raise MemoryError("no memory for retry pairs")
    memcpy(pendings.retry_times, other.retry_times, size)
    details.retry_times_count = other_details.retry_times_count
    details.retry_times_capacity = other_details.retry_times_capacity
    if other_details.retry_numbers is not None:
        details.retry_numbers = dict(other_details.retry_numbers)
    if other_details.free_retry_times is not None:
        details.free_retry_times = list(other_details.free_retry_times)
    return 0


cdef list checked_pairs(rows, bytes group_name):
    """The (retry_ms, expire_ms) pairs of a dump, checked. Later reads do not check them again."""
    cdef list pairs = [None if row is None else tuple(row) for row in rows]
    known = [pair for pair in pairs if pair is not None]
    numbers = [n for pair in known for n in pair]
    if not pairs or pairs[0] is not None or len(pairs) > RETRY_TIMES_MAX + 1 or len(
            set(known)) < len(known) or any(
            len(pair) != 2 for pair in known) or any(
            not isinstance(n, int) or not 0 <= n <= NEVER for n in numbers):
        raise ValueError(f"the retry pairs of group {group_name!r} are malformed")
    return pairs
