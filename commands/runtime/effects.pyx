# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Effects: the changes of a command, recorded while it runs, and applied again at start and on
replicas.

An effect is a name and words with everything resolved: IDs, times, the first ID kept by a trim.
Applying it needs no clock and always gives the same result. One group read is one effect, whatever
number of entries it delivers. docs/formats.md lists all effects. The effect `SELECT n` selects a
database; each frame starts at database 0.

This module has the two forms of effects: with a code for the name, and IDs and numbers as varints;
or a RESP array of bulk strings. The second is the form of effects without a code, and of all
effects that earlier versions recorded. An effect is recorded and applied in the same module:
those on entries, groups and consumers in `stream_effects`, any other in the module of its command.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t

from millstream.commands.runtime.arguments cimport Args, parse_int
from millstream.encoding cimport Output, Slice, format_u64
from millstream.storage.blocks.layout cimport read_varint, write_varint
from millstream.storage.keyspace.keyspace_core cimport DatabaseCore as Database, KeyspaceCore as Keyspace

from millstream.errors import CommandError
from millstream.memory_reserve import RESERVE
from millstream.storage.files.frame_times import FRAME_EXTRA_BYTES

# The codes of effects, of one byte. A code is never changed, nor used again for another effect: a new
# effect gets the next one. 42 is none, because RESP begins with `*`. A name without a code can be
# recorded, too, but takes more bytes.
CODES = {
    b"HISTORY": 1, b"TIME": TIME_CODE, b"SELECT": SELECT_CODE,
    b"STREAM": 4, b"APPEND": APPEND_CODE, b"APPENDONCE": APPENDONCE_CODE, b"PRODUCERDROP": 7,
    b"EVICT": EVICT_CODE, b"POLICY": 9, b"EVICTIDS": 10, b"XDEL": XDEL_CODE,
    b"RESERVE": RESERVE_CODE, b"COMPLETE": COMPLETE_CODE, b"ABORT": ABORT_CODE, b"LEASE": LEASE_CODE,
    b"SEAL": 16, b"PARENTS": 17, b"FOLLOW": 18, b"CLOCK": 19, b"SETID": 20,
    b"IDMPSET": 21, b"IDMP": 22, b"IDMPREPEAT": 23,
    b"GROUP": 24, b"GROUPTTL": 25, b"GROUPSETID": 26, b"GROUPDROP": 27,
    b"CONSUMER": 28, b"CONSUMERDROP": 29, b"DELIVER": DELIVER_CODE, b"REDELIVER": REDELIVER_CODE,
    b"CLAIM": CLAIM_CODE, b"RELEASE": 33, b"ACK": ACK_CODE, b"SEEN": SEEN_CODE,
    b"SET": 36, b"UPDATE": 37, b"EXTEND": 38, b"PATCH": 39, b"PADDED": 40, b"EXPIRE": 41,
    b"DEL": 43, b"RENAME": 44, b"COPY": 45, b"RESTORE": 46, b"TRESTORE": 47,
    b"SWAPDB": 48, b"FLUSHDB": 49, b"FLUSHALL": 50,
    b"GROUPRULES": 51, b"TAKE": TAKE_CODE, b"WAIT": WAIT_CODE, b"DEADLINE": 54,
    b"DEAD": 55, b"COPIED": COPIED_CODE,
    b"SCHEDULE": SCHEDULE_CODE, b"UNSCHEDULE": UNSCHEDULE_CODE, b"FIRE": FIRE_CODE,
    b"XDELRANGE": 60,
    b"PICK": PICK_CODE,
    b"IMPORT": 63, b"LEAVE": 64, b"STAY": 65, b"OWN": 66, b"DROPSLOTS": 67, b"FLUSHSLOTS": 68,
    b"STREAMS": 69, b"KEYPART": 70,
}
cdef list NAMES = [None] * 128
for _name, _code in CODES.items():
    NAMES[_code] = _name

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
    ApplyWords apply
    uint64_t texts  # a bit for each place of a word that the function reads as text

cdef Compiled[128] compiled_effects


cdef int apply_compiled(bytes name, uint64_t texts, ApplyWords function) except -1:
    """Register a compiled function that applies an effect of which journals have very many. `texts`
    has a bit for each place of a word that the function reads as text; the highest bit stands for
    all words from place 63 on."""
    compiled_effects[<int>CODES[name]] = Compiled(function, texts)
    return 0


cdef bytes taken(Output out):
    """All bytes; None without memory for them."""
    try:
        return out.take()
    except MemoryError:
        return None


cdef class Effects:
    """The effects of one tick. None are recorded while `enabled` is false (no journal).

    To record an effect, call `begin` with its code, put its words (`put`, `put_bytes`, `put_id`,
    `put_number`) and call `finish`; or call `record` or `put_effect` with its name and words. An
    effect that is begun and not finished has failed (out of memory), but its change may have been
    made. The whole tick then has no payload, and the journal ends before it.

    `room` is the number of bytes for which the journal is known to have space in this tick. A
    command that may record more calls `require` or `has_room` before any change; these call
    `make_room(size)`, which returns the new maximum or raises a CommandError.
    """

    def __init__(self, bint enabled=True, make_room=unbounded_room):
        self.enabled = enabled
        self.out = Output()
        self.out.reserve(64)  # so that `begin` leaves a trace even without memory
        self.room = ROOM_UNBOUNDED if make_room is unbounded_room else 0
        self.make_room = make_room

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

    cdef int begin(self, int db, int code, Py_ssize_t words) except -1:
        """Begin an effect that has this code, and this number of words after its name."""
        cdef uint8_t* at
        self.begun += 1
        self.resp = False
        if db >= 0 and db != self.db:
            self.select(db)
        at = <uint8_t*>self.out.reserve(12)
        at[0] = <uint8_t>code
        at = write_varint(at + 1, <uint64_t>words)
        self.out.size = <char*>at - self.out.buf
        return 0

    cdef int begin_named(self, int db, bytes name, Py_ssize_t words) except -1:
        """Begin an effect as RESP."""
        self.begun += 1
        if db >= 0 and db != self.db:
            self.resp = False
            self.select(db)
        self.resp = True
        self.out.put_head(c'*', 1 + words)
        return self.out.put_bulk_bytes(name)

    cdef int select(self, int db) except -1:
        """SELECT database."""
        self.out.put_raw(b"\x03\x01", 2)
        self.put_number(<uint64_t>db)
        self.db = db
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
        """A word: this number."""
        cdef char[20] text
        cdef uint8_t* at
        if self.resp:
            return self.out.put_bulk(text, format_u64(text, number))
        at = <uint8_t*>self.out.reserve(12)
        at[0] = NUMBER_WORD
        at = write_varint(at + 1, number)
        self.out.size = <char*>at - self.out.buf
        return 0

    def record(self, int db, *words) -> None:
        """Record one effect; words are bytes or integers, the first is its name. db -1: no
        database."""
        self.put_effect(db, words)

    cdef int put_effect(self, int db, tuple words) except -1:
        """`record` for compiled callers."""
        cdef Py_ssize_t i
        if not self.enabled:
            return 0
        code = CODES.get(words[0])
        if code is None:
            self.begin_named(db, words[0], len(words) - 1)
        else:
            self.begin(db, code, len(words) - 1)
        for i in range(1, len(words)):
            word = words[i]
            if type(word) is bytes:
                self.put_bytes(<bytes>word)
            elif word >= 0:
                self.put_number(word)
            else:
                self.put_bytes(b"%d" % word)
        return self.finish()

    def record_payload(self, bytes payload not None) -> None:
        """Record effects that are there already, of database 0."""
        if self.enabled and payload:
            self.begun += 1
            self.resp = False
            if self.db != 0:
                self.select(0)
            self.out.put_raw(payload, len(payload))
            self.finish()

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


cdef const char* varint_end(const char* at, const char* end) except NULL:
    """The end of a varint, which has at most 10 bytes."""
    cdef const char* stop = at + min(10, end - at)
    while at < stop:
        at += 1
        if not (at - 1)[0] & 128:
            return at
    raise ValueError("an effect with a number that does not end")


cdef inline const char* read_word(const char* at, const char* end, Slice* word) except NULL:
    cdef uint64_t head
    if at >= end:
        raise ValueError("an effect ends before its last word")
    head = <uint8_t>at[0]
    if head < 128:
        at += 1
    else:
        stop = varint_end(at, end)
        read_varint(<const uint8_t*>at, &head)
        at = stop
    word.ptr = at
    if head >= BYTES_WORD:
        if head - BYTES_WORD > <uint64_t>(end - at):
            raise ValueError("a word runs past the end")
        word.size = <Py_ssize_t>(head - BYTES_WORD)
        return at + word.size
    at = varint_end(at, end)
    if head == NUMBER_WORD:
        word.size = IS_NUMBER
        return at
    word.size = IS_ID
    return varint_end(at, end)


cdef bytes text_of(const Slice* word):
    """An ID or a number as text."""
    cdef char[42] text
    cdef uint64_t number
    cdef int size
    cdef const uint8_t* at = read_varint(<const uint8_t*>word.ptr, &number)
    size = format_u64(text, number)
    if word.size == IS_ID:
        read_varint(at, &number)
        text[size] = c'-'
        size += 1
        size += format_u64(text + size, number)
    return text[:size]


cdef class EffectArgs(Args):
    """The words of one effect as views of the payload. `code` is 0 for a name without a code.

    A word that is an ID or a number has the size IS_ID or IS_NUMBER, and its bit in `packed`, until
    `unpack` makes it text. The highest bit stands for all places from 63 on.
    """

    cdef const char* read(self, const char* at, const char* end) except NULL:
        cdef int code = <uint8_t>at[0]
        cdef uint64_t words
        cdef Py_ssize_t i
        self.packed = 0
        if code == c'*':
            return self.read_resp(at, end)
        name = NAMES[code] if code < 128 else None
        if name is None:
            raise ValueError(f"the effect with code {code} is not known to this version")
        stop = varint_end(at + 1, end)
        read_varint(<const uint8_t*>at + 1, &words)
        at = stop
        if words > <uint64_t>(end - at):
            raise ValueError("an effect has more words than bytes")
        self.make_space(<Py_ssize_t>words + 1)
        self.code = code
        self.items[0].ptr = <bytes>name
        self.items[0].size = len(<bytes>name)
        for i in range(1, self.count):
            at = read_word(at, end, &self.items[i])
            if self.items[i].size < 0:
                self.packed |= <uint64_t>1 << min(i, 63)
        return at

    cdef const char* read_resp(self, const char* at, const char* end) except NULL:
        cdef int64_t words
        cdef int64_t size
        cdef Py_ssize_t i
        at = read_number(at, end, c'*', &words)
        if words < 1 or words > end - at:
            raise ValueError("an effect without words")
        self.make_space(words)
        for i in range(words):
            at = read_number(at, end, c'$', &size)
            if size + 2 > end - at:
                raise ValueError("a word runs past the end")
            self.items[i].ptr = at
            self.items[i].size = size
            at += size + 2
        self.code = CODES.get(self[0], 0)
        return at

    cdef int make_space(self, Py_ssize_t words) except -1:
        if words <= 64:
            self.items = self.few
        else:
            self.space = bytearray(words * sizeof(Slice))
            self.items = <Slice*><char*>(<bytearray>self.space)
        self.count = words
        self.pos = 1
        return 0

    cdef int unpack(self) except -1:
        """Make IDs and numbers text."""
        cdef Py_ssize_t i
        if not self.packed:
            return 0
        self.texts = []
        for i in range(1, self.count):
            if self.items[i].size < 0:
                text = text_of(&self.items[i])
                self.texts.append(text)
                self.items[i].ptr = <bytes>text
                self.items[i].size = len(<bytes>text)
        self.packed = 0
        return 0

    def __getitem__(self, Py_ssize_t index) -> bytes:
        if 0 <= index < self.count and self.items[index].size < 0:
            return text_of(&self.items[index])
        return Args.__getitem__(self, index)


def apply_effects(Keyspace keyspace not None, bytes payload not None) -> int:
    """Apply every effect of a frame; returns their number. EffectError has the offset of a
    failure."""
    cdef EffectArgs args = EffectArgs()
    cdef const char* start = payload
    cdef const char* at = start
    cdef const char* end = start + len(payload)
    cdef const char* here = start
    cdef Compiled* compiled
    cdef int64_t db = 0
    cdef int applied = 0
    try:
        while at < end:
            here = at
            at = args.read(at, end)
            compiled = &compiled_effects[args.code]
            if compiled.apply != NULL:
                if args.packed & compiled.texts:
                    args.unpack()
                compiled.apply(keyspace, db, args)
            elif args.code == SELECT_CODE:
                args.unpack()
                db = args.take_int()
                if not 0 <= db < len(keyspace.databases):
                    raise ValueError(f"database {db} does not exist; `databases` is lower now")
                continue
            elif args.code == TIME_CODE:
                continue  # it changes nothing
            else:
                function = APPLY.get(args[0])
                if function is None:
                    raise ValueError(f"effect {args[0]!r} is not known to this version")
                args.unpack()
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
    (b"ACK", b"CLAIM", b"CONSUMER", b"DEADLINE", b"DELIVER", b"PICK", b"REDELIVER", b"RELEASE", b"SEEN",
     b"TAKE", b"WAIT"))


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
            args.unpack()
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
