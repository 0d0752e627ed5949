# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Effects: the changes of a command, recorded while it runs, and applied again at start and on
replicas.

An effect is a RESP array of bulk strings with everything resolved: IDs, times, the first ID kept by
a trim. Applying it needs no clock and always gives the same result. One group read is one effect,
whatever number of entries it delivers. docs/formats.md lists all effects. The effect `SELECT n`
selects a database; each frame starts at database 0.

This module has the form of effects. An effect is recorded and applied in the same module: those on
entries, groups and consumers in `stream_effects`, any other in the module of its command.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcmp

from millstream.commands.runtime.arguments cimport Args, parse_int
from millstream.encoding cimport Output, Slice, format_u64
from millstream.storage.keyspace.keyspace_core cimport DatabaseCore as Database, KeyspaceCore as Keyspace

from millstream.errors import CommandError
from millstream.memory_reserve import RESERVE
from millstream.storage.files.frame_times import FRAME_EXTRA_BYTES

APPLY = {}
# Effects after which readers that wait on the key are retried.
WAKES_READERS = set()
# The keys of effects whose first word is not their only key: the positions of each key and of its
# database among the words, 0 for the database of the effect. EVERY_WORD: each word is a key.
KEYS = {}
EVERY_WORD = None
cdef tuple FIRST_WORD = ((1, 0),)

cdef int64_t ROOM_UNBOUNDED = 1 << 62
# The size of a frame in the journal in addition to its payload.
cdef int64_t FRAME_BYTES = FRAME_EXTRA_BYTES


class EffectError(Exception):
    """A frame's payload that cannot be applied: `offset` bytes into it."""

    def __init__(self, offset: int, message: str):
        super().__init__(message)
        self.offset = offset
        self.message = message


def unbounded_room(size: int) -> int:
    """The `make_room` of effects without a journal: no limit."""
    return ROOM_UNBOUNDED


def effect(bytes name not None, *, bint wakes_readers=False, keys=FIRST_WORD):
    """Register a function (keyspace, db_index, words without the name) that applies an effect.
    wakes_readers: whether a reader that waits on the key may find entries after the effect.
    keys: the positions of its keys, as in KEYS."""
    def register(function):
        APPLY[name] = function
        if keys is not FIRST_WORD:
            KEYS[name] = keys
        if wakes_readers:
            WAKES_READERS.add(name)
        return function
    return register


def keys_of(int db, list words not None):
    """The keys that an effect, given by its name and words, changes: databases and names."""
    keys = KEYS.get(words[0], FIRST_WORD)
    if keys is EVERY_WORD:
        return [(db, key) for key in words[1:]]
    return [
        (int(words[database]) if database else db, words[at])
        for at, database in keys if at < len(words)
    ]


cdef struct Compiled:
    const char* name
    Py_ssize_t size
    ApplyWords apply


cdef Compiled[COMPILED_MAX] compiled_effects
cdef int compiled_count = 0


cdef int apply_compiled(const char* name, Py_ssize_t size, ApplyWords function) except -1:
    """Register a compiled function that applies an effect of which journals have very many."""
    global compiled_count
    compiled_effects[compiled_count] = Compiled(name, size, function)
    compiled_count += 1
    return 0


cdef inline ApplyWords compiled_function(const Slice* name) noexcept:
    cdef int i
    for i in range(compiled_count):
        if compiled_effects[i].size == name.size and (
                memcmp(compiled_effects[i].name, name.ptr, name.size) == 0):
            return compiled_effects[i].apply
    return NULL


cdef bytes taken(Output out):
    """All bytes; None without memory for them."""
    try:
        return out.take()
    except MemoryError:
        return None


cdef class Effects:
    """The effects of one tick. None are recorded while `enabled` is false (no journal).

    To record an effect, call `begin`, put its words into `out` and call `finish`. An effect that is
    begun and not finished has failed (out of memory), but its change may have been made. The whole
    tick then has no payload, and the journal ends before it.

    `room` is the number of bytes for which the journal is known to have space in this tick. A
    command that may record more calls `require` or `has_room` before any change; these call
    `make_room(size)`, which returns the new maximum or raises a CommandError.
    """

    def __init__(self, bint enabled=True):
        self.enabled = enabled
        self.out = Output()
        self.out.reserve(64)  # so that `begin` leaves a trace even without memory
        self.room = ROOM_UNBOUNDED
        self.make_room = unbounded_room

    cdef int require(self, int64_t size) except -1:
        """Refuse a request that may record `size` bytes, if the journal has no space for them."""
        if self.out.size + size > self.room and self.enabled:
            self.room = self.make_room(self.out.size + size)
        return 0

    cdef bint has_room(self, int64_t size) except -1:
        """Like `require`, for work that can be postponed: returns False in place of an error."""
        try:
            self.require(size)
        except CommandError:
            return False
        return True

    def require_room(self, int64_t size_bytes) -> None:
        """`require` for Python."""
        self.require(size_bytes)

    def forget_room(self) -> None:
        """Forget the known room, because the next frame may go to another journal."""
        self.room = 0

    cdef int begin(self, int db, const char* head, Py_ssize_t head_size, Py_ssize_t words) except -1:
        """Start an effect of `words` words; head is its name as a RESP bulk string."""
        cdef char[20] text
        self.begun += 1
        if db >= 0 and db != self.db:
            self.out.put_raw(b"*2\r\n$6\r\nSELECT\r\n", 16)
            self.out.put_bulk(text, format_u64(text, <uint64_t>db))
            self.db = db
        self.out.put_head(c'*', words)
        self.out.put_raw(head, head_size)
        return 0

    cdef int finish(self) except -1:
        """End an effect after its last word."""
        self.count += 1
        return 0

    cdef void open_group(self) noexcept:
        """Begin effects that are valid only together, up to `close_group`: if one cannot be
        recorded, the tick has no payload."""
        self.begun += self.enabled

    cdef void close_group(self) noexcept:
        self.count += self.enabled

    cdef int put_number(self, uint64_t number) except -1:
        cdef char[20] text
        return self.out.put_bulk(text, format_u64(text, number))

    def record(self, int db, *words) -> None:
        """Record one effect; words are bytes or integers, the first is its name. db -1: no
        database."""
        self.put_effect(db, words)

    cdef int put_effect(self, int db, tuple words) except -1:
        """`record` for compiled callers."""
        if not self.enabled:
            return 0
        self.begin(db, b"", 0, len(words))
        for word in words:
            if type(word) is not bytes:
                word = b"%d" % word
            self.out.put_bulk(PyBytes_AS_STRING(word), PyBytes_GET_SIZE(word))
        return self.finish()

    cdef bytes take(self):
        cdef bytes payload = None
        self.db = 0
        self.room -= self.out.size + FRAME_BYTES
        if self.begun == self.count:
            payload = taken(self.out)
            if payload is None and RESERVE.give_back():
                payload = taken(self.out)
        self.begun = self.count
        self.out.clear()
        return payload

    def take_payload(self) -> bytes | None:
        """The payload of one journal frame: the effects since the last call. None when an effect
        could not be recorded."""
        return self.take()

    def __len__(self) -> int:
        return self.out.size


# ---------------------------------------------------------------- reading a frame

cdef inline const char* read_number(const char* at, const char* end, char kind,
                                    int64_t* number) except NULL:
    """Read `kind`, a number and CRLF; return the position after them."""
    cdef const char* stop = at + 1
    # Nearly all numbers have one or two digits, and a start reads one for every word.
    if end - at >= 5 and at[0] == kind and 48 <= at[1] <= 57:
        if at[2] == c'\r' and at[3] == c'\n':
            number[0] = at[1] - 48
            return at + 4
        if at[1] != 48 and 48 <= at[2] <= 57 and at[3] == c'\r' and at[4] == c'\n':
            number[0] = (at[1] - 48) * 10 + at[2] - 48
            return at + 5
    while stop < end and stop[0] != c'\r':
        stop += 1
    if at >= end or at[0] != kind or stop + 1 >= end or stop[1] != c'\n' or parse_int(
            at + 1, stop - at - 1, number) < 0 or number[0] < 0:
        raise ValueError("not a RESP array of bulk strings")
    return stop + 2


cdef class EffectArgs(Args):
    """The words of one effect as views of the payload."""

    cdef Slice[64] few
    cdef list many

    cdef const char* read(self, const char* at, const char* end) except NULL:
        cdef int64_t words
        cdef int64_t size
        cdef int64_t i
        cdef object space
        at = read_number(at, end, c'*', &words)
        if words < 1 or words > end - at:
            raise ValueError("an effect without words")
        if words <= 64:
            self.items = self.few
        else:
            space = bytearray(words * sizeof(Slice))
            self.many = [space]
            self.items = <Slice*><char*>(<bytearray>space)
        for i in range(words):
            at = read_number(at, end, c'$', &size)
            if size + 2 > end - at:
                raise ValueError("a word runs past the end")
            self.items[i].ptr = at
            self.items[i].size = size
            at += size + 2
        self.count = words
        self.pos = 1
        return at


def apply_effects(Keyspace keyspace not None, bytes payload not None) -> int:
    """Apply every effect of a frame; returns their number. EffectError has the offset of a
    failure."""
    cdef EffectArgs args = EffectArgs()
    cdef const char* start = payload
    cdef const char* at = start
    cdef const char* end = start + len(payload)
    cdef const char* here = start
    cdef Slice* name
    cdef ApplyWords compiled
    cdef int64_t db = 0
    cdef int applied = 0
    try:
        while at < end:
            here = at
            at = args.read(at, end)
            name = &args.items[0]
            if name.size == 6 and memcmp(name.ptr, b"SELECT", 6) == 0:
                db = args.take_int()
                if not 0 <= db < len(keyspace.databases):
                    raise ValueError(f"database {db} does not exist; `databases` is lower now")
                continue
            compiled = compiled_function(name)
            if compiled != NULL:
                compiled(keyspace, db, args)
            elif name.size == 4 and memcmp(name.ptr, b"TIME", 4) == 0:
                continue  # it changes nothing
            else:
                function = APPLY.get(args[0])
                if function is None:
                    raise ValueError(f"effect {args[0]!r} is not known to this version")
                function(keyspace, db, args.rest())
                if args.count > 1:
                    wake_readers(keyspace, db, args)
            applied += 1
    except (ValueError, CommandError) as error:
        raise EffectError(here - start, str(error)) from error
    except Exception as error:
        raise EffectError(here - start, f"{type(error).__name__}: {error}") from error
    return applied


# Effects without which entries are delivered again after a crash, and none is lost.
GROUP_EFFECTS = frozenset(
    (b"ACK", b"CLAIM", b"CONSUMER", b"DELIVER", b"REDELIVER", b"RELEASE", b"SEEN"))


def changes_only_groups(bytes payload not None) -> bool:
    """True if every effect of a frame changes only which entries of a group are delivered or
    acknowledged."""
    cdef EffectArgs args = EffectArgs()
    cdef const char* at = payload
    cdef const char* end = at + len(payload)
    while at < end:
        at = args.read(at, end)
        name = args[0]
        if name not in GROUP_EFFECTS and name != b"SELECT":
            return False
    return True


def split_effects(bytes payload not None) -> list:
    """Every effect of a frame, without applying it: (database, words, the effect as a payload of
    its own).

    SELECT is resolved. EffectError has the offset of unreadable bytes.
    """
    cdef EffectArgs args = EffectArgs()
    cdef const char* start = payload
    cdef const char* at = start
    cdef const char* end = start + len(payload)
    cdef const char* here = start
    cdef bytes select = b""
    db = 0
    found = []
    try:
        while at < end:
            here = at
            at = args.read(at, end)
            whole = payload[here - start:at - start]
            args.pos = 0
            words = args.rest()
            if words[0] == b"SELECT":
                db, select = int(words[1]), whole
            else:
                found.append((db, words, select + whole))
    except (ValueError, IndexError) as error:
        raise EffectError(here - start, str(error)) from error
    return found


cdef int wake_readers(Keyspace keyspace, int db, Args args) except -1:
    """Mark the key of an effect ready if a reader waits for it, which is possible on a replica."""
    cdef Database database = <Database>keyspace.databases[db]
    if database.waiting and args[0] in WAKES_READERS:
        database.mark_ready_at(&args.items[1])
    return 0
