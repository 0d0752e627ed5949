# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""One request: look it up, check it, call its handler, encode its reply.

The reply goes to `out`, after the replies before it in the batch. A request that may not run now is
postponed or queued by MULTI; one that fails is answered with an error, and the next one runs.
"""

from libc.stdint cimport int64_t

import logging

from millstream.commands.runtime.arguments cimport Args, OwnedArgs
from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.replies cimport (
    LONG_BYTES, Encodable, Run, SlicedBytes, Wait, put_later, put_reply,
)
from millstream.encoding cimport Output
from millstream.ids cimport Id
from millstream.server.execution.admission cimport Admission, effects_most
from millstream.server.execution.blocking cimport Serving
from millstream.server.execution.lookup cimport Row, Table, unknown_command
from millstream.server.protocol.outbox cimport Client
from millstream.server.protocol.resp cimport Limits, put_error
from millstream.storage.keyspace.keyspace_core cimport DatabaseCore as Database

from millstream.commands.admin.client_line import user_name
from millstream.commands.runtime.replies import NULL_ARRAY, Again, Simple, SlicedChain
from millstream.errors import (
    DEBUG_NOT_ALLOWED, SYNTAX, CommandError, refused_in_cluster, refused_to_subscriber, wrong_arity,
)
from millstream.server.execution.audit import Audit
from millstream.server.execution.blocking import INTERNAL
from millstream.server.execution.monitors import Monitors
from millstream.server.monitor.line_limit import LineLimit
from millstream.memory_reserve import RESERVE

LOGGER = logging.getLogger("millstream")
OUT_OF_MEMORY_LINES = LineLimit()

cdef enum:
    # A request with more words may take long, whatever its command.
    HOT_WORDS_MAX = 64

QUEUED_WORD_BYTES = 64  # cost of a queued word in addition to its own bytes
QUEUED = Simple(b"QUEUED")


cdef OwnedArgs kept(Args args):
    """A copy of a request's words, for a later turn. The words of a request that was continued from
    an earlier turn are returned unchanged, because they contain the state of its work."""
    if not isinstance(args, OwnedArgs):
        return OwnedArgs(args.all())
    args.pos = 1
    return args


cdef class RequestRunner:
    """Runs the requests of one batch after the other.

    `resume(client)` is called for a client that continues in a later turn, `push(client, bytes)`
    sends it a separate message. `current` is the client whose batch is running, `pause` decides
    which requests are postponed (server/execution/client_pause), `backpressure` has the clients
    that wait for a slow disk, and `tick_bytes` is the size of a tick's effects at which its frame
    ends.
    """

    def __init__(self, Context context not None, Admission admission not None,
                 Serving serving not None, resume, push):
        self.server = context.server
        self.context = context
        self.admission = admission
        self.serving = serving
        self.statistics = serving.statistics
        self.outbox = serving.outbox
        self.resume = resume
        self.limits = Limits()
        self.out = Output()
        self.table = Table()
        self.pushes = []
        self.audit = Audit()
        self.shown = Monitors(context.server, push)
        self.monitors = self.shown.clients

    cdef int begin_batch(self, Client client) except -1:
        self.current = client
        self.row = None
        self.statistics.timed = None
        self.shown_data = False
        return 0

    cdef int begin_request(self) noexcept:
        self.reply_start = self.out.size
        self.running = False
        return 0

    cdef int run_postponed(self, Client client) except -1:
        """Run the client's postponed request."""
        args = client.postponed
        client.postponed = None
        self.begin_request()
        return self.execute(client, args)

    cdef int execute(self, Client client, Args args) except -1:
        """Run a request, or refuse, postpone or queue it."""
        cdef Context context = self.context
        cdef Row row = self.table.find(args, self.statistics.timed)
        cdef bint removes = False  # on a full disk
        self.row = row
        if row is None:
            return self.refuse_unknown(client, args)
        if args.count != row.arity and (row.arity > 0 or args.count < -row.arity):
            row.rejected += 1
            if row.command.known_after is not None:
                context.session = client
                row.command.known_after(context, args)
            raise self.arity_error(client, row)
        if row.guarded:
            self.begin_guarded(client, row, args)
        if self.admission.has_checks:
            self.admission.check_access(client, row, args)
            if self.admission.queue_full and row.waits_when_full:
                return self.postpone(client, args, self.backpressure.clients)
            if self.admission.slots is not None and self.admission.slots.must_park:
                return self.postpone(client, args, self.admission.slots.parking.clients)
        if row.writes and context.write_error is not None:
            self.admission.check_write(row, args)
            removes = True
        elif self.admission.near_journal_limit and row.writes:
            removes = self.admission.require_room(row, args)
        client.last_command = row.name
        if self.pause is not None and client.feed is None and self.pause.postpones(
                row, args, client.queue):
            return self.postpone(client, args, self.pause.clients)
        if client.special and self.queue_for_exec(client, row, args):
            return 0
        if removes:
            return self.run_removal(client, row, args)
        return self.run_row(client, row, args)

    cdef int begin_guarded(self, Client client, Row row, Args args) except -1:
        """Begin the record of an administrator's command, and refuse a command for tests."""
        if row.audited:
            self.begin_audit(client, args)
        if row.protected and not self.server.may_debug(client):
            row.rejected += 1
            raise CommandError(DEBUG_NOT_ALLOWED)
        return 0

    cdef int begin_audit(self, Client client, Args args) except -1:
        """Keep the words and the user, which the command itself may change."""
        self.audited_words = args.all()
        self.audited_user = user_name(client) if client.authenticated else None
        return 0

    cdef int end_audit(self, Client client, str error) except -1:
        """Log the administrator's command that has ended, with its error, if any. A command that
        continues in a later turn has not ended."""
        words, self.audited_words = self.audited_words, None
        if words is not None and client.postponed is None:
            self.audit.command(client, self.audited_user, self.row.name, words, error)
        return 0

    cdef int run_removal(self, Client client, Row row, Args args) except -1:
        """Run a command that only removes, with the last space for the journal."""
        try:
            self.admission.begin_removal(effects_most(args))
        except CommandError:
            row.rejected += 1
            raise
        try:
            return self.run_row(client, row, args)
        finally:
            self.admission.end_removal()

    cdef arity_error(self, Client client, Row row):
        self.audited_words = None
        error = wrong_arity(row.name)
        if row.name != "exec":
            return error
        client.leave_transaction()
        reason = error.message.removeprefix("ERR ")
        return CommandError(f"EXECABORT Transaction discarded because of: {reason}")

    cdef int postpone(self, Client client, Args args, clients) except -1:
        """Keep a request for a later turn; until then its client is in `clients`."""
        client.postponed = kept(args)
        client.blocked = True
        clients[client.id] = client
        return 0

    cdef int run_row(self, Client client, Row row, Args args) except -1:
        """Run a command after all checks."""
        cdef Context context = self.context
        if row is not self.statistics.timed:
            self.statistics.begin(row)
        row.calls += 1
        self.running = True
        self.shown_data = self.shown_data or row.shows_data
        self.statistics.commands += 1
        client.total_commands += 1
        context.session = client
        context.db = <Database>self.context.keyspace.databases[client.db_index]
        if self.monitors and row.shown_to_monitors:
            self.call_shown(client, row, args)
        else:
            self.call(client, row, args)
        if client.special or self.pushes:
            self.finish_reply(client)
        if not row.hot or self.statistics.exact or args.count > HOT_WORDS_MAX or context.timed_alone:
            context.timed_alone = False
            self.statistics.finish(row, client, args, context.now_ms)
            if row.audited:
                self.end_audit(client, None)
        return 0

    cdef int call(self, Client client, Row row, Args args) except -1:
        """Call a command's handler and encode what it returns."""
        reply = row.handler(self.context, args)
        if type(reply) is Id or type(reply) is int:
            return put_reply(self.out, reply, client.resp)
        if reply is None or type(reply) is Simple or reply is NULL_ARRAY or (
                type(reply) is bytes and len(<bytes>reply) <= LONG_BYTES):
            put_reply(self.out, reply, client.resp)
        elif isinstance(reply, Encodable):
            (<Encodable>reply).encode(self.out, client.resp)
            client.producer = (<Encodable>reply).rest()
        else:
            self.encode_other(client, reply)
        client.special = client.is_special()
        return 0

    cdef int call_shown(self, Client client, Row row, Args args) except -1:
        """`call` while a client runs MONITOR."""
        try:
            self.call(client, row, args)
        finally:
            # After the command: EXEC is shown after the commands that it ran, and SELECT in its new
            # database. A command that continues from an earlier turn was shown then.
            if getattr(args, "job", None) is None:
                self.shown.show(client, args)
        return 0

    # ------------------------------------------------------------ transactions

    cdef bint queue_for_exec(self, Client client, Row row, Args args) except -1:
        """Queue the request if the client is inside MULTI; return whether it was queued. Most
        commands are refused for a RESP2 client with subscriptions."""
        if client.resp == 2 and not row.when_subscribed and client.is_subscribed():
            row.rejected += 1
            raise CommandError(refused_to_subscriber(row.name))
        if client.queue is None or not row.queued:
            return False
        if row.refused_in_multi:
            row.rejected += 1
            raise CommandError("ERR Command not allowed inside a transaction")
        words = args.all()
        client.queued_bytes += sum(map(len, words)) + QUEUED_WORD_BYTES * len(words)
        if <int64_t>client.queued_bytes > self.limits.query_bytes:
            LOGGER.warning("closing client %s: a transaction of more than "
                           "client-query-buffer-limit", client.address)
            client.end(False)
            return True
        client.queue.append((row, OwnedArgs(words), args.pos))
        put_reply(self.out, QUEUED, client.resp)
        self.finish_reply(client)
        return True

    cdef int run_queue(self, Client client, list requests) except -1:
        """EXEC: run the queued requests in order; none of them may wait."""
        cdef Py_ssize_t start = self.reply_start
        cdef Row row
        cdef Args args
        cdef list later = None
        cdef Py_ssize_t mark
        cdef bint removes
        removes = self.admission.check_transaction(client, requests)
        self.out.put_head(c'*', len(requests))
        self.context.may_block = False
        try:
            for row, args, pos in requests:
                args.pos = pos
                mark = self.out.size
                self.run_queued(client, row, args)
                if self.context.keyspace.settling:
                    self.serving.settle()
                if client.producer is not None or later is not None:
                    later = put_later(later, self.out, mark, client.producer)
                    client.producer = None
            if later is not None:
                client.producer = SlicedChain(later)
        finally:
            if removes:
                self.admission.end_removal()
            self.context.may_block = True
            self.reply_start = start
            self.running = True
        return 0

    cdef int run_queued(self, Client client, Row row, Args args) except -1:
        cdef bint removes = False
        self.row = row
        self.running = False
        self.reply_start = self.out.size
        try:
            if row.audited:
                self.begin_audit(client, args)
            if row.writes and self.context.effects.out.size > self.tick_bytes:
                # Earlier requests have recorded more than their words.
                removes = self.admission.require_room(row, args)
            if client.permission is not None:
                self.admission.check_permission(client, row, args, True)
            if removes:
                self.run_removal(client, row, args)
            else:
                self.run_row(client, row, args)
        except Exception as error:
            self.reply_exception(error)
        return 0

    # ------------------------------------------------------------ replies

    cdef int finish_reply(self, Client client) except -1:
        """Finish the reply to a client in a special state: drop it if the client has turned replies
        off, and send messages that arrived meanwhile after it."""
        if not self.context.may_block:
            return 0  # within EXEC, whose reply is finished as a whole
        if client.postponed is not None:
            return 0  # there is no reply yet: the request continues in a later turn
        if client.reply_mode != "on":
            self.out.size = self.reply_start
            client.producer = None
            self.outbox.put(client, None, self.shown_data)
            if client.reply_mode == "skip":
                client.reply_mode = "skip-next"
            elif client.reply_mode == "skip-next" and not client.blocked:
                client.reply_mode = "on"
        if self.pushes:
            self.flush_pushes(client)
        client.special = client.is_special()
        return 0

    cdef int flush_pushes(self, Client client) except -1:
        """Send the messages that arrived while a request of this client ran, after its reply."""
        cdef list pushes = self.pushes
        cdef bint shows_data = self.pushes_show_data
        self.pushes = []
        self.pushes_show_data = False
        self.shown_data = self.shown_data or shows_data
        for data in pushes:
            if client.producer is None:
                self.out.put(data)
            else:
                self.outbox.push(client, data, shows_data)
        return 0

    cdef int refuse_unknown(self, Client client, Args args) except -1:
        """Refuse an unknown command. MIGRATE would change a cluster of Redis. A web page can make a browser send HTTP requests to this
        server. As in Redis, the first lines of HTTP end such a connection, before its body can do
        harm."""
        if self.admission.slots is not None and args[0].lower() == b"migrate":
            raise CommandError(refused_in_cluster("MIGRATE"))
        if args[0].lower() in (b"post", b"host:"):
            LOGGER.warning("closing client %s: it speaks HTTP, perhaps a web page that attacks this "
                           "server through a browser", client.address)
            client.end(False)
            return 0
        raise CommandError(unknown_command(args))

    cdef int encode_other(self, Client client, reply) except -1:
        """Encode a reply of a less frequent type: a Wait blocks the client, and a long reply leaves
        its rest to be sent in slices."""
        if type(reply) is Wait and not self.context.may_block:
            # Inside a transaction a wait times out at once.
            read = (<Wait>reply).read
            reply = read.timeout_reply(self.context)
            read.ended(self.context)
        if type(reply) is Wait:
            return self.serving.begin(client, self.row, reply)
        if type(reply) is Again:
            return self.call_again(client, reply.args)
        if type(reply) is Run:
            self.run_queue(client, (<Run>reply).requests)
        elif type(reply) is bytes and len(<bytes>reply) > LONG_BYTES:
            self.out.put_head(c'$', len(<bytes>reply))
            client.producer = SlicedBytes(reply)
        else:
            put_reply(self.out, reply, client.resp)
        return 0

    cdef int call_again(self, Client client, args) except -1:
        """Continue a command in a later turn; until then it does not count as called."""
        client.postponed = args
        client.unfinished = True
        self.row.calls -= 1
        self.statistics.commands -= 1
        client.total_commands -= 1
        self.resume(client)
        return 0

    cdef int reply_error(self, str message) except -1:
        """Reply an error and count it by its code."""
        self.statistics.count_error(message)
        if self.running:
            self.row.failed += 1
        return put_error(self.out, message)

    cdef int reply_exception(self, error) except -1:
        """Reply with the error of a failed command."""
        if self.row is not None and self.row.audited:
            self.end_audit(self.current, getattr(error, "message", "ERR"))
        if isinstance(error, CommandError):
            message = error.message
            if self.admission.slots is not None:
                message = self.admission.refusal_of_role(self.current, message) or message
            if message == SYNTAX and self.row is not None:
                message = self.row.command.syntax_error
            return self.reply_error(message)
        self.out.size = self.reply_start
        if isinstance(error, MemoryError):
            RESERVE.give_back()
            more = OUT_OF_MEMORY_LINES.more()
            if more is not None:
                LOGGER.error("a command ran out of memory%s%s",
                             f": {error}" if str(error) else "", more)
            return self.reply_error("OOM " + (str(error) or "out of memory"))
        # A bug: this one command fails, the server continues and logs the traceback.
        LOGGER.error("command %s failed", self.row.name if self.row else "?", exc_info=error)
        return self.reply_error(INTERNAL)

    cdef int protocol_error(self, Client client) except -1:
        """Reply with the protocol error and close this connection."""
        client.close_after_reply = True
        if client.parser.error:
            message = client.parser.error.decode("latin-1")
            LOGGER.debug("closing client %s: %s", client.address, message)
            self.reply_error("ERR " + message)
        else:
            LOGGER.warning("closing client %s: a request of more than client-query-buffer-limit",
                           client.address)
        return 0
