# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""What a handler may return, in addition to plain Python values.

The executor encodes by type: int, bytes (bulk string), Simple (+status), Id, None (null), list or
tuple (array), dict (map), set, float, bool, and the classes below. Handlers so never see the wire
and RESP2 and RESP3 differ in one place only (server/protocol/resp).
"""

from libc.stdint cimport int64_t, uint64_t

from millstream.encoding cimport Output


cdef class Sliced:
    """A reply too long to make at once, or its rest: `next_slice()` is called each time the client
    has taken what it was sent; b"" ends it. Before the first one `prepare()` is called, once a turn,
    until it answers that there is nothing left to find out."""

    def prepare(self) -> bool:
        """Do some of what must be done before the first slice; False when all of it is."""
        return False

    def next_slice(self) -> bytes:
        raise NotImplementedError


cdef class Encodable:
    """A reply that writes itself; `resp` is 2 or 3."""

    cdef int encode(self, Output out, int resp) except -1:
        raise NotImplementedError(type(self).__name__)

    cdef Sliced rest(self):
        """What `encode` left out because the reply is long; None for nothing."""
        return None


cdef class Raw(Encodable):
    """A reply that is encoded already."""

    def __init__(self, bytes data):
        self.data = data

    cdef int encode(self, Output out, int resp) except -1:
        return out.put(self.data)


cdef Raw make_raw(bytes data):
    cdef Raw made = Raw.__new__(Raw)
    made.data = data
    return made


cdef class MapHead(Encodable):
    """What stands before the names and values of a map that is answered in parts (Several)."""

    def __init__(self, uint64_t pairs):
        self.pairs = pairs

    cdef int encode(self, Output out, int resp) except -1:
        return out.put_head(c'%' if resp == 3 else c'*', self.pairs if resp == 3 else 2 * self.pairs)


cdef class SlicedBytes(Sliced):
    """The bytes of a long bulk string, after its head; they are not copied as a whole."""

    def __init__(self, bytes data):
        self.data = data

    def next_slice(self) -> bytes:
        cdef Py_ssize_t start = self.start
        cdef Py_ssize_t size = len(self.data)
        if start > size:
            return b""
        self.start = start + LONG_BYTES
        if self.start <= size:
            return self.data[start:self.start]
        self.start = size + 1
        return self.data[start:] + b"\r\n"


class Simple(bytes):
    """A status reply such as +OK."""


class NullArray:
    """RESP2's `*-1` (a blocking read that timed out); RESP3 has one null."""


class NoReply:
    """Nothing is sent (the handler has arranged for the answer itself)."""


class Push(list):
    """An out-of-band message: a RESP3 push, in RESP2 an array."""


class Verbatim(bytes):
    """Text for people (INFO, CLIENT LIST): RESP3 `=` with the `txt` mark, a bulk string in RESP2."""


class Again:
    """The command has more to do than fits into a turn: it is called again in a later one, with
    `args` (an OwnedArgs), before the client's next request. Not within a transaction."""

    def __init__(self, args):
        self.args = args


class Several(list):
    """Replies in order (SUBSCRIBE has one for each channel), or the parts of one
    that may be long: after a MapHead, an Encodable among them may leave its rest for later."""


class Pairs(list):
    """A map given as (name, value) pairs where the order matters or names repeat."""


OK = Simple(b"OK")
NULL_ARRAY = NullArray()
NO_REPLY = NoReply()


cdef class Run:
    """EXEC: the executor runs these requests and answers the array of their replies."""

    def __init__(self, list requests not None):
        self.requests = requests


cdef class Wait:
    """The command blocks: `read` (a BlockedRead) is tried again when one of its keys is ready.

    deadline_ms is on the context's clock; 0 waits for ever.
    """

    def __init__(self, read, int64_t deadline_ms):
        self.read = read
        self.deadline_ms = deadline_ms


cdef class BlockedRead:
    """A read that waits. `keys` are (db, key) pairs; `group` the group's name or None.

    attempt() answers a reply, or None to go on waiting and keep its place in the queue; it may
    raise CommandError, which ends the wait. All reads of one `kind` find or miss the same things.
    A read with `needs_stream` is tried only when the key that is ready holds a stream.
    """

    needs_stream = False

    @property
    def kind(self):
        return type(self)

    def attempt(self, ctx):
        raise NotImplementedError

    def join(self, stream, group) -> None:
        """The group was made (again) while the read waits."""

    def timeout_reply(self, ctx):
        return NULL_ARRAY

    def ended(self, ctx) -> None:
        """The wait is over (served, timed out, client gone)."""
