# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The consumers of a group, the clients that wait on it, and what a group needs once it has more
than one consumer.

Consumers have numbers, because records of pending entries refer to them. Number 0 means no owner.
A stream may have very many groups, and most have one consumer or none, which needs no list.
"""

from libc.stdint cimport UINT64_MAX as NEVER, int64_t, uint32_t, uint64_t
cimport cython

from millstream.storage.groups.due_index cimport DeliveryOrder
from millstream.storage.groups.pending cimport CONSUMERS_MAX

from millstream.errors import CommandError
from millstream.storage.blocks.lazyfree import discard_items

cdef enum:
    KNOWN_NAMES_MAX = 256
    KNOWN_NAME_BYTES_MAX = 64
    # A group with more consumers has a dict of them.
    FEW_CONSUMERS = 8

cdef list NO_MEMBERS = [None]
# Names of groups and consumers that many streams have: one object for all of them.
cdef dict KNOWN_NAMES = {}


cdef bytes known_name(bytes name):
    """The same name, as an object that other groups share while there are few different names."""
    cdef bytes known = KNOWN_NAMES.get(name)
    if known is not None:
        return known
    if len(name) <= KNOWN_NAME_BYTES_MAX:
        if len(KNOWN_NAMES) >= KNOWN_NAMES_MAX:
            KNOWN_NAMES.clear()
        KNOWN_NAMES[name] = name
    return name


@cython.no_gc
cdef class Consumer:
    """A named member of a group (XREADGROUP). Times are unix milliseconds, -1 for never."""

    def __init__(self, bytes name, uint32_t index, int64_t seen_ms, int64_t active_ms):
        self.name = known_name(name)
        self.index = index
        self.seen_ms = seen_ms
        self.active_ms = active_ms


@cython.no_gc
cdef class Details:
    """`consumers` is indexed by number, with None for number 0 and for unused numbers."""

    def __cinit__(self):
        self.consumers = NO_MEMBERS
        self.claim_idle_ms = NEVER

    def __dealloc__(self):
        if self.consumers is not NO_MEMBERS:
            discard_items(self.consumers)
        if self.by_name is not None:
            discard_items(self.by_name)

    cdef uint32_t count(self) noexcept:
        cdef uint32_t unused = 0 if self.free_consumers is None else len(self.free_consumers)
        return len(self.consumers) - 1 - unused

    cdef Consumer find(self, bytes name):
        cdef Consumer consumer = self.latest
        if consumer is not None and consumer.name == name:
            return consumer
        self.latest = None
        if self.by_name is not None:
            self.latest = self.by_name.get(name)
            return self.latest
        for consumer in self.consumers:
            if consumer is not None and consumer.name == name:
                self.latest = consumer
                break
        return self.latest

    cdef int add(self, Consumer consumer) except -1:
        """Add a consumer; its number is unused, or the next one."""
        cdef Consumer other
        if self.consumers is NO_MEMBERS:
            self.consumers = [None]
        if consumer.index == len(self.consumers):
            self.consumers.append(consumer)
        else:
            self.consumers[consumer.index] = consumer
        if self.by_name is not None:
            self.by_name[consumer.name] = consumer
        elif len(self.consumers) > FEW_CONSUMERS:
            self.by_name = {}
            for other in self.consumers:
                if other is not None:
                    self.by_name[other.name] = other
        return 0

    cdef int skip_number(self) except -1:
        """Leave the next number unused, while consumers are loaded."""
        if self.consumers is NO_MEMBERS:
            self.consumers = [None]
        self.consumers.append(None)
        return 0

    cdef int remove(self, Consumer consumer) except -1:
        if self.free_consumers is None:
            self.free_consumers = []
        self.free_consumers.append(consumer.index)
        self.consumers[consumer.index] = self.latest = None
        if self.by_name is not None:
            del self.by_name[consumer.name]
        return 0


@cython.no_gc
cdef class Members:
    """The consumers of a group, by name and by number."""

    cdef Details details(self):
        """None for a group without details."""
        return <Details>self.owners if type(self.owners) is Details else None

    cdef Details own_details(self):
        """The details of the group, which has them from now on."""
        cdef Details made
        if type(self.owners) is not Details:
            made = Details.__new__(Details)
            if self.owners is not None:
                made.add(<Consumer>self.owners)
            self.owners = made
        return <Details>self.owners

    cdef list members(self):
        """Consumers by number, None for unused numbers; read-only."""
        if type(self.owners) is Consumer:
            return [None, self.owners]
        return NO_MEMBERS if self.owners is None else (<Details>self.owners).consumers

    cdef Consumer numbered(self, uint32_t number):
        """The consumer with a number; None for number 0."""
        if number == 0:
            return None
        if type(self.owners) is Consumer:
            return <Consumer>self.owners
        return (<Details>self.owners).consumers[number]

    cdef int add_member(self, Consumer consumer) except -1:
        """Add a consumer; its number is unused, or the next one. The first one of a group without
        other numbers needs no list."""
        if consumer.index == 1 and self.owners is None:
            self.owners = consumer
            return 0
        return self.own_details().add(consumer)

    cdef int remove_member(self, Consumer consumer) except -1:
        if self.owners is consumer:
            self.owners = None
            return 0
        return (<Details>self.owners).remove(consumer)

    cdef int skip_number(self) except -1:
        """Leave the next number unused, while consumers are loaded."""
        return self.own_details().skip_number()

    cdef uint32_t consumer_count(self) noexcept:
        if self.owners is None:
            return 0
        return 1 if type(self.owners) is Consumer else (<Details>self.owners).count()

    cdef dict large_counts(self):
        """Delivery counts that do not fit into a record, or None."""
        return (<Details>self.owners).large_counts if type(self.owners) is Details else None

    cdef uint64_t lost_pending(self) noexcept:
        """The number of entries that were evicted while they were pending."""
        return (<Details>self.owners).lost_pending if type(self.owners) is Details else 0

    cdef DeliveryOrder order(self):
        """The order of the deliveries of one millisecond, or None."""
        return (<Details>self.owners).order if type(self.owners) is Details else None

    cdef uint64_t claim_idle(self) noexcept:
        return (<Details>self.owners).claim_idle_ms if type(self.owners) is Details else NEVER

    @property
    def claim_idle_ms(self) -> int:
        return self.claim_idle()

    @property
    def consumers(self) -> dict:
        """Consumers by name, in the order of their numbers."""
        return {(<Consumer>one).name: one for one in self.members() if one is not None}

    cpdef Consumer consumer(self, bytes name):
        """The consumer with this name, or None."""
        if type(self.owners) is Consumer:
            return <Consumer>self.owners if (<Consumer>self.owners).name == name else None
        return None if self.owners is None else (<Details>self.owners).find(name)

    cpdef Consumer make_consumer(self, bytes name, int64_t now_ms):
        """Add a consumer with a new name."""
        cdef Consumer made
        cdef Details details
        if self.owners is None:
            self.owners = made = Consumer(name, 1, now_ms, -1)
            return made
        details = self.own_details()
        if not details.free_consumers and len(details.consumers) > CONSUMERS_MAX:
            raise CommandError("ERR the group has too many consumers")
        index = details.free_consumers.pop() if details.free_consumers else len(details.consumers)
        made = Consumer(name, index, now_ms, -1)
        details.add(made)
        return made

    cdef int copy_consumer(self, Consumer other) except -1:
        cdef Consumer made = Consumer(other.name, other.index, other.seen_ms, other.active_ms)
        made.pending = other.pending
        while len(self.members()) < <Py_ssize_t>other.index:
            self.skip_number()
        return self.add_member(made)

    cdef int free_numbers(self) except -1:
        """Collect the unused numbers below the largest one."""
        cdef Py_ssize_t i
        cdef Details details = self.details()
        cdef list consumers
        if details is None:
            return 0
        consumers = details.consumers
        unused = [i for i in range(len(consumers) - 1, 0, -1) if consumers[i] is None]
        if unused:
            details.free_consumers = unused
        return 0

    cdef int add_claim_wait(self, uint64_t min_idle_ms, int change) except -1:
        """Add (or subtract) a blocked client that claims entries idle for min_idle_ms."""
        cdef Details details = self.own_details()
        if details.claim_waits is None:
            details.claim_waits = {}
        count = details.claim_waits.get(min_idle_ms, 0) + change
        if count:
            details.claim_waits[min_idle_ms] = count
        else:
            del details.claim_waits[min_idle_ms]
        details.claim_idle_ms = min(details.claim_waits, default=NEVER)
        return 0
