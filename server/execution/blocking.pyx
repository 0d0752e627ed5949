# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Blocked clients: the queues in which they wait, and how a read starts to wait, is retried, and
ends.

A read that finds nothing returns a Wait. Its client is then in a queue for each of its keys: plain
readers share one queue, and the readers of each group have a queue of their own (shared by TREAD
and XREADGROUP). A change of a key only marks the key ready. After the running command, never inside
it, `serve` retries the waiting reads in order of arrival, as if their clients had sent them now:
every plain reader, and in each group one after the other until no kind of read finds anything. A
served client leaves its queues, and joins the end if it blocks again; one that finds nothing keeps
its place. Replies are stored for the end of the tick. A wait also ends on timeout, CLIENT UNBLOCK
and disconnection.
"""

from collections import OrderedDict
from functools import partial
import logging

from millstream.commands.engine.policies cimport settle_marked
from millstream.commands.engine.search_work cimport has_work
from millstream.commands.engine.waiting cimport SearchingRead
from millstream.commands.runtime.context cimport Context, Session
from millstream.commands.runtime.replies cimport Encodable, Raw, Wait, put_reply
from millstream.encoding cimport Output
from millstream.server.execution.lookup cimport Row, Statistics
from millstream.server.protocol.outbox cimport Client, Outbox
from millstream.server.protocol.resp cimport put_error
from millstream.storage.keyspace.keyspace_core cimport NO_DATABASE, DatabaseCore as Database
from millstream.storage.streams.stream cimport Stream

from millstream.errors import CommandError

LOGGER = logging.getLogger("millstream")

INTERNAL = "ERR internal error, see the server's log"
UNBLOCKED = "UNBLOCKED client unblocked via CLIENT UNBLOCK"


cdef class Waiter:
    """A blocked client and its read. `row` is the command; the call counts in its statistics when
    the wait ends. `kind` is that of the read."""


cdef class GroupQueue:
    """The readers that wait on one group, in order of arrival, and the number of each kind of
    read."""

    def __cinit__(self):
        self.waiters = OrderedDict()
        self.kinds = {}

    cdef int add(self, Waiter waiter) except -1:
        self.waiters[waiter] = None
        self.kinds[waiter.kind] = self.kinds.get(waiter.kind, 0) + 1
        return 0

    cdef int remove(self, Waiter waiter) except -1:
        if waiter not in self.waiters:
            return 0
        del self.waiters[waiter]
        left = self.kinds[waiter.kind] - 1
        if left:
            self.kinds[waiter.kind] = left
        else:
            del self.kinds[waiter.kind]
        return 0

    cdef int serve(self, Serving serving) except -1:
        """Retry the reads in order. If one read of a kind finds nothing, the others of that kind
        find nothing either. A served reader has left the queue."""
        cdef set without_result = set()
        cdef Waiter waiter
        while not self.kinds.keys() <= without_result:
            for waiter in self.waiters:
                if waiter.kind not in without_result:
                    break
            if not serving.attempt(waiter):
                without_result.add(waiter.kind)
        return 0


cdef class KeyQueue:
    """The readers that wait on one key: plain readers in order of arrival, and readers of groups by
    group."""

    cdef bint has(self, Waiter waiter) except -1:
        cdef GroupQueue queue
        if waiter.read.group is None:
            return self.readers is not None and waiter in self.readers
        if self.groups is None:
            return False
        queue = self.groups.get(waiter.read.group)
        return queue is not None and waiter in queue.waiters

    cdef int add(self, Waiter waiter) except -1:
        cdef GroupQueue queue
        if waiter.read.group is None:
            if self.readers is None:
                self.readers = {}
            self.readers[waiter] = None
            return 0
        if self.groups is None:
            self.groups = {}
        queue = self.groups.get(waiter.read.group)
        if queue is None:
            queue = self.groups[waiter.read.group] = GroupQueue.__new__(GroupQueue)
        queue.add(waiter)
        return 0

    cdef int remove(self, Waiter waiter) except -1:
        cdef GroupQueue queue
        if waiter.read.group is None:
            del self.readers[waiter]
            return 0
        queue = self.groups.get(waiter.read.group)
        if queue is not None:
            queue.remove(waiter)
            if not queue.waiters:
                del self.groups[waiter.read.group]
        return 0

    cdef bint is_empty(self) noexcept:
        return not (self.readers or self.groups)

    cdef bint must_stay(self) except -1:
        """True if a waiting read ends with an error when the key is removed."""
        cdef GroupQueue queue
        if self.groups is not None:
            for queue in self.groups.values():
                for kind in queue.kinds:
                    kind = kind[0] if isinstance(kind, tuple) else kind
                    if getattr(kind, "ends_without_key", False):
                        return True
        return False

    def join(self, bytes name not None, stream, group) -> None:
        """A group was created: count every reader that waits on its name as a waiting client of the
        group."""
        cdef GroupQueue queue = None if self.groups is None else self.groups.get(name)
        cdef Waiter waiter
        if queue is not None:
            for waiter in queue.waiters:
                waiter.read.join(stream, group)

    def consumers_of(self, bytes name not None) -> set:
        """The names of the consumers that wait on the group with this name."""
        cdef GroupQueue queue = None if self.groups is None else self.groups.get(name)
        cdef Waiter waiter
        names = set()
        if queue is not None:
            for waiter in queue.waiters:
                names.add(getattr(waiter.read, "consumer_name", None))
        return names


cdef class WaitQueues:
    """All blocked clients of a server; `timed_count` of them have a timeout. `on_end`, unless it is
    None, is called with each Waiter whose wait ends."""

    def __init__(self, list databases not None):
        self.databases = databases

    cdef Waiter add(self, Client client, Row row, Wait wait):
        """Add a blocked client to the queue of each of its keys."""
        cdef Waiter waiter = Waiter.__new__(Waiter)
        cdef KeyQueue queue
        cdef dict waiting
        waiter.client, waiter.row, waiter.read = client, row, wait.read
        waiter.kind = waiter.read.kind
        waiter.is_timed = wait.deadline_ms != 0
        waiter.places = []
        for db_index, key in waiter.read.keys:
            waiting = (<Database>self.databases[db_index]).waiting
            queue = waiting.get(key)
            if queue is None:
                queue = waiting[key] = KeyQueue.__new__(KeyQueue)
            elif queue.has(waiter):
                continue  # the request names the key twice
            queue.add(waiter)
            waiter.places.append((waiting, key, queue))
        self.count += 1
        self.timed_count += waiter.is_timed
        return waiter

    cdef int remove(self, Waiter waiter) except -1:
        """Remove a waiter from its queues; no effect if it was already removed."""
        cdef KeyQueue queue
        if waiter.over:
            return 0
        waiter.over = True
        self.count -= 1
        self.timed_count -= waiter.is_timed
        for waiting, key, queue in waiter.places:
            queue.remove(waiter)
            if queue.is_empty():
                del (<dict>waiting)[key]
        if self.on_end is not None:
            self.on_end(waiter)
        return 0

    cdef int serve(self, Serving serving, int db_index, bytes key) except -1:
        """Retry the reads that wait on a ready key."""
        cdef Database database = self.databases[db_index]
        cdef KeyQueue queue = database.waiting.get(key)
        cdef Waiter waiter
        cdef bint has_stream
        if queue is None:
            return 0
        if queue.readers:
            has_stream = isinstance(database.value_of(key), Stream)
            for waiter in list(queue.readers):
                if has_stream or not waiter.read.needs_stream:
                    serving.attempt(waiter)
        if queue.groups:
            for name in list(queue.groups):
                if name in queue.groups:
                    (<GroupQueue>queue.groups[name]).serve(serving)
        return 0

    def keys(self):
        """Every key that a client waits on, with its database."""
        for database in self.databases:
            for key in database.waiting:
                yield database.index, key

    def keys_that_must_stay(self):
        """The keys with a waiting read that ends with an error when the key is removed
        (XREADGROUP)."""
        cdef KeyQueue queue
        for database in self.databases:
            for key, queue in database.waiting.items():
                if queue.must_stay():
                    yield database.index, key


cdef class Serving:
    """`resume(client)` is called when a client may run again; `timer_stale` means that a moment was
    scheduled or cancelled since the executor set its timer."""

    def __init__(self, Context context not None, Outbox outbox not None,
                 Statistics statistics not None, timers, resume):
        self.context = context
        self.outbox = outbox
        self.statistics = statistics
        self.timers = timers
        self.resume = resume
        self.waiting = WaitQueues(context.keyspace.databases)
        self.searching = []
        self.side = Output()

    cdef int begin(self, Client client, Row row, Wait wait) except -1:
        """Block a client until its read finds something or times out."""
        cdef Waiter waiter = self.waiting.add(client, row, wait)
        client.waiter = waiter
        self.statistics.uncount_call(row, client)
        client.blocked = True
        if wait.deadline_ms:
            waiter.alarm = self.timers.at(wait.deadline_ms, partial(self.time_out, waiter))
            self.timer_stale = True
        return self.continue_later(waiter)

    cdef int continue_later(self, Waiter waiter) except -1:
        """Note a waiting read that has not searched all that is there."""
        if isinstance(waiter.read, SearchingRead) and (<SearchingRead>waiter.read).is_searching():
            self.searching.append(waiter)
        return 0

    cdef int continue_searches(self) except -1:
        """Continue the searches of waiting reads in order, as far as this turn allows."""
        cdef list waiters = self.searching
        cdef Waiter waiter
        cdef Py_ssize_t done = 0
        self.searching = []
        while done < len(waiters) and has_work():
            waiter = waiters[done]
            done += 1
            if not waiter.over:
                (<SearchingRead>waiter.read).set_searching(False)
                self.attempt(waiter)
        self.searching = waiters[done:] + self.searching
        return 0

    cdef int serve_ready(self) except -1:
        """Retry the waiting reads of every key marked ready, until no key is marked."""
        cdef Context context = self.context
        cdef list ready
        while context.keyspace.ready:
            ready = context.keyspace.ready
            context.keyspace.ready = []
            if len(ready) > 1 or <int>(<tuple>ready[0])[0] != NO_DATABASE:
                self.serve_keys(ready)
            if context.keyspace.settling:
                self.settle()
        return 0

    cdef int serve_keys(self, list ready) except -1:
        """Retry the waiting reads of these keys, (database, key) each."""
        cdef Context context = self.context
        context.shared = {}
        context.remade = set()
        try:
            for db_index, key in ready if len(ready) == 1 else dict.fromkeys(ready):
                if db_index != NO_DATABASE:
                    self.waiting.serve(self, db_index, key)
        finally:
            context.shared = context.remade = None
        return 0

    cdef int settle(self) except -1:
        """Enforce the policies that depend on groups, after commands that may have settled entries."""
        try:
            settle_marked(self.context)
        except Exception:
            LOGGER.exception("the policy of a stream could not be kept")
        return 0

    cdef bint must_wait(self, Waiter waiter) except -1:
        """True if a read with a filter continues in a later turn."""
        cdef SearchingRead read = <SearchingRead>waiter.read
        if read.filter is None:
            return False
        if not read.is_searching() and not has_work():
            read.set_searching(True)
            self.searching.append(waiter)
        return read.is_searching()

    cdef bint is_hidden(self, Waiter waiter) except -1:
        """True if a read waits for a slot that is not served here at present."""
        hides = self.context.keyspace.slot_states.hides
        for _, key in waiter.read.keys:
            if hides(key):
                return True
        return False

    cdef bint attempt(self, Waiter waiter) except -1:
        """Retry a waiting read; True when its client was served. A read that searches continues in
        a later turn, and sees then what has come meanwhile."""
        if self.context.keyspace.hidden_slots and self.is_hidden(waiter):
            return False
        if isinstance(waiter.read, SearchingRead) and self.must_wait(waiter):
            return False
        cdef Session running = self.context.session
        cdef Database running_db = self.context.db
        self.enter(waiter.client)
        try:
            reply = waiter.read.attempt(self.context)
            if reply is None:
                self.continue_later(waiter)
                return False
            if waiter.read.group is not None:
                waiter.client.wrote_seq = self.outbox.commits.last_seq + 1
            self.unblock(waiter, reply)
        except CommandError as error:
            self.unblock(waiter, error)
        except Exception:
            # A bug ends this one wait, not the command that woke it.
            LOGGER.exception("a waiting read failed")
            self.side.clear()
            self.unblock(waiter, CommandError(INTERNAL))
        finally:
            self.context.session = running
            self.context.db = running_db
        return True

    cdef int enter(self, Client client) except -1:
        """Set the context for a command of this client."""
        self.context.session = client
        self.context.db = <Database>self.context.keyspace.databases[client.db_index]
        return 0

    def time_out(self, Waiter waiter not None) -> None:
        """End a wait at its deadline."""
        cdef Session running = self.context.session
        cdef Database running_db = self.context.db
        if waiter.over:
            return
        self.enter(waiter.client)
        try:
            self.unblock(waiter, waiter.read.timeout_reply(self.context))
        except CommandError as error:  # a key has another type now
            self.unblock(waiter, error)
        finally:
            self.context.session = running
            self.context.db = running_db

    cdef bint unblock_client(self, Client client, str error) except -1:
        """End a client's wait as its timeout would, or with an error; False when it does not
        wait."""
        if client.waiter is None:
            return False
        if error is not None:
            self.unblock(client.waiter, CommandError(error))
        else:
            self.time_out(client.waiter)
        return True

    cdef int unblock(self, Waiter waiter, reply) except -1:
        """End a wait with this reply (or CommandError)."""
        cdef Client client = waiter.client
        self.end(waiter)
        self.statistics.count_ended_call(waiter.row, client, isinstance(reply, CommandError))
        if type(reply) is Raw and client.reply_mode == "on":
            self.outbox.put(client, (<Raw>reply).data, waiter.row.shows_data)
        else:
            self.put_in_full(client, reply, waiter.row.shows_data)
        if client.has_more():
            self.resume(client)
        return 0

    cdef int put_in_full(self, Client client, reply, bint shows_data) except -1:
        """Store a reply that is not encoded yet, or that must not be sent."""
        if isinstance(reply, CommandError):
            self.statistics.count_error(reply.message)
            put_error(self.side, reply.message)
        else:
            put_reply(self.side, reply, client.resp)
            if isinstance(reply, Encodable):
                client.producer = (<Encodable>reply).rest()
        if client.reply_mode == "on":
            self.outbox.put(client, self.side.take(), shows_data)
        else:
            self.side.clear()
            self.outbox.put(client, None, shows_data)
            client.producer = None
            if client.reply_mode == "skip-next":
                client.reply_mode = "on"
        return 0

    cdef int end(self, Waiter waiter) except -1:
        """Remove a wait from all queues and cancel its alarm."""
        cdef Client client = waiter.client
        self.waiting.remove(waiter)
        if waiter.alarm is not None:
            self.timers.cancel(waiter.alarm)
        client.blocked = False
        client.waiter = None
        waiter.read.ended(self.context)
        return 0

    cdef bint leave(self, Client client) except -1:
        """End the wait of a disconnected client; False when there was none."""
        cdef Session running = self.context.session
        cdef Database running_db = self.context.db
        if client.waiter is None:
            return False
        self.enter(client)
        try:
            self.end(client.waiter)
        finally:
            self.context.session = running
            self.context.db = running_db
        return True
