# cython: language_level=3, wraparound=False, cdivision=True
"""The types that a handler may return, and their encoding.

`put_reply` encodes by type: int, bytes (bulk string), Simple (+status), Id, None (null), list or
tuple (array), dict (map), set, float, bool, and the classes below. Most handlers therefore do not
deal with RESP, and the differences of RESP2 and RESP3 are in one place. A handler in Python returns
a LongReply if the reply is too long to make at once.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint64_t

from millstream.encoding cimport Output, format_u64, put_nil, put_null_array
from millstream.ids cimport Id


cdef class Encodable:
    """A reply that encodes itself; `resp` is 2 or 3."""

    cdef int encode(self, Output out, int resp) except -1:
        raise NotImplementedError(type(self).__name__)

    cdef Sliced rest(self):
        """The part of a long reply that `encode` has left out; None if there is none."""
        return None


cdef class Sliced(Encodable):
    """A reply that is too long to make at once, or its rest. `next_slice()` is called whenever the
    client has read the last slice; b"" ends the reply. Before the first slice, `prepare()` is
    called once per turn until it returns False."""

    cdef int encode(self, Output out, int resp) except -1:
        return 0

    cdef Sliced rest(self):
        return self

    def prepare(self) -> bool:
        """Do a part of the work before the first slice; False when it is done."""
        return False

    def next_slice(self) -> bytes:
        raise NotImplementedError


cdef class RowSource(Sliced):
    """A list reply: all rows at once if they are few, otherwise the same rows in slices.

    `put_rows` continues where it stopped. Until `keep` is called, it reads the data itself, which
    must not change meanwhile; afterwards it needs only what `keep` has kept.
    """

    cdef bint put_rows(self, Output out, Py_ssize_t full_size) except -1:
        """Write the next rows, after the head of the list, until `out` has full_size bytes; True
        when none is left."""
        raise NotImplementedError

    cdef int keep(self) except -1:
        """Keep the data of the remaining rows as they are now."""
        return 0

    cdef int encode(self, Output out, int resp) except -1:
        self.resp = resp
        if not self.put_rows(out, out.size + SLICE_BYTES):
            self.later(resp)
        return 0

    cdef Sliced rest(self):
        return self if self.is_kept else None

    cdef RowSource later(self, int resp):
        """The remaining rows as they are now, to be sent in slices."""
        if not self.is_kept:
            self.resp = resp
            self.keep()
            self.is_kept = True
        return self

    def next_slice(self) -> bytes:
        cdef Output out = Output()
        while self.prepare():
            pass
        self.put_rows(out, SLICE_BYTES)
        return out.take()


cdef class Raw(Encodable):
    """A reply that is already encoded."""

    def __init__(self, bytes data):
        self.data = data

    cdef int encode(self, Output out, int resp) except -1:
        return out.put(self.data)


cdef Raw make_raw(bytes data):
    cdef Raw made = Raw.__new__(Raw)
    made.data = data
    return made


cdef class NumberTexts(Encodable):
    """An array of two numbers, each as a bulk string (TIME)."""
    cdef uint64_t first
    cdef uint64_t second

    def __init__(self, uint64_t first, uint64_t second):
        self.first = first
        self.second = second

    cdef int encode(self, Output out, int resp) except -1:
        cdef char[20] text
        out.put_head(c'*', 2)
        out.put_bulk(text, format_u64(text, self.first))
        return out.put_bulk(text, format_u64(text, self.second))


cdef class MapHead(Encodable):
    """The head of a map that is returned in parts (Several)."""

    def __init__(self, uint64_t pairs):
        self.pairs = pairs

    cdef int encode(self, Output out, int resp) except -1:
        return put_map_head(out, resp, self.pairs)


cdef class ArrayHead(Encodable):
    """The head of an array that is returned in parts (LongReply)."""

    def __init__(self, uint64_t length):
        self.length = length

    cdef int encode(self, Output out, int resp) except -1:
        return out.put_head(c'*', self.length)


cdef ArrayHead make_array_head(uint64_t length):
    cdef ArrayHead made = ArrayHead.__new__(ArrayHead)
    made.length = length
    return made


cdef MapHead make_map_head(uint64_t pairs):
    cdef MapHead made = MapHead.__new__(MapHead)
    made.pairs = pairs
    return made


cdef class LongReply(RowSource):
    """A reply that a generator makes in steps, so that other clients are served between two steps.

    `parts` yields the reply in order: an ArrayHead or a MapHead, then the elements, each in the
    form that a handler would return, and several together as `Several`. It yields PAUSE after about
    a millisecond's work without an element, such as counting. It must show the moment of the call,
    even if the data changes after the handler has returned. A short reply has no PAUSE and is sent
    together with other replies; the rest of a long one follows in slices. A generator whose client
    disconnects is closed.
    """

    def __init__(self, parts):
        self.parts = parts
        self.ready = b""

    cdef bint put_rows(self, Output out, Py_ssize_t full_size) except -1:
        """Encode parts up to a PAUSE or a full slice."""
        for part in self.parts:
            if part is PAUSE:
                return False
            put_reply(out, part, self.resp)
            if out.size >= full_size:
                return False
        self.is_complete = True
        return True

    def prepare(self) -> bool:
        cdef Output out
        if not self.ready and not self.is_complete:
            out = Output()
            self.put_rows(out, SLICE_BYTES)
            self.ready = out.take()
        return not self.ready and not self.is_complete

    def next_slice(self) -> bytes:
        while self.prepare():
            pass
        data, self.ready = self.ready, b""
        return data


cdef class Several(Encodable):
    """Several replies in order (SUBSCRIBE has one for each channel), or the parts of one: a head,
    then elements. After a long part, or a full slice, the others are sent later."""

    def __init__(self, parts):
        self.parts = list(parts)

    cdef int encode(self, Output out, int resp) except -1:
        cdef Py_ssize_t full_size = out.size + SLICE_BYTES
        cdef Py_ssize_t start
        cdef Sliced rest
        for part in self.parts:
            start = out.size
            rest = None
            if not isinstance(part, Encodable):
                put_reply(out, part, resp)
            elif isinstance(part, RowSource) and (
                    self.later is not None or start >= full_size or (<RowSource>part).is_kept):
                rest = (<RowSource>part).later(resp)
            else:
                (<Encodable>part).encode(out, resp)
                rest = (<Encodable>part).rest()
            if rest is not None or self.later is not None:
                self.later = put_later(self.later, out, start, rest)
        return 0

    cdef Sliced rest(self):
        return None if self.later is None else SlicedChain(self.later)


cdef Several make_several(list parts):
    cdef Several made = Several.__new__(Several)
    made.parts = parts
    return made


cdef list put_later(list later, Output out, Py_ssize_t start, Sliced rest):
    """Add a reply, encoded from `start` on, and its rest to the list of what follows a long reply.
    The first long reply begins the list (None before)."""
    if later is None:
        later = []
    elif out.size > start:
        later.append(out.buf[start:out.size])
        out.size = start
    if rest is not None:
        later.append(rest)
    return later


class SlicedChain(Sliced):
    """Replies in order: bytes, and replies that are sent in slices themselves."""

    def __init__(self, parts):
        self.parts = parts
        self.parts.reverse()  # the next one is the last in the list
        self.unprepared = len(parts)

    def prepare(self) -> bool:
        while self.unprepared:
            part = self.parts[self.unprepared - 1]
            if not isinstance(part, bytes) and part.prepare():
                return True
            self.unprepared -= 1
        # A LongReply may have a PAUSE after its first slice, too.
        part = self.parts[len(self.parts) - 1] if self.parts else b""
        return not isinstance(part, bytes) and part.prepare()

    def next_slice(self) -> bytes:
        pieces = []
        size_bytes = 0
        while self.parts and size_bytes < SLICE_BYTES:
            part = self.parts[len(self.parts) - 1]
            if size_bytes and not isinstance(part, bytes) and part.prepare():
                break  # it has more to do before its next slice
            self.parts.pop()
            piece = part if isinstance(part, bytes) else part.next_slice()
            if piece and piece is not part:
                self.parts.append(part)
            pieces.append(piece)
            size_bytes += len(piece)
        return b"".join(pieces)


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
    """No reply is sent: the handler has arranged for it."""


class Push(list):
    """An out-of-band message: a RESP3 push, in RESP2 an array."""


class OrderedSet(list):
    """A set whose elements keep this order: a set in RESP3, in RESP2 an array."""


class Verbatim(bytes):
    """Text for people (INFO, CLIENT LIST): RESP3 `=` with the `txt` mark, a bulk string in RESP2."""


class Again:
    """The command has more work than one turn allows: it is called again in a later turn, with
    `args` (an OwnedArgs), before the client's next request. Not within a transaction."""

    def __init__(self, args):
        self.args = args


class Pairs(list):
    """A map given as (name, value) pairs where the order matters or names repeat."""


OK = Simple(b"OK")
NULL_ARRAY = NullArray()
NO_REPLY = NoReply()
PAUSE = object()


cdef class Run:
    """EXEC: the executor runs these requests and replies with the array of their replies."""

    def __init__(self, list requests not None):
        self.requests = requests


cdef class Wait:
    """The command blocks: `read` (a BlockedRead) is retried when one of its keys is ready.

    deadline_ms is a time of the steady clock; 0: wait forever.
    """

    def __init__(self, read, int64_t deadline_ms):
        self.read = read
        self.deadline_ms = deadline_ms


cdef class BlockedRead:
    """A read that waits. `keys` are (db, key) pairs; `group` the group's name or None.

    attempt() returns a reply, or None to keep waiting in the same place of the queue; a
    CommandError ends the wait. If a read finds nothing, other reads of the same `kind` find nothing
    either. A read with `needs_stream` is attempted only if the ready key has a stream.
    """

    needs_stream = False

    @property
    def kind(self):
        return type(self)

    def attempt(self, ctx):
        raise NotImplementedError

    def join(self, stream, group) -> None:
        """The group was created (again) while the read waits."""

    def timeout_reply(self, ctx):
        return NULL_ARRAY

    def ended(self, ctx) -> None:
        """The wait has ended: it was served, timed out, or the client disconnected."""


# ---------------------------------------------------------------- encoding

cdef int put_reply(Output out, reply, int resp) except -1:
    """Encode the value that a handler returned, by its type."""
    cdef Id entry_id
    kind = type(reply)
    if kind is Id:
        entry_id = <Id>reply
        return out.put_id(entry_id.ms, entry_id.seq, entry_id.dotted)
    if kind is int:
        return put_signed(out, reply)
    if kind is bytes:
        return out.put_bulk_bytes(<bytes>reply)
    if reply is None:
        return put_nil(out, resp)
    if kind is Simple:
        out.put_raw(b"+", 1)
        out.put_raw(PyBytes_AS_STRING(reply), PyBytes_GET_SIZE(reply))
        return out.put_raw(b"\r\n", 2)
    if kind is NullArray:
        return put_null_array(out, resp)
    if isinstance(reply, Encodable):
        return (<Encodable>reply).encode(out, resp)
    return put_other(out, reply, kind, resp)


cdef int put_other(Output out, reply, kind, int resp) except -1:
    cdef bytes text
    if kind is list:
        out.put_head(c'*', len(<list>reply))
        for item in <list>reply:
            put_reply(out, item, resp)
        return 0
    if kind is dict:
        put_map_head(out, resp, len(<dict>reply))
        for name, value in (<dict>reply).items():
            put_reply(out, name, resp)
            put_reply(out, value, resp)
        return 0
    if kind is tuple or kind is Push:
        out.put_head(c'>' if kind is Push and resp == 3 else c'*', len(reply))
        for item in reply:
            put_reply(out, item, resp)
        return 0
    if kind is Pairs:
        put_map_head(out, resp, len(reply))
        for name, value in reply:
            put_reply(out, name, resp)
            put_reply(out, value, resp)
        return 0
    if kind is NoReply:
        return 0
    if kind is bool:
        if resp == 3:
            out.put(b"#t\r\n" if reply else b"#f\r\n")
            return 0
        return out.put_head(c':', 1 if reply else 0)
    if kind is OrderedSet:
        out.put_head(c'~' if resp == 3 else c'*', len(reply))
        for item in reply:
            put_reply(out, item, resp)
        return 0
    if kind is Verbatim:
        if resp == 3:
            text = b"txt:" + bytes(reply)
            out.put(b"=%d\r\n" % len(text))
            out.put(text)
            return out.put_raw(b"\r\n", 2)
        return out.put_bulk_bytes(bytes(reply))
    if kind is set or kind is frozenset:
        out.put_head(c'~' if resp == 3 else c'*', len(reply))
        for item in sorted(reply):
            put_reply(out, item, resp)
        return 0
    if kind is float:
        text = repr(reply).encode()
        if resp == 3:
            out.put(b",%b\r\n" % text)
            return 0
        return out.put_bulk_bytes(text)
    if kind is str:
        return out.put_bulk_bytes(reply.encode("utf-8", "surrogateescape"))
    raise TypeError(f"a handler returned {kind.__name__}, which is no reply")
