# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Blocked clients: how a read starts to wait, is retried, and ends.

`wait_queues` has the queues. This module retries a waiting read when its key was marked ready, as
if its client had sent it now, and stores the reply for the end of the tick. It also ends waits on
timeout, CLIENT UNBLOCK and disconnection.
"""

from functools import partial
import logging

from millstream.commands.runtime.context cimport Context, Session
from millstream.commands.runtime.replies cimport Encodable, Raw, Wait, put_reply
from millstream.encoding cimport Output
from millstream.server.execution.lookup cimport Row, Statistics
from millstream.server.protocol.outbox cimport Client, Outbox
from millstream.server.protocol.resp cimport put_error
from millstream.storage.streams.keyspace_core cimport DatabaseCore as Database

from millstream.errors import CommandError
from millstream.server.execution.wait_queues import WaitQueues

LOGGER = logging.getLogger("millstream")

INTERNAL = "ERR internal error, see the server's log"
UNBLOCKED = "UNBLOCKED client unblocked via CLIENT UNBLOCK"


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
        self.side = Output()

    cdef int begin(self, Client client, Row row, Wait wait) except -1:
        """Block a client until its read finds something or times out."""
        client.waiter = self.waiting.add(client, wait)
        client.waiter.row = row
        self.statistics.uncount_call(row, client)
        client.blocked = True
        if wait.deadline_ms:
            client.waiter.alarm = self.timers.at(
                wait.deadline_ms, partial(self.time_out, client.waiter))
            self.timer_stale = True
        return 0

    cdef int serve_ready(self) except -1:
        """Retry the waiting reads of every key marked ready, until no key is marked."""
        cdef Context context = self.context
        while context.keyspace.ready:
            marked = dict.fromkeys(context.keyspace.ready)
            context.keyspace.ready = []
            context.shared = {}
            context.remade = set()
            try:
                for db_index, key in marked:
                    self.waiting.serve(db_index, key, self.attempt)
            finally:
                context.shared = context.remade = None
        return 0

    def attempt(self, waiter) -> bool:
        """Retry a waiting read; True when its client was served."""
        cdef Session running = self.context.session
        cdef Database running_db = self.context.db
        self.enter(waiter.client)
        try:
            reply = waiter.read.attempt(self.context)
            if reply is None:
                return False
            if not waiter.is_plain:
                waiter.client.wrote_seq = self.outbox.persistence.last_seq + 1
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

    def time_out(self, waiter) -> None:
        """End a wait at its deadline."""
        cdef Session running = self.context.session
        cdef Database running_db = self.context.db
        if waiter.over:
            return
        self.enter(waiter.client)
        try:
            self.unblock(waiter, waiter.read.timeout_reply(self.context))
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

    cdef int unblock(self, object waiter, reply) except -1:
        """End a wait with this reply (or CommandError)."""
        cdef Client client = waiter.client
        self.end(waiter)
        self.statistics.count_ended_call(waiter.row, client, isinstance(reply, CommandError))
        if type(reply) is Raw and client.reply_mode == "on":
            self.outbox.put(client, (<Raw>reply).data, (<Row>waiter.row).shows_data)
        else:
            self.put_in_full(client, reply, (<Row>waiter.row).shows_data)
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

    cdef int end(self, object waiter) except -1:
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
