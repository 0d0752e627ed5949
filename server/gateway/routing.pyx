# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The requests of a client of the gateway: to which node each of them goes.

The parser, the table of commands and the positions of keys are those of the server. Consecutive requests
for one node are returned as they were received, in one piece. Only a request that needs a decision is
returned as words: one without keys, one that is split among nodes, all of a transaction.
"""

from millstream.commands.runtime.arguments cimport Args, OwnedArgs
from millstream.encoding cimport Slice
from millstream.server.execution.lookup cimport Row, Table
from millstream.server.execution.slot_check cimport Places
from millstream.server.protocol.resp cimport BROKEN, COMPLETE, EMPTY, INLINE, NEED_MORE, Limits, Parser
from millstream.server.gateway.spread_requests cimport Spread
from millstream.storage.keyspace.cluster_slots cimport CLUSTER_SLOT_COUNT, cluster_slot

from millstream.server.gateway.request_policies import ANY, ONE, SPLIT, kind_of
from millstream.server.protocol.resp import encode_reply

ENDED = -1  # no further request has arrived completely
WORDS = -2  # a request whose words need a decision
INVALID = -3  # bytes that are no request
SPREAD = -4  # requests for several nodes
LARGE = -5  # the next request is too large for a client that has to log in first

cdef enum:
    NO_NODE = -2
    ONE_KIND = 0
    SPLIT_KIND = 1
    RUN_MAX = 1024  # requests that are returned together

UNAUTHENTICATED = b"Protocol error: unauthenticated"  # begins the errors of the parser

assert (ONE, SPLIT) == (ONE_KIND, SPLIT_KIND)


cdef class Routes:
    """The table of commands and the node of each slot, for all clients."""

    cdef Table table
    cdef Places places
    cdef dict kinds
    cdef short[CLUSTER_SLOT_COUNT] nodes
    cdef short[RUN_MAX] found_nodes  # of the requests that a reader returns together
    cdef Py_ssize_t[RUN_MAX] found_ends  # where these end

    def __init__(self, nodes):
        """`nodes` has the index of the node of each slot."""
        self.table = Table()
        self.places = Places()
        self.kinds = {row.name: kind_of(row.command) for row in self.table.all_rows()}
        self.set_nodes(nodes)

    def set_nodes(self, nodes) -> None:
        """Replace the nodes of all slots."""
        cdef int slot
        for slot in range(CLUSTER_SLOT_COUNT):
            self.nodes[slot] = nodes[slot]

    def set_node(self, int slot, int node) -> None:
        if not 0 <= slot < CLUSTER_SLOT_COUNT:
            raise ValueError(f"{slot} is no slot")
        self.nodes[slot] = node

    def node_of(self, int slot) -> int:
        return self.nodes[slot]

    cdef int node_of_request(self, Row row, Args args, int kind) except -3:
        """The node of a request that needs no decision; NO_NODE for another one. The node of the
        first key refuses keys of several slots."""
        cdef Slice* key
        cdef int slot
        self.places.find(row, args)
        key = self.places.next(args)
        if key == NULL:
            return NO_NODE
        slot = cluster_slot(key.ptr, key.size)
        if kind == SPLIT_KIND:
            while True:
                key = self.places.next(args)
                if key == NULL:
                    break
                if cluster_slot(key.ptr, key.size) != <unsigned int>slot:
                    return NO_NODE
        return self.nodes[slot]


cdef class RequestReader:
    """The requests of one client. After `next`: `count` requests for a node are in `raw`; those for
    several nodes in `spread`; or `words` and `raw` are those of a single one, `command` its row of the table, None if it is unknown, and
    `kind` its treatment. `keeps_together`: no request needs a decision of its own (there is no
    transaction). Unless `is_trusted`, `next` returns LARGE before requests that need a login."""

    cdef Routes routes
    cdef Parser parser
    cdef bytes data
    cdef Row likely
    cdef int likely_kind
    cdef int parsed  # the state of a request that was parsed and not returned; NEED_MORE: there is none
    cdef int node
    cdef readonly Py_ssize_t count
    cdef readonly bytes raw
    cdef readonly Spread spread
    cdef readonly list words
    cdef readonly object command
    cdef readonly int kind
    cdef public bint keeps_together
    cdef public bint is_trusted

    def __init__(self, Routes routes not None, Limits limits not None):
        self.routes = routes
        self.parser = Parser(limits)
        self.keeps_together = self.is_trusted = True

    def feed(self, bytes data not None) -> None:
        """Pass received bytes, after `next` has returned ENDED."""
        self.data = data
        self.parser.feed(data, len(data))

    @property
    def row(self):
        """The row of the last request in the table; None if none was known."""
        return None if self.likely is None else self.likely.command

    @property
    def error(self) -> str:
        """The error for bytes that are no request."""
        return (self.parser.error or b"Protocol error: the request is too large").decode("latin-1")

    def next(self) -> int:
        """The node of the requests in `raw`; or SPREAD, WORDS, ENDED, LARGE or INVALID."""
        cdef const char* begin
        cdef const char* end
        cdef Routes routes = self.routes
        cdef bint is_spread = False
        cdef int node
        cdef int state = self.parsed if self.parsed != NEED_MORE else self.parse()
        self.parsed = NEED_MORE
        if state == INLINE:
            self.words = list(self.parser.inline_words)
            self.raw = encode_reply(self.words)
            return self.decide(OwnedArgs(self.words))
        if state != COMPLETE:
            if state == BROKEN:
                return LARGE if not self.is_trusted and self.parser.error.startswith(UNAUTHENTICATED) else INVALID
            self.parser.keep_rest()
            self.data = self.raw = self.words = self.spread = None
            return ENDED
        begin, end = self.parser.command_start, self.parser.at
        if self.node == NO_NODE:
            self.words = self.parser.args.all()
            self.raw = begin[:end - begin]
            return self.decide(self.parser.args)
        node, self.count = self.node, 1
        routes.found_nodes[0], routes.found_ends[0] = node, end - begin
        while self.count < RUN_MAX:
            state = self.parse()
            if state != COMPLETE or self.node == NO_NODE:
                self.parsed = state if state == INLINE or state == COMPLETE else NEED_MORE
                break
            end = self.parser.at
            is_spread = is_spread or self.node != node
            routes.found_nodes[self.count], routes.found_ends[self.count] = self.node, end - begin
            self.count += 1
        if is_spread:
            self.spread = Spread.__new__(Spread)
            self.spread.begin(begin, routes.found_nodes, routes.found_ends, self.count)
            return SPREAD
        self.raw = begin[:end - begin]
        return node

    cdef int decide(self, Args args) except? 0:
        cdef Row row = self.routes.table.find(args, self.likely)
        self.command = None if row is None else row.command
        self.kind = ANY if row is None else self.routes.kinds[row.name]
        return WORDS

    cdef int parse(self) except -2:
        """Parse one request, and find its node."""
        cdef Row row
        cdef int state = EMPTY
        while state == EMPTY:
            state = self.parser.next(self.is_trusted)
        if state == COMPLETE:
            self.node = NO_NODE
            row = self.routes.table.find(self.parser.args, self.likely)
            if row is not None and row is not self.likely:
                self.likely = row
                self.likely_kind = self.routes.kinds[row.name]
            if row is not None and self.keeps_together and self.likely_kind <= SPLIT_KIND:
                self.node = self.routes.node_of_request(row, self.parser.args, self.likely_kind)
        return state


def requests_in(bytes data not None, Limits limits not None) -> list:
    """Each of the complete requests in these bytes, as it was received."""
    cdef Parser parser = Parser(limits)
    cdef int state
    found = []
    parser.feed(data, len(data))
    while True:
        state = parser.next(True)
        if state == COMPLETE:
            found.append(parser.command_start[:parser.at - parser.command_start])
        elif state != EMPTY:
            return found
