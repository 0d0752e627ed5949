# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Clients that wait: how a read starts to wait, is retried, and ends.

`waiting` knows who stands in which queue. Here a waiting read is tried when its key was marked
ready, in its own client's name and database, and its reply is noted for the end of the tick; the
same for a timeout, CLIENT UNBLOCK and a client that goes.
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
from millstream.server.execution.wait_queues import Waiting

LOGGER = logging.getLogger("millstream")

INTERNAL = "ERR internal error, see the server's log"
UNBLOCKED = "UNBLOCKED client unblocked via CLIENT UNBLOCK"


cdef class Serving:
    """`resume(client)` is called when a client may run again; `timer_stale` says that a moment was
    noted or called off since the executor set its timer."""

    def __init__(self, Context context not None, Outbox outbox not None,
                 Statistics statistics not None, ticker, resume):
        self.context = context
        self.outbox = outbox
        self.statistics = statistics
        self.ticker = ticker
        self.resume = resume
        self.waiting = Waiting(context.keyspace.databases)
        self.side = Output()

    cdef int begin(self, Client client, Row row, Wait wait) except -1:
        """Park a client until its read finds something or its time is over."""
        client.waiter = self.waiting.add(client, wait)
        client.waiter.row = row
        self.statistics.put_off_call(row, client)
        client.blocked = True
        if wait.deadline_ms:
            client.waiter.alarm = self.ticker.at(
                wait.deadline_ms, partial(self.time_out, client.waiter))
            self.timer_stale = True
        return 0

    cdef int serve_ready(self) except -1:
        """Try the waiting reads of every key marked ready, until nothing is marked any more."""
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
        """Try a waiting read again; True when its client was served."""
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
            # A fault of ours ends this one wait, not the command that woke it.
            LOGGER.exception("a waiting read failed")
            self.side.clear()
            self.unblock(waiter, CommandError(INTERNAL))
        finally:
            self.context.session = running
            self.context.db = running_db
        return True

    cdef int enter(self, Client client) except -1:
        """What follows is done in this client's name."""
        self.context.session = client
        self.context.db = <Database>self.context.keyspace.databases[client.db_index]
        return 0

    def time_out(self, waiter) -> None:
        """A wait's time is over."""
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
        """End a client's wait as if its time were over, or with an error; False when it does not
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
        """Note a reply that is not bytes yet, or is not to be sent."""
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
        """A wait is over: out of every queue, its alarm off."""
        cdef Client client = waiter.client
        self.waiting.remove(waiter)
        if waiter.alarm is not None:
            self.ticker.cancel(waiter.alarm)
        client.blocked = False
        client.waiter = None
        waiter.read.ended(self.context)
        return 0

    cdef bint leave(self, Client client) except -1:
        """A client is gone: end its wait; False when there was none."""
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
