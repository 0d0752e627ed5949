# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""RESP for the server: an incremental parser of requests, and error replies.

The parser reads requests in the receive buffer and returns views of their words, so it creates no
Python object per argument. Between calls it keeps a copy of the bytes that were not used: those of
an unfinished request, and of requests that do not run yet because the client is blocked or does not
read its replies. It continues where it stopped: a word of many megabytes is not scanned twice.
Error texts and limits are those of Redis. The parser is independent of sockets and commands.
"""

from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr, memcpy, memmove

from millstream.commands.runtime.arguments cimport parse_int
from millstream.commands.runtime.replies cimport put_reply
from millstream.encoding cimport Output, Slice

from millstream.quoted_words import split_words

cdef enum:
    LINE_MAX = 65536
    # Maximum of requests without words that are skipped in one call.
    EMPTY_MAX = 64
    WORDS_MAX = 2147483647  # as in Redis; memory is allocated as they arrive
    UNKNOWN_WORDS_MAX = 10
    UNKNOWN_BULK_MAX = 16384
    KEPT_WORDS = 1024
    KEPT_BYTES = 65536


cdef class Limits:
    """Limits from directives: the longest bulk string and the maximum size of one request."""

    def __init__(self, int64_t bulk_bytes=512 << 20, int64_t query_bytes=1 << 30):
        self.bulk_bytes = bulk_bytes
        self.query_bytes = query_bytes


cdef class RequestArgs(Args):
    """The words of the current request; exists as long as its parser."""

    def __dealloc__(self):
        free(self.items)


cdef class Parser:
    """`feed` takes bytes, each `next` returns one request; call `keep_rest` before the bytes become
    invalid."""

    def __init__(self, Limits limits not None):
        self.limits = limits
        self.args = RequestArgs.__new__(RequestArgs)
        self.words_wanted = -1
        self.bulk_size = -1

    def __dealloc__(self):
        free(self.buf)

    cdef int feed(self, const char* data, Py_ssize_t size) except -1:
        """Pass received bytes, which must stay valid until `keep_rest`."""
        cdef Py_ssize_t wanted
        cdef char* moved
        if self.end == self.start:
            self.data = self.at = self.command_start = data
            self.data_end = data + size
            return 0
        if self.end + size > self.capacity:
            wanted = self.end - self.start + size
            if self.start:
                memmove(self.buf, self.buf + self.start, self.end - self.start)
                self.end -= self.start
                self.start = 0
            if wanted > self.capacity:
                # Grow by half, so that a word of many megabytes is moved only a few times.
                wanted += wanted // 2
                moved = <char*>realloc(self.buf, wanted)
                if moved == NULL:
                    raise MemoryError(f"no memory for a request of {wanted} bytes")
                self.buf = moved
                self.capacity = wanted
        memcpy(self.buf + self.end, data, size)
        self.end += size
        self.attach_kept()
        return 0

    cdef void attach_kept(self) noexcept:
        """Continue in the kept bytes; positions in them are relative to their start."""
        cdef Py_ssize_t done = self.at - self.command_start
        cdef Py_ssize_t i
        cdef const char* moved_from = self.command_start
        self.data = self.command_start = self.buf + self.start
        self.data_end = self.buf + self.end
        self.at = self.command_start + done
        if self.command_start == moved_from:
            return  # otherwise each arrival would process all words of a request with millions of words
        for i in range(self.words_got):
            self.args.items[i].ptr = self.command_start + (self.args.items[i].ptr - moved_from)

    cdef int keep_rest(self) except -1:
        """Copy the unused bytes, before the received bytes become invalid."""
        cdef Py_ssize_t left = self.data_end - self.command_start
        cdef Py_ssize_t wanted
        cdef char* fresh
        if self.words_got == 0 and self.args.capacity > KEPT_WORDS:
            free(self.args.items)
            self.args.items = NULL
            self.args.capacity = 0
        if left == 0:
            self.start = self.end = 0
            if self.capacity > KEPT_BYTES:
                free(self.buf)
                self.buf = NULL
                self.capacity = 0
            return 0
        if self.end != self.start and self.buf <= self.command_start <= self.buf + self.end:
            # The rest is already in the buffer, after the requests that have run since.
            self.start = self.command_start - self.buf
            self.data = self.command_start
            return 0
        if left > self.capacity:
            wanted = left if left > 256 else 256
            if self.bulk_size > 0 and self.bulk_size < (1 << 20):
                wanted = left + self.bulk_size + 2
            fresh = <char*>malloc(wanted)
            if fresh == NULL:
                raise MemoryError(f"no memory for a request of {wanted} bytes")
            free(self.buf)
            self.buf = fresh
            self.capacity = wanted
        memcpy(self.buf, self.command_start, left)
        self.start = 0
        self.end = left
        self.attach_kept()
        return 0

    cdef Py_ssize_t waiting_bytes(self) noexcept:
        """The size of unfinished or not yet executed requests."""
        return self.end - self.start

    cdef Py_ssize_t table_bytes(self) noexcept:
        """The memory for the positions of words."""
        return self.args.capacity * <Py_ssize_t>sizeof(Slice)

    cdef Py_ssize_t unread_bytes(self) noexcept:
        """The size of bytes that do not belong to a returned request."""
        return self.data_end - self.command_start

    cdef int fail(self, bytes message) except -2:
        self.error = message
        return BROKEN

    cdef int next(self, bint trusted) except -2:
        """Parse one request: COMPLETE (in args), INLINE (in inline_words), NEED_MORE, BROKEN
        (`error` says why), or EMPTY after many requests without words. An untrusted client, which
        must log in first, has smaller limits."""
        cdef int state
        cdef int empty = 0
        if self.words_wanted < 0:
            while True:
                self.command_start = self.at
                if self.at >= self.data_end:
                    return NEED_MORE
                empty += 1
                if empty > EMPTY_MAX:
                    return EMPTY
                if self.at[0] != c'*':
                    state = self.read_inline()
                    if state != COMPLETE:
                        return state
                    continue  # ignore an empty line
                # Most requests have fewer than ten words: `*d\r\n` needs no search.
                if self.data_end - self.at >= 4 and self.at[2] == c'\r' and (
                        self.at[3] == c'\n' and 49 <= self.at[1] <= 57):
                    self.words_wanted = self.at[1] - 48
                    self.at += 4
                    break
                state = self.read_count(trusted)
                if state != COMPLETE:
                    return state
                if self.words_wanted > 0:
                    break
                # Ignore an empty request.
                self.words_wanted = -1
            self.words_got = 0
        return self.read_words(trusted)

    cdef inline int read_words(self, bint trusted) except -2:
        """Parse the bulk strings of a request. The position is kept in local variables, because
        this is the hottest loop of the server."""
        cdef const char* at = self.at
        cdef const char* end = self.data_end
        cdef Py_ssize_t got = self.words_got
        cdef Py_ssize_t wanted = self.words_wanted
        cdef int64_t size = self.bulk_size
        cdef int state
        while got < wanted:
            if size < 0:
                # Most words are short: `$d` and `$dd` need no search for the line's end.
                if end - at >= 5 and at[0] == c'$' and 48 <= at[1] <= 57:
                    if at[2] == c'\r' and at[3] == c'\n':
                        size = at[1] - 48
                        at += 4
                    elif 48 <= at[2] <= 57 and at[3] == c'\r' and at[4] == c'\n' and (
                            at[1] != c'0'):
                        size = (at[1] - 48) * 10 + (at[2] - 48)
                        at += 5
                if size < 0:
                    self.at = at
                    self.words_got = got
                    self.bulk_size = -1  # an earlier call may have stopped inside a word
                    state = self.read_bulk_size(trusted)
                    at = self.at
                    if state == NEED_MORE:
                        return self.wait_for_more()
                    if state != COMPLETE:
                        return state
                    size = self.bulk_size
            if end - at < size + 2:
                self.at = at
                self.words_got = got
                self.bulk_size = size
                return self.wait_for_more()
            if got >= self.args.capacity:
                self.more_words()
            self.args.items[got].ptr = at
            self.args.items[got].size = size
            at += size + 2
            size = -1
            got += 1
        self.at = at
        self.args.count = got
        self.args.pos = 1
        self.bulk_size = -1
        self.words_wanted = -1
        self.words_got = 0
        return COMPLETE

    cdef int wait_for_more(self) except -2:
        """Check the limits of an incomplete request."""
        if self.data_end - self.command_start + self.table_bytes() > self.limits.query_bytes:
            return self.fail(b"")
        return NEED_MORE

    cdef int more_words(self) except -1:
        cdef Py_ssize_t wanted = self.args.capacity * 2 if self.args.capacity else 16
        cdef Slice* moved = <Slice*>realloc(self.args.items, wanted * sizeof(Slice))
        if moved == NULL:
            raise MemoryError(f"no memory for a request of {wanted} words")
        self.args.items = moved
        self.args.capacity = wanted
        return 0

    cdef inline const char* line_end(self, Py_ssize_t limit) noexcept:
        """The CR of the line at `at` if its LF has also arrived, else NULL."""
        cdef Py_ssize_t size = self.data_end - self.at
        cdef const char* found
        if size > limit:
            size = limit
        found = <const char*>memchr(self.at, c'\r', size)
        if found == NULL or found + 1 >= self.data_end:
            return NULL
        return found

    cdef int read_count(self, bint trusted) except -2:
        cdef const char* stop
        cdef int64_t count
        stop = self.line_end(LINE_MAX)
        if stop == NULL:
            if self.data_end - self.at > LINE_MAX:
                return self.fail(b"Protocol error: too big mbulk count string")
            return NEED_MORE
        if parse_int(self.at + 1, stop - self.at - 1, &count) < 0 or count > WORDS_MAX:
            return self.fail(b"Protocol error: invalid multibulk length")
        if not trusted and count > UNKNOWN_WORDS_MAX:
            return self.fail(b"Protocol error: unauthenticated multibulk length")
        self.words_wanted = count if count > 0 else 0
        self.at = stop + 2
        return COMPLETE

    cdef int read_bulk_size(self, bint trusted) except -2:
        cdef const char* at = self.at
        cdef const char* stop
        cdef int64_t size
        if at < self.data_end and at[0] != c'$':
            return self.fail(b"Protocol error: expected '$', got '%c'" % <unsigned char>at[0])
        stop = self.line_end(LINE_MAX)
        if stop == NULL:
            if self.data_end - at > LINE_MAX:
                return self.fail(b"Protocol error: too big bulk count string")
            return NEED_MORE
        if parse_int(at + 1, stop - at - 1, &size) < 0 or size < 0 or (
                size > self.limits.bulk_bytes):
            return self.fail(b"Protocol error: invalid bulk length")
        if not trusted and size > UNKNOWN_BULK_MAX:
            return self.fail(b"Protocol error: unauthenticated bulk length")
        self.bulk_size = size
        self.at = stop + 2
        return COMPLETE

    cdef int read_inline(self) except -2:
        """Parse an inline request, split as a shell would: INLINE, or COMPLETE when it is empty."""
        cdef const char* stop = <const char*>memchr(self.at, c'\n', self.data_end - self.at)
        cdef Py_ssize_t size = (self.data_end if stop == NULL else stop) - self.at
        if size > LINE_MAX:
            return self.fail(b"Protocol error: too big inline request")
        if stop == NULL:
            return NEED_MORE
        try:
            words = split_words(self.at[:size])
        except ValueError:
            return self.fail(b"Protocol error: unbalanced quotes in request")
        self.at = self.command_start = stop + 1
        self.inline_words = words
        return INLINE if words else COMPLETE


# ---------------------------------------------------------------- replies

cdef int put_error(Output out, str message) except -1:
    """An error line; line ends inside the message would end the reply, so they become spaces."""
    cdef bytes text = message.encode("utf-8", "surrogateescape")
    if b"\n" in text or b"\r" in text:
        text = text.replace(b"\r", b" ").replace(b"\n", b" ")
    out.put_raw(b"-", 1)
    out.put(text)
    return out.put_raw(b"\r\n", 2)


# ---------------------------------------------------------------- for Python

def encode_reply(reply, int resp=2) -> bytes:
    """The bytes of a reply."""
    cdef Output out = Output()
    put_reply(out, reply, resp)
    return out.take()


cdef class RequestStream:
    """Requests from a stream of bytes. `taken_bytes` is the size of the
    requests that were returned, with empty lines between them; `waiting_bytes` that of the bytes
    after them. `needs_more`: the next request cannot have arrived completely."""

    cdef Parser parser
    cdef bytes data  # which the parser may still read
    cdef int64_t fed_bytes
    cdef int64_t needed_bytes  # of the stream, before the next word can be complete
    cdef readonly int64_t taken_bytes

    def __init__(self, Limits limits not None):
        self.parser = Parser(limits)

    def feed(self, bytes data not None) -> None:
        """Pass the next bytes."""
        self.parser.keep_rest()
        self.data = data
        self.parser.feed(data, len(data))
        self.fed_bytes += len(data)

    def next(self) -> list | None:
        """The words of the next request; None if it has not arrived completely. ValueError, with the
        reason, for bytes that are no request."""
        args = self.next_args()
        return None if args is None else args.all()

    def next_args(self) -> Args | None:
        """Like `next`, with views of the words, which are valid until the next call."""
        cdef int state = EMPTY
        while state == EMPTY:
            state = self.parser.next(True)
        if state == COMPLETE:
            self.taken_bytes = self.fed_bytes - (self.parser.data_end - self.parser.at)
            return self.parser.args
        if state == NEED_MORE:
            self.needed_bytes = self.fed_bytes + 1
            if self.parser.words_wanted >= 0 and self.parser.bulk_size >= 0:
                self.needed_bytes = self.fed_bytes + self.parser.bulk_size + 2 - (
                    self.parser.data_end - self.parser.at)
            return None
        if state == BROKEN:
            raise ValueError((self.parser.error or b"it is too large").decode("latin-1"))
        raise ValueError(f"{self.parser.inline_words[0][:40]!r} in place of a request")

    @property
    def waiting_bytes(self) -> int:
        return self.fed_bytes - self.taken_bytes

    @property
    def needs_more(self) -> bool:
        return self.fed_bytes < self.needed_bytes
