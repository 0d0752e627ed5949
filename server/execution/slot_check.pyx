# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The slots of a request's keys in a node of a cluster: the request runs only if the slot is its own.

The keys of a request must be in one slot, even if the node owns more. The positions of the keys are those
that ACL rules use (`access/permission.Demand`); where a request does not have them in a row, COMMAND's key
specs find them. A request whose keys cannot be found is not valid: it gets the error of its handler.
"""

from libc.string cimport memcpy, memset

from millstream.commands.access.permission cimport (
    AFTER_STREAMS, ELSEWHERE, IN_A_ROW, NO_KEYS, Demand, streams_end,
)
from millstream.commands.runtime.arguments cimport Args
from millstream.encoding cimport Slice
from millstream.server.execution.lookup cimport Row
from millstream.server.protocol.outbox cimport Client
from millstream.storage.keyspace.cluster_slots cimport CLUSTER_SLOT_COUNT, cluster_slot

from millstream.commands.table.keyspecs import key_positions
from millstream.errors import CommandError

SHARD_CHANNELS = frozenset(("spublish", "ssubscribe", "sunsubscribe"))
FLUSHES = frozenset(("flushall", "flushdb"))
CROSSSLOT = "CROSSSLOT Keys in request don't hash to the same slot"
DOWN = "CLUSTERDOWN The cluster is down"
DOWN_TO_WRITES = "CLUSTERDOWN The cluster is down and only accepts read commands"


cpdef list positions_of(key_specs, list words):
    """The positions of a request's keys and shard channels; empty if they cannot be found."""
    try:
        return [at for at in key_positions(key_specs, words) if at < len(words)]
    except (IndexError, ValueError, CommandError):
        return []


cdef class Places:
    """The positions of a request's keys: those from `at` to `last` by `step`, or `listed`."""

    cdef int find(self, Row row, Args args) except -1:
        cdef Demand demand = row.demand
        self.at = demand.first
        self.last = demand.last if demand.last >= 0 else args.count + demand.last
        self.step = demand.step
        self.listed = None
        if demand.slot_place == NO_KEYS:
            self.last = self.at - 1
        elif demand.slot_place == AFTER_STREAMS:
            self.step = 1
            self.at = streams_end(args, self.at)
            self.last = self.at - 1
            if self.at < 0:
                self.set_list(positions_of(row.command.key_specs, args.all()))
            elif (args.count - self.at) & 1 == 0:
                self.last = self.at + (args.count - self.at) // 2 - 1
        elif demand.slot_place == ELSEWHERE:
            self.set_list(positions_of(row.command.key_specs, args.all()))
        self.last = min(self.last, args.count - 1)
        return 0

    cdef int set_list(self, list positions) except -1:
        self.listed = positions
        self.at = 0
        self.last = len(positions) - 1
        self.step = 1
        return 0

    cdef Slice* next(self, Args args) except? NULL:
        """The next key; NULL at the end."""
        cdef Py_ssize_t at = self.at
        if at > self.last:
            return NULL
        self.at += self.step
        return &args.items[at if self.listed is None else <Py_ssize_t>self.listed[at]]


cdef Py_ssize_t size_of(Args args) noexcept:
    """The bytes of a request's words."""
    cdef Py_ssize_t size = 0
    cdef Py_ssize_t i
    if args is not None:
        for i in range(args.count):
            size += args.items[i].size
    return size


cdef bint must_flush_later(parking, Client client) except -1:
    """True if a flush has to wait, because it would leave out the keys of leaving slots. CommandError if it
    has waited for too long."""
    if parking is None or not parking.slots:
        return False
    return parking.must_wait(client.id, next(iter(parking.slots)), 0)


cdef class SlotCheck:
    """The slots that this node owns. `node` knows the owners of the others. Requests for slots that are
    being handed over wait in `parking` (server/execution/slot_parking): `must_park`."""

    def __init__(self, node):
        self.node = node
        self.places = Places()

    def own(self, slots) -> None:
        """Own these slots, and no others."""
        memset(self.owned, 0, sizeof(self.owned))
        for slot in slots:
            if not 0 <= slot < CLUSTER_SLOT_COUNT:
                raise ValueError(f"{slot} is no slot")
            self.owned[<int>slot >> 3] |= <unsigned char>(1 << (<int>slot & 7))
        self.pass_slots()

    def set_down(self, bint is_down, *, bint allows_reads) -> None:
        """While the cluster is down, requests for any slot are refused, but not reads if these are
        allowed."""
        self.is_down = is_down
        self.allows_reads = allows_reads
        self.pass_slots()

    cdef int pass_slots(self) noexcept:
        """Requests for owned slots run at once, unless the cluster is down."""
        if self.is_down:
            memset(self.passed, 0, sizeof(self.passed))
        else:
            memcpy(self.passed, self.owned, sizeof(self.passed))
        return 0

    def park_in(self, parking) -> None:
        """Let requests for leaving slots wait here; None: there are none."""
        self.parking = parking

    cdef bint passes(self, int slot) noexcept:
        return self.passed[slot >> 3] >> (slot & 7) & 1

    cdef int check(self, Client client, Row row, Args args) except -1:
        """Refuse a request for a slot that is not served here, and one for several slots."""
        cdef int slot
        cdef Slice* key
        cdef Demand demand = row.demand
        self.must_park = False
        self.slot = NO_SLOT
        if demand.slot_place == NO_KEYS:
            if client.queue is not None and row.name == "exec":
                self.check_transaction(client, row)
            elif client.queue is None and row.name in FLUSHES:
                self.must_park = must_flush_later(self.parking, client)
            return 0
        if demand.slot_place == IN_A_ROW and demand.first == demand.last < args.count:  # one key
            key = &args.items[demand.first]
            slot = cluster_slot(key.ptr, key.size)
        elif demand.any_slots:
            return self.check_each(client, row, args)
        else:
            slot = self.slot_of_all(row, args, NO_SLOT)
        self.slot = slot
        if slot != NO_SLOT and not self.passes(slot):
            self.refuse_foreign(client, row, args, slot, row.writes)
        return 0

    cdef int check_transaction(self, Client client, Row row) except -1:
        """EXEC: refuse queued requests for several slots, or for another node's slot, and leave the
        transaction."""
        cdef int slot = NO_SLOT
        cdef bint writes
        try:
            for queued, args, _ in client.queue:
                slot = self.slot_of_all(<Row>queued, <Args>args, slot)
                if (<Row>queued).name in FLUSHES and must_flush_later(self.parking, client):
                    self.must_park = True
            self.slot = slot
            if slot != NO_SLOT and not self.passes(slot):
                writes = any((<Row>queued).writes for queued, _, _ in client.queue)
                self.refuse_foreign(client, row, None, slot, writes)
        except CommandError:
            client.leave_transaction()
            raise
        return 0

    cdef int check_each(self, Client client, Row row, Args args) except -1:
        """Refuse a request for the first of its keys that is not served here."""
        cdef Slice* key
        cdef int slot
        self.places.find(row, args)
        while True:
            key = self.places.next(args)
            if key == NULL:
                return 0
            slot = cluster_slot(key.ptr, key.size)
            if not self.passes(slot):
                self.refuse_foreign(client, row, args, slot, row.writes)

    cdef int slot_of_all(self, Row row, Args args, int slot) except -2:
        """The slot of all keys of a request, which must be `slot` unless that is NO_SLOT; `slot` if the
        request has no keys."""
        cdef Slice* key
        cdef int other
        self.places.find(row, args)
        while True:
            key = self.places.next(args)
            if key == NULL:
                return slot
            other = cluster_slot(key.ptr, key.size)
            if slot != NO_SLOT and slot != other:
                self.refuse_several(row, slot)
            slot = other

    cdef int refuse_foreign(self, Client client, Row row, Args args, int slot, bint writes) except -1:
        """Refuse a request for a slot of another node, unless this is a replica of that one and may serve the
        request (any request about shard channels, as in Redis), or the slot is leaving: then the request
        waits. `args` is None for EXEC, whose requests are in memory already."""
        if self.is_down and self.serves_down(row, slot, writes):
            return 0
        if row.name in SHARD_CHANNELS and self.node.owns(slot):
            return 0
        if self.parking is not None and self.parking.must_wait(client.id, slot, size_of(args)):
            self.must_park = True
            return 0
        if not writes and self.node.may_read(client, slot):
            return 0
        row.rejected += 1
        raise CommandError(self.refusal(client, slot))

    cdef str refusal_of_write(self, Client client):
        """The error of a write that only the role of this node refuses, in the request that was checked
        last: its slot passed, because the node has not learned yet who the primary is. None if this node
        is the primary, or the request has no keys."""
        if self.slot == NO_SLOT or self.node.is_primary_of_term():
            return None
        return self.refusal(client, self.slot)

    cdef str refusal(self, Client client, int slot):
        """The error of a request for a slot that this node does not serve."""
        error = self.node.unserved_slot(slot)
        if error is None:
            error = self.node.foreign_slot(client, slot)
            if error != DOWN:
                self.moved += 1
                return error
        self.unserved += 1
        return error

    cdef bint serves_down(self, Row row, int slot, bint writes) except -1:
        """While the cluster is down: true if the request runs here. As in Redis, shard channels are
        served, and a slot without an owner is noticed before."""
        if row.name not in SHARD_CHANNELS:
            error = self.node.unserved_slot(slot)
            if error is None and not self.allows_reads:
                error = DOWN
            elif error is None and writes:
                error = DOWN_TO_WRITES
            if error is not None:
                row.rejected += 1
                self.unserved += 1
                raise CommandError(error)
        return self.owned[slot >> 3] >> (slot & 7) & 1

    cdef int refuse_several(self, Row row, int slot) except -1:
        """Refuse keys of several slots, the first of which is `slot`. As in Redis, one without an
        owner is noticed before."""
        error = self.node.unserved_slot(slot)
        row.rejected += 1
        if error is not None:
            self.unserved += 1
            raise CommandError(error)
        self.crossed += 1
        raise CommandError(CROSSSLOT)
