from libc.stdint cimport uint32_t, uint64_t

from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.effects cimport Effects
from millstream.encoding cimport Slice
from millstream.entry_id cimport EntryId
from millstream.storage.groups.consumers cimport Consumer
from millstream.storage.groups.group cimport Group
from millstream.storage.keyspace.keyspace_core cimport KeyspaceCore as Keyspace
from millstream.storage.streams.stream cimport Stream


# An entry that a producer numbers or names: its ID, and its names and values.
cdef struct NewEntry:
    EntryId id
    Slice* items
    Py_ssize_t count


# The terms of a claim: the last delivery becomes delivery_ms, the number of deliveries this number,
# `+` for one more, `=` for no change.
cdef struct ClaimTerms:
    uint64_t now_ms
    uint64_t delivery_ms
    const char* deliveries


# The terms on which entries are given back: their delay, and their number of deliveries: a number, `-`
# for one less, `=` for no change.
cdef struct WaitTerms:
    uint64_t now_ms
    uint64_t delay_ms
    const char* deliveries


# The terms of a delivery: whether entries become pending (`keep`), their owner, and their retry
# pair, if any. With zero, entries with retry 0 are due. dotted: the form of their IDs.
cdef struct Terms:
    uint64_t retry_ms
    uint64_t expire_ms
    uint32_t owner
    bint keep
    bint has_retry
    bint with_zero
    bint dotted


# What a group with a filter or an order has delivered and parked.
cdef struct Picked:
    const EntryId* delivered
    size_t delivered_count
    const EntryId* parked
    size_t parked_count


cdef class Ids:
    cdef EntryId* items
    cdef size_t count
    cdef size_t capacity
    # The space of the first IDs, which are often all.
    cdef EntryId[4] few

    cdef int add(self, uint64_t ms, uint64_t seq) except -1
    cdef int take(self, Args args, bint dot_allowed) except -1
    cdef int put(self, Effects effects) except -1


cdef Ids ids_of(list ids)
cdef int id_at(Args args, Py_ssize_t place, EntryId* entry_id) except -1
cdef uint64_t number_at(Args args, Py_ssize_t place) except? 0xffffffffffffffff
cdef Stream stream_of(Keyspace keyspace, int db, Args args)
cdef int put_again(Keyspace keyspace, int db, Args args, Stream stream, EntryId entry_id,
                   Slice* items, Py_ssize_t count) except -1
cdef int record_append(Effects effects, int db, bytes key, EntryId entry_id, Slice* items,
                       Py_ssize_t count) except -1
cdef int record_append_once(Effects effects, int db, bytes key, const NewEntry* entry,
                            bytes producer, uint64_t number) except -1
cdef int record_eviction(Effects effects, int db, bytes key, EntryId first_kept) except -1
cdef int record_evict_all(Effects effects, int db, bytes key) except -1
cdef int record_deletion(Effects effects, int db, bytes key, Ids ids) except -1
cpdef window_of(Stream stream)
cdef int record_seen(Effects effects, int db, bytes key, Group group, Consumer consumer,
                     uint64_t now_ms) except -1
cdef int record_delivery(Effects effects, int db, bytes key, Group group, const Terms* terms,
                         EntryId first, uint64_t now_ms) except -1
cdef int record_redelivery(Effects effects, int db, bytes key, Group group, const Terms* terms,
                           Ids ids, uint64_t now_ms) except -1
cdef int record_take(Effects effects, int db, bytes key, Group group, const Terms* terms, Ids ids,
                     uint64_t now_ms) except -1
cdef int record_wait(Effects effects, int db, bytes key, Group group, const WaitTerms* terms,
                     Ids ids) except -1
cdef int note_key(Stream stream, Group group, EntryId at) except -1
cdef int record_pick(Effects effects, int db, bytes key, Group group, const Terms* terms,
                     const Picked* picked, uint64_t now_ms) except -1
cdef int record_passed(Effects effects, int db, bytes key, Group group, uint64_t now_ms) except -1
cdef int record_claim(Effects effects, int db, bytes key, Group group, Consumer consumer,
                      const ClaimTerms* terms, Ids ids) except -1
cdef int record_ack(Effects effects, int db, bytes key, bytes group, Ids ids) except -1
