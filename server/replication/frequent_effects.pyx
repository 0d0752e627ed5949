# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Frames of frequent effects as commands of Redis 7.0.

`redis_commands` translates every frame. A frame that has only appends, deliveries, acknowledgements
and removals of entries is translated here, into the same bytes.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from millstream.commands.runtime.effects cimport (
    ACK_CODE, APPEND_CODE, APPENDONCE_CODE, DELIVER_CODE, EVICT_CODE, IS_NUMBER, SELECT_CODE,
    XDEL_CODE, EffectArgs,
)
from millstream.commands.runtime.stream_effects cimport Ids, id_at, number_at
from millstream.encoding cimport Output, Slice, format_u64
from millstream.entry_id cimport EntryId, id_less
from millstream.storage.blocks.layout cimport read_varint
from millstream.storage.groups.consumers cimport Consumer
from millstream.storage.groups.group cimport Group
from millstream.storage.groups.pending cimport Pending, PendingAt
from millstream.storage.groups.pending_chunks cimport first_pending, next_pending
from millstream.storage.keyspace.keyspace_core cimport (
    DatabaseCore as Database, KeyspaceCore as Keyspace,
)
from millstream.storage.streams.stream cimport Stream

from millstream.commands.runtime.effects import CODES
from millstream.storage.dump.rdb import UNOWNED

# The translation of an effect, by its code.
cdef enum:
    RARE = 0  # not here
    NOTHING = 1
    FREQUENT = 2

cdef int STREAM_CODE = CODES[b"STREAM"]

cdef bytes MULTI = b"*1\r\n$5\r\nMULTI\r\n"
cdef bytes EXEC = b"*1\r\n$4\r\nEXEC\r\n"


# A claim: what the command says about each of its entries.
cdef struct ClaimTerms:
    uint64_t delivered_ms
    int64_t deliveries
    uint32_t owner


cdef class FrequentEffects:
    """Translates one frame after the other. `left_out` are the names of effects that become no
    command, `ids_max` is the number of IDs in one command. `database` is the one that is selected
    after the last frame that was translated."""

    cdef Keyspace keyspace
    cdef Output out
    cdef EffectArgs args
    cdef uint8_t[128] kinds
    cdef size_t ids_max
    cdef readonly int64_t database
    cdef int64_t wall_ahead_ms
    cdef Py_ssize_t requests
    cdef bint removes
    cdef bint lacks_entries  # a pending entry is not in its stream
    cdef bytes new_key  # a stream that the last effect has made
    cdef int64_t new_db

    def __init__(self, Keyspace keyspace not None, left_out, size_t ids_max):
        cdef int code
        self.keyspace = keyspace
        self.out = Output()
        self.args = EffectArgs()
        self.ids_max = ids_max
        for code in range(128):
            self.kinds[code] = RARE
        for name in left_out:
            code = CODES.get(name, 0)
            self.kinds[code] = NOTHING
        self.kinds[0] = RARE
        for code in (APPEND_CODE, APPENDONCE_CODE, EVICT_CODE, XDEL_CODE, ACK_CODE, DELIVER_CODE,
                     SELECT_CODE, STREAM_CODE):
            self.kinds[code] = FREQUENT

    def commands(self, bytes payload not None, int64_t wall_ahead_ms, int64_t database) -> bytes | None:
        """The commands of a frame that was just recorded; None if it has an effect that is not
        translated here. `database` is the one that is selected; -1: none."""
        cdef const char* at = payload
        cdef const char* end = at + len(payload)
        cdef int64_t db = 0
        cdef uint8_t kind
        self.wall_ahead_ms = wall_ahead_ms
        self.database = database
        self.requests = 0
        self.removes = self.lacks_entries = False
        self.new_key = None
        self.out.clear()
        self.out.put(MULTI)
        while at < end:
            at = self.args.read(at, end)
            kind = self.kinds[self.args.code]
            if kind == RARE:
                return None
            if self.args.code == SELECT_CODE:
                db = <int64_t>number_at(self.args, 1)
            elif self.new_key is not None and not self.makes_stream(db):
                return None
            elif kind == FREQUENT and not self.translate(db):
                return None
        if self.new_key is not None or (self.removes and self.lacks_entries):
            return None
        if self.requests == 0:
            return b""
        if self.requests == 1:
            return self.out.buf[len(MULTI):self.out.size]
        self.out.put(EXEC)
        return self.out.take()

    cdef bint makes_stream(self, int64_t db) except -1:
        """True if this effect appends to the stream that the effect before it has made."""
        cdef bint makes = (
            self.args.code in (APPEND_CODE, APPENDONCE_CODE) and db == self.new_db
            and self.args[1] == self.new_key)
        self.new_key = None
        return makes

    cdef bint translate(self, int64_t db) except -1:
        """Add the commands of this effect; False if that is not possible here."""
        cdef EffectArgs args = self.args
        cdef int code = args.code
        if code == APPEND_CODE:
            return args.count >= 5 and self.append(db, 3)
        if code == APPENDONCE_CODE:
            return args.count >= 7 and self.append(db, 5)
        if code == ACK_CODE:
            return self.add_in_parts(db, b"$4\r\nXACK\r\n", 3)
        if code == DELIVER_CODE:
            return args.count == 11 and self.deliver(db)
        if code == XDEL_CODE:
            self.removes = True
            return self.add_in_parts(db, b"$4\r\nXDEL\r\n", 2)
        if code == EVICT_CODE:
            return args.count == 3 and self.evict(db)
        # STREAM
        if args.count < 2 or self.keyspace.has_ordering:
            return False
        self.new_db = db
        self.new_key = args[1]
        return True

    # ------------------------------------------------------------ entries

    cdef bint append(self, int64_t db, Py_ssize_t fields) except -1:
        """XADD key id field value ...: the fields begin at this word."""
        cdef Py_ssize_t i
        if self.keyspace.has_ordering and not self.is_visible(db):
            return True
        self.begin(db, self.args.count - fields + 3)
        self.out.put_raw(b"$4\r\nXADD\r\n", 10)
        self.put_word(1)
        self.put_word(2)
        for i in range(fields, self.args.count):
            self.put_word(i)
        return True

    cdef bint is_visible(self, int64_t db) except -1:
        """True if readers see the entry that this effect appends."""
        cdef EntryId entry_id
        cdef Stream stream = self.stream_of(db)
        id_at(self.args, 2, &entry_id)
        return stream is None or not id_less(
            stream.last_ms, stream.last_seq, entry_id.ms, entry_id.seq)

    cdef bint evict(self, int64_t db) except -1:
        cdef const Slice* first_kept = &self.args.items[2]
        self.removes = True
        self.begin(db, 5)
        self.out.put_raw(b"$5\r\nXTRIM\r\n", 11)
        self.put_word(1)
        if first_kept.size == 1 and first_kept.ptr[0] == c'+':
            self.out.put(b"$6\r\nMAXLEN\r\n$1\r\n=\r\n$1\r\n0\r\n")
        else:
            self.out.put(b"$5\r\nMINID\r\n$1\r\n=\r\n")
            self.put_word(2)
        return True

    cdef bint add_in_parts(self, int64_t db, bytes name, Py_ssize_t ids) except -1:
        """A command with the words of the effect; its IDs begin at this word."""
        cdef Py_ssize_t at = ids
        cdef Py_ssize_t end
        cdef Py_ssize_t i
        if self.args.count < ids:
            return False
        while at < self.args.count:
            end = min(at + <Py_ssize_t>self.ids_max, self.args.count)
            self.begin(db, ids + end - at)
            self.out.put(name)
            for i in range(1, ids):
                self.put_word(i)
            for i in range(at, end):
                self.put_word(i)
            at = end
        return True

    # ------------------------------------------------------------ deliveries

    cdef bint deliver(self, int64_t db) except -1:
        """The entries that are pending, and the offset of the group."""
        cdef const Slice* mode = &self.args.items[10]
        if mode.size == 4 and memcmp(mode.ptr, b"keep", 4) == 0:
            self.claim_range(db)
        self.begin(db, 7)
        self.out.put(b"$6\r\nXGROUP\r\n$5\r\nSETID\r\n")
        self.put_word(1)
        self.put_word(2)
        self.put_word(5)
        self.out.put(b"$11\r\nENTRIESREAD\r\n")
        self.put_word(7)
        return True

    cdef int claim_range(self, int64_t db) except -1:
        """XCLAIM of the entries that were delivered now. Between them there may be others that were
        pending before, if the group was moved back."""
        cdef Stream stream = self.stream_of(db)
        cdef Group group
        cdef EntryId first
        cdef EntryId last
        cdef PendingAt at
        cdef const Pending* record
        cdef uint64_t now_ms
        cdef ClaimTerms before
        cdef ClaimTerms terms
        cdef Ids ids = Ids.__new__(Ids)
        if stream is None:
            return 0
        group = stream.group(self.args[2])
        if group is None:
            return 0
        id_at(self.args, 4, &first)
        id_at(self.args, 5, &last)
        now_ms = number_at(self.args, 6)
        record = first_pending(group.pending.records, first, &at)
        while record != NULL and not id_less(last.ms, last.seq, record.ms, record.seq):
            if record.last_delivery_ms != now_ms and not stream.has_entry(record.ms, record.seq):
                self.lacks_entries = True
            else:
                terms.delivered_ms = 0 if record.waiting else record.last_delivery_ms
                terms.deliveries = group.pending.deliveries(record)
                terms.owner = record.consumer
                if ids.count == self.ids_max or (ids.count and not same_terms(&terms, &before)):
                    self.claim(db, group, ids, &before)
                    ids.count = 0
                before = terms
                ids.add(record.ms, record.seq)
            record = next_pending(group.pending.records, &at)
        if ids.count:
            self.claim(db, group, ids, &before)
        return 0

    cdef int claim(self, int64_t db, Group group, Ids ids, const ClaimTerms* terms) except -1:
        cdef Consumer owner = group.pending.numbered(terms.owner)
        cdef int64_t wall_ms = terms.delivered_ms
        cdef size_t i
        if wall_ms > 0:
            wall_ms = max(wall_ms + self.wall_ahead_ms, 1)
        self.begin(db, 11 + ids.count)
        self.out.put_raw(b"$6\r\nXCLAIM\r\n", 12)
        self.put_word(1)
        self.put_word(2)
        self.out.put_bulk_bytes(<bytes>UNOWNED if owner is None else owner.name)
        self.out.put_raw(b"$1\r\n0\r\n", 7)
        for i in range(ids.count):
            self.out.put_id(ids.items[i].ms, ids.items[i].seq, False)
        self.out.put(b"$4\r\nTIME\r\n")
        self.put_number(<uint64_t>wall_ms)
        self.out.put(b"$10\r\nRETRYCOUNT\r\n")
        self.put_number(<uint64_t>terms.deliveries)
        self.out.put(b"$5\r\nFORCE\r\n$6\r\nJUSTID\r\n")
        return 0

    # ------------------------------------------------------------ parts of a command

    cdef Stream stream_of(self, int64_t db):
        """The stream at the key of this effect; None if there is none after the frame."""
        cdef Database database = self.keyspace.databases[db]
        value = database.table.get(self.args[1])
        return value if isinstance(value, Stream) else None

    cdef int begin(self, int64_t db, Py_ssize_t words) except -1:
        """Begin a command with this number of words."""
        if db != self.database:
            self.database = db
            self.requests += 1
            self.out.put(b"*2\r\n$6\r\nSELECT\r\n")
            self.put_number(<uint64_t>db)
        self.requests += 1
        return self.out.put_head(c'*', <uint64_t>words)

    cdef int put_word(self, Py_ssize_t place) except -1:
        """A word of the effect."""
        cdef const Slice* word = &self.args.items[place]
        cdef const uint8_t* at
        cdef uint64_t first
        cdef uint64_t second
        if word.size >= 0:
            return self.out.put_bulk(word.ptr, word.size)
        at = read_varint(<const uint8_t*>word.ptr, &first)
        if word.size == IS_NUMBER:
            return self.put_number(first)
        read_varint(at, &second)
        return self.out.put_id(first, second, False)

    cdef int put_number(self, uint64_t number) except -1:
        cdef char[20] text
        return self.out.put_bulk(text, format_u64(text, number))


cdef inline bint same_terms(const ClaimTerms* one, const ClaimTerms* other) noexcept:
    return (one.owner == other.owner and one.delivered_ms == other.delivered_ms
            and one.deliveries == other.deliveries)
