# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Checks of a request before it runs: the password, the user's rules, the slot in a cluster, loading,
memory, space.

Usually there is no reason to refuse any request. `has_checks` is true while there may be one, so a
request tests one flag instead of eight.
"""

from libc.stdint cimport int64_t

from millstream.commands.access.permission cimport Permission
from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.server.execution.lookup cimport Row
from millstream.server.execution.slot_check cimport SlotCheck
from millstream.server.protocol.outbox cimport Client

from millstream.errors import LOADING, CommandError

cdef enum:
    # The effects of a batch are at most this number of times its bytes, plus this: nearly always far
    # less than the space left in the journal, and then no request has to be checked.
    BATCH_GROWTH = 8
    BATCH_EFFECTS_BYTES = 4096
    # The size of a request's effects in addition to its words, for each word and in total. Names of
    # up to some length appear in several effects; longer ones use the space that is reserved for
    # automatic changes.
    WORD_BYTES = 48
    KEY_REPEATS = 5
    NAME_BYTES = 4096
    REQUEST_EFFECTS_BYTES = 1024

NOAUTH = "NOAUTH Authentication required."
OUT_OF_MEMORY = "OOM command not allowed when used memory > 'maxmemory'."
NO_MORE_MEMORY = ("OOM the operating system gives this process no more memory; commands that need "
                  "memory are refused until some is free.")


cdef class Admission:
    """The reasons to refuse or postpone requests, and the checks of one request against them.

    `queue_full`: requests wait for the journal. `near_journal_limit`: the batch that runs may need
    more space in the journal than there is, so each of its requests is checked.
    """

    def __init__(self, server, Context context not None):
        self.server = server
        self.context = context
        self.effects = context.effects

    def set_password_required(self, bint required) -> None:
        """A new connection has to log in."""
        self._password_required = required
        self.update()

    def set_restricted(self, bint restricted) -> None:
        """The user of a connected client is restricted."""
        self._has_restricted = restricted
        self.update()

    def set_role(self, str read_only, str stale) -> None:
        """The role of this server refuses all changes with `read_only`, and most commands with `stale`
        (a replica that has lost its link). None: they are allowed."""
        self.read_only = read_only
        self.stale = stale
        self.update()

    def set_slots(self, SlotCheck slots not None) -> None:
        """This server is a node of a cluster: requests for the slots of other nodes are refused."""
        self.slots = slots
        self.update()

    cdef int forget_parked(self, Client client) except -1:
        """A client has disconnected whose request may wait for the hand-over of a slot."""
        if self.slots is not None and self.slots.parking is not None:
            self.slots.parking.forget(client)
        return 0

    cdef int parked_count(self) except -1:
        """The number of requests that wait for the hand-over of a slot."""
        if self.slots is None or self.slots.parking is None:
            return 0
        return len(self.slots.parking.clients)

    def set_lack_of_replicas(self, str error) -> None:
        """There are too few replicas for changes by clients; None: there are enough."""
        self.lacks_replicas = error

    @property
    def out_of_memory(self) -> str | None:
        """The error of commands that need memory while memory is full; else None."""
        return self._out_of_memory

    def set_memory(self, *, bint full, bint lacking) -> None:
        """`full`: `maxmemory` is reached; `lacking`: an allocation has failed."""
        self._out_of_memory = NO_MORE_MEMORY if lacking else OUT_OF_MEMORY if full else None
        self.context.memory_error = self._out_of_memory
        self.update()

    cdef int update(self) noexcept:
        """Update `has_checks`."""
        self.has_checks = (self._password_required or self._has_restricted or self.loading
                           or self._out_of_memory is not None or self.near_journal_limit or self.queue_full
                           or self.stale is not None or self.slots is not None)
        return 0

    cdef int set_loading(self, bint loading) noexcept:
        self.loading = loading
        return self.update()

    cdef int set_queue_full(self, bint full) noexcept:
        self.queue_full = full
        return self.update()

    cdef int check_batch(self, Client client) noexcept:
        """Check each request of a batch whose effects could be more than the journal has space
        for."""
        cdef bint near = client.postponed is not None
        if not self.effects.enabled:
            near = False
        elif not near:
            near = (self.effects.out.size + BATCH_EFFECTS_BYTES
                    + BATCH_GROWTH * client.parser.unread_bytes() > self.effects.room)
        if near != self.near_journal_limit:
            self.near_journal_limit = near
            self.update()
        return 0

    cdef int check_access(self, Client client, Row row, Args args) except -1:
        """Refuse a request that needs a login, that the user may not run, that is for a slot of another
        node, that needs data which is not loaded yet, or that needs memory while memory is full."""
        if self._password_required and not client.authenticated and not row.open_to_all:
            row.rejected += 1
            raise CommandError(NOAUTH)
        if client.permission is not None:
            self.check_permission(client, row, args, False)
        if self.slots is not None:
            self.slots.check(client, row, args)
        if self.loading and not row.while_loading:
            row.rejected += 1
            raise CommandError(LOADING)
        if self.stale is not None and not row.while_stale:
            row.rejected += 1
            raise CommandError(self.stale)
        if self._out_of_memory is not None and row.needs_memory:
            row.rejected += 1
            raise CommandError(self._out_of_memory)
        return 0

    cdef int check_permission(self, Client client, Row row, Args args, bint at_exec) except -1:
        """Refuse a request that the client's user may not run."""
        if (<Permission>client.permission).passes(row.demand, args):
            return 0
        error = self.server.access.refusal(
            client, row.command, args.all(), at_exec or client.queue is not None, at_exec)
        if error is None:
            return 0
        row.rejected += 1
        raise error

    cdef int allow_removals(self, str problem) except -1:
        """While changes are refused with `problem`, allow those that only remove, if it is a full disk
        and the journal still works."""
        self.may_remove = problem is not None and (
            self.read_only is None and self.lacks_replicas is None
            and self.server.persistence.may_remove())
        return 0

    cdef int check_write(self, Row row, Args args) except -1:
        """Refuse a write while changes are refused, unless it only removes and the disk is full."""
        if not (self.may_remove and row.only_removes(args)):
            row.rejected += 1
            raise CommandError(self.context.write_error)
        return 0

    cdef bint require_room(self, Row row, Args args) except -1:
        """Refuse a write whose effects the journal may have no space for. True: it only removes, and
        needs the last space."""
        try:
            self.effects.require(effects_most(args))
        except CommandError:
            if row.only_removes(args):
                return True
            row.rejected += 1
            raise
        return False

    cdef int begin_removal(self, int64_t most) except -1:
        """Until `end_removal`, effects may use the last space of the journal and the disk. CommandError
        if even that is too little."""
        self.effects.make_room = self.server.persistence.commits.make_last_room
        try:
            self.effects.forget_room()
            self.effects.require(most)
        except CommandError:
            self.end_removal()
            raise
        return 0

    cdef int end_removal(self) except -1:
        self.effects.make_room = self.server.persistence.commits.make_room
        self.effects.forget_room()
        self.server.persistence.full_disk.note_removal()
        return 0

    cdef str refusal_of_role(self, Client client, str problem):
        """In a cluster, a write for a slot of the own shard that this server refuses with `problem`, because
        it is a replica, goes to the primary: the error that says so. Otherwise None."""
        if self.slots is None or self.read_only is None or problem != self.read_only:
            return None
        return self.slots.refusal_of_write(client)

    cdef bint check_transaction(self, Client client, list requests) except -1:
        """Refuse a transaction as a whole, before its first request runs: its effects are part of
        one frame. True: call `end_removal` after it."""
        if self.context.write_error is not None and any(
                (<Row>row).writes and not (self.may_remove and (<Row>row).only_removes(args))
                for row, args, _ in requests):
            moved = self.refusal_of_role(client, self.context.write_error)
            raise CommandError(moved or (
                f"EXECABORT Transaction discarded because of: {self.context.write_error}"))
        if self._out_of_memory is not None and any((<Row>row).needs_memory for row, _, _ in requests):
            raise CommandError(f"EXECABORT Transaction discarded because of: {self._out_of_memory}")
        return self.require_room_for_all(requests)

    cdef bint require_room_for_all(self, list requests) except -1:
        """True if the transaction only removes, and needs the last space: `begin_removal` was
        called."""
        cdef int64_t most = 0
        cdef bint removes = True
        for row, args, _ in requests:
            if (<Row>row).writes:
                most += effects_most(<Args>args)
                removes = removes and (<Row>row).only_removes(<Args>args)
        if most == 0:
            return False
        try:
            if self.context.write_error is None:
                try:
                    self.effects.require(most)
                    return False
                except CommandError:
                    if not removes:
                        raise
            self.begin_removal(most)
        except CommandError as error:
            raise CommandError(
                f"EXECABORT Transaction discarded because of: {error.message}") from None
        return True


cdef int64_t effects_most(Args args) noexcept:
    """The maximum size of a request's effects, where its words show it. Commands that may record
    much more (reads of groups, XAUTOCLAIM, dropped references) check this themselves."""
    cdef int64_t most = REQUEST_EFFECTS_BYTES + WORD_BYTES * args.count
    cdef Py_ssize_t i
    for i in range(args.count):
        most += args.items[i].size
        if 1 <= i <= 3:  # key, group and consumer, or a value
            most += KEY_REPEATS * min(args.items[i].size, <Py_ssize_t>NAME_BYTES)
    return most
