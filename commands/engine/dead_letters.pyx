# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Dead letters: an entry whose deliveries have ended is copied to the dead letter stream of its group
and acknowledged.

Copy and acknowledgement are in one frame of the journal, so a crash keeps both or none. An entry that
cannot be copied now is *dead*: pending, but never delivered. A timer tries again each second.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport UINT64_MAX as NEVER, int64_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp

from millstream.commands.engine.appending cimport append_entry, check_append, new_id
from millstream.commands.runtime.arguments cimport parse_int
from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.effects cimport (
    COPIED_CODE, EFFECT_BYTES, ID_WORD_BYTES, Effects,
)
from millstream.commands.runtime.stream_effects cimport Ids, NewEntry, record_ack
from millstream.encoding cimport Slice, format_u64
from millstream.entry_id cimport EntryId, step_up
from millstream.ids cimport format_id, make_id
from millstream.storage.blocks.layout cimport Entry, View, entry_slices, entry_words
from millstream.storage.blocks.open_block cimport payload_of
from millstream.storage.groups.consumers cimport Consumer
from millstream.storage.groups.dead_entries cimport dead_facts, first_dead, set_dead
from millstream.storage.groups.due_index cimport earliest, expires_ms, fails_ms
from millstream.storage.groups.group cimport Group, count_copies, dead_letter_of
from millstream.storage.groups.managed_entries cimport give_back, keep_dead
from millstream.storage.groups.ordered_pending cimport (
    OrderedPending, has_later, is_next, ordered,
)
from millstream.storage.groups.pending cimport EXPIRE, Pending, PendingAt, is_at_limit
from millstream.storage.groups.pending_chunks cimport find_pending
from millstream.storage.log.entry_log cimport Walk
from millstream.storage.streams.stream cimport Stream

from millstream.commands.runtime.stream_effects import DEAD as DEAD_EFFECT, WAIT
from millstream.errors import EXHAUSTED, CommandError, shown
from millstream.storage.keyspace.cluster_slots import cluster_slot_of

cdef enum:
    # The most copies, and bytes of them, in one command or one turn of the timer: 1 to 2 ms.
    COPIES_MAX = 256
    COPIED_BYTES_MAX = 1 << 20
    LOOKED_AT_BYTES_MAX = 8 << 20  # of copies, by one TREDRIVE
    # A copy of a copy, and so on, this number of times: the entry stays dead. This ends cycles.
    HOPS_MAX = 8
    AGAIN_MS = 1000
    # The most entries of an ordered group that are looked at in a turn.
    ORDERED_LOOKS_MAX = 4096
    FIELDS = 9
    # Results of a copy besides COPIED: the stream takes none now; this entry can never be copied.
    NOT_NOW = 0
    NEVER_COPIED = -2

# The fields that every copy ends with, in this order.
cdef tuple NAMES = (
    b"dead_stream", b"dead_id", b"dead_group", b"dead_consumer", b"dead_deliveries", b"dead_reason",
    b"dead_text", b"dead_time", b"dead_hops",
)
FAILED, FATAL, TIMEOUT, EXPIRED = b"failed", b"fatal", b"timeout", b"expired"


cdef DeadLetterWriter dead_letter_writer(Context ctx, bytes key, Stream stream, Group group):
    cdef DeadLetterWriter made = DeadLetterWriter.__new__(DeadLetterWriter)
    made.ctx = ctx
    made.key = key
    made.stream = stream
    made.group = group
    made.left = Ids.__new__(Ids)
    return made


cpdef int end_due_deliveries(Context ctx, bytes key, Stream stream, Group group) except -1:
    """Copy the entries of a group whose last delivery has failed or that have expired, and the dead
    ones if it is time to try again: as many as one turn allows."""
    cdef DeadLetterWriter writer = dead_letter_writer(ctx, key, stream, group)
    cdef int64_t most = 4 * EFFECT_BYTES + COPIES_MAX * (EFFECT_BYTES + ID_WORD_BYTES)
    if ordered(group.pending) is not None:
        most += COPIES_MAX * (EFFECT_BYTES + ID_WORD_BYTES + len(key) + len(group.name))
    if not ctx.effects.has_room(most):
        return 0
    try:
        if group.rules.copy_at_ms <= ctx.steady_ms:
            writer.copy_dead()
        writer.end_due()
    finally:
        writer.finish()
    return 0


@cython.no_gc
@cython.freelist(2)
cdef class DeadLetterWriter:
    """Ends entries of one group. Call `finish` after them, which records what left the group, and what
    is dead."""

    def __dealloc__(self):
        free(self.items)

    # ------------------------------------------------------------ ending

    cdef int end(self, EntryId at_id, int64_t deliveries, tuple facts) except -1:
        """End an entry, pending or not, with this number of deliveries; facts: the reason, the
        consumer, the text of the last failure. Returns a code of TNACK."""
        cdef View view
        cdef Entry entry
        cdef int result = NOT_NOW
        if not self.stream.find(at_id, &view, &entry):
            self.leave(at_id)
            return GONE
        if not self.is_opened:
            self.open_target()
        if self.trouble is None and self.has_budget():
            result = self.copy(&view, &entry, deliveries, facts)
        if result == COPIED:
            return COPIED
        self.keep(at_id, deliveries, facts, result == NOT_NOW)
        return DEAD

    cdef int end_due(self) except -1:
        """End the entries whose last delivery has failed, and those that have expired, the earliest
        first. In an ordered group, an entry may wait for earlier ones of its key."""
        cdef OrderedPending keyed = ordered(self.group.pending)
        cdef bint any_wait = False
        cdef uint64_t ms, seq
        for ms, seq in earliest(
                self.group.pending.records, EXPIRE, self.ctx.steady_ms,
                COPIES_MAX if keyed is None else ORDERED_LOOKS_MAX, None, True):
            if not self.has_budget():
                any_wait = False  # the next turn continues at once
                break
            if not self.end_failed(EntryId(ms, seq)):
                any_wait = any_wait or self.group.pending.has(ms, seq)
        if keyed is not None:
            keyed.keys.ends_wait = any_wait
        return 0

    cdef bint end_failed(self, EntryId at_id) except -1:
        """End a pending entry: for its expiry, or for the failure of its last delivery; then later
        entries of its key that came with it are taken back. False if it was taken back itself, or must
        wait for earlier ones."""
        cdef PendingAt at
        cdef Pending* record = find_pending(self.group.pending.records, at_id, &at)
        cdef OrderedPending keyed = ordered(self.group.pending)
        cdef Consumer owner
        cdef int64_t deliveries
        cdef uint64_t failed_ms = NEVER
        if record == NULL:
            return False
        owner = self.group.pending.numbered(record.consumer)
        deliveries = self.group.pending.deliveries(record)
        if is_at_limit(self.group.pending.records, record):
            failed_ms = fails_ms(self.group.pending.records, record, True)
        reason = FAILED if record.waiting else TIMEOUT
        if expires_ms(self.group.pending.records, record) <= min(failed_ms, self.ctx.steady_ms):
            reason = EXPIRED
        elif keyed is not None:
            if not is_next(keyed, at_id):
                return False
            self.take_back(at_id)
        self.end(at_id, deliveries, (reason, b"" if owner is None else owner.name, b""))
        return True

    cdef int take_back(self, EntryId at_id) except -1:
        """Take back the later entries of its key that came with an entry whose last delivery has failed.
        The effect of giving it back does this again."""
        cdef OrderedPending keyed = ordered(self.group.pending)
        cdef View view
        cdef Entry entry
        if keyed is None or not has_later(keyed, at_id) or not self.stream.find(at_id, &view, &entry):
            return 0
        give_back(self.group.pending, at_id.ms, at_id.seq, b"=", self.ctx.steady_ms, 0)
        return self.ctx.change((WAIT, self.key, self.group.name, self.ctx.steady_ms, 0, b"=",
                                bytes(make_id(at_id.ms, at_id.seq, False))), None, 0)

    cdef int copy_dead(self) except -1:
        """Copy dead entries, the longest dead first."""
        cdef PendingAt at
        cdef EntryId at_id
        cdef View view
        cdef Entry entry
        cdef Pending* record
        cdef tuple facts
        cdef int result
        self.open_target()
        if self.trouble is not None:
            return 0
        for at_id.ms, at_id.seq in first_dead(self.group.pending, COPIES_MAX):
            if not self.has_budget():
                break
            record = find_pending(self.group.pending.records, at_id, &at)
            if not self.stream.find(at_id, &view, &entry):
                self.leave(at_id)
                continue
            facts = dead_facts(self.group.pending, at_id.ms, at_id.seq)
            result = self.copy(&view, &entry, self.group.pending.deliveries(record), facts)
            if result == NEVER_COPIED:
                set_dead(self.group.pending, at_id.ms, at_id.seq, facts, False)
                self.log(at_id, self.refusal)
            elif result == NOT_NOW:
                break
        return 0

    cdef bint has_budget(self) noexcept:
        """True if the command, or the turn of the timer, may copy more."""
        return self.made < COPIES_MAX and self.size_bytes < COPIED_BYTES_MAX

    # ------------------------------------------------------------ the copy

    cdef int open_target(self) except -1:
        """Find the dead letter stream; `trouble` says why it takes no copies now. It is created for
        the first copy."""
        self.is_opened = True
        self.target_key = dead_letter_of(self.group)
        if self.target_key is None:
            self.trouble = "the group has no DEADLETTER stream"
        elif self.target_key == self.key:
            self.trouble = "a stream cannot be its own dead letter stream"
        elif self.ctx.keyspace.clustered and cluster_slot_of(self.target_key) != cluster_slot_of(self.key):
            self.trouble = "it is in another slot: give both names the same {tag}"
        elif self.ctx.memory_error is not None:
            self.trouble = self.ctx.memory_error
        else:
            try:
                self.target = self.ctx.write_stream(self.target_key)
                if self.target is not None:
                    check_append(self.ctx, self.target)
            except CommandError as error:
                self.trouble = error.message
        return 0

    cdef int copy(self, const View* view, const Entry* entry, int64_t deliveries,
                  tuple facts) except -1:
        """Append the copy of an entry, which then leaves the group. Returns COPIED, NOT_NOW or
        NEVER_COPIED."""
        cdef Slice* items = self.space(2 * (<Py_ssize_t>entry.fields + FIELDS))
        cdef Py_ssize_t count = 2 * <Py_ssize_t>entry.fields
        cdef object _unpacked = entry_slices(view, entry, items)
        cdef int64_t hops = hops_of(items, count)
        cdef uint64_t payload
        if hops >= HOPS_MAX:
            return self.refuse_entry(f"it was copied {hops} times")
        if hops:
            count -= 2 * FIELDS
        self.put_facts(&items[count], entry, deliveries, facts, hops + 1)
        try:
            payload = payload_of(items, count + 2 * FIELDS)
        except CommandError as error:
            return self.refuse_entry(error.message)
        if self.append(count + 2 * FIELDS, payload) != COPIED:
            return NOT_NOW
        self.leave(EntryId(entry.ms, entry.seq))
        self.is_broken = False
        return self.count_copy(facts[0])

    cdef int count_copy(self, bytes reason) except -1:
        """Count a copy. Mostly all copies have the same reason."""
        if self.reason is not reason:
            self.flush_reason()
            self.reason = reason
        self.of_reason += 1
        return COPIED

    cdef int flush_reason(self) except -1:
        """Add the latest copies to those of their reason."""
        if self.of_reason:
            if self.copied is None:
                self.copied = {}
            self.copied[self.reason] = self.copied.get(self.reason, 0) + self.of_reason
            self.of_reason = 0
        return 0

    cdef int put_facts(self, Slice* items, const Entry* entry, int64_t deliveries, tuple facts,
                       int64_t hops) except -1:
        """Write the fields that a copy ends with. Their values are those of this writer, and `facts`."""
        cdef char* at = self.numbers
        cdef Py_ssize_t i
        for i in range(FIELDS):
            set_slice(&items[2 * i], NAMES[i])
        set_slice(&items[1], self.key)
        items[3] = Slice(at, format_id(at, entry.ms, entry.seq, False))
        at += items[3].size
        set_slice(&items[5], self.group.name)
        set_slice(&items[7], facts[1])
        at = put_number(&items[9], at, <uint64_t>deliveries)
        set_slice(&items[11], facts[0])
        set_slice(&items[13], facts[2])
        at = put_number(&items[15], at, self.ctx.now_ms)
        put_number(&items[17], at, <uint64_t>hops)
        return 0

    cdef int append(self, Py_ssize_t count, uint64_t payload) except -1:
        """Append the words in `items`, of this size, to the dead letter stream; NOT_NOW if this is
        refused."""
        cdef NewEntry made
        cdef Slice key = Slice(self.target_key, len(self.target_key))
        made.items = self.items
        made.count = count
        if not self.ctx.effects.has_room(
                2 * EFFECT_BYTES + len(self.target_key) + 12 * count + <int64_t>payload):
            self.trouble = "the journal has no space for it"
            return NOT_NOW
        try:
            if self.target is None:
                self.target = self.ctx.open_stream(self.target_key)
            check_append(self.ctx, self.target)
            new_id(self.ctx, self.target, &made.id)
        except CommandError as error:
            self.trouble = error.message
            return NOT_NOW
        if not self.is_grouped:
            self.is_grouped = True
            self.ctx.effects.open_group()
        # Until the entry has left the group, a failure must not keep only the copy.
        self.is_broken = True
        append_entry(self.ctx, &key, self.target, &made, False)
        self.made += 1
        self.size_bytes += payload
        return COPIED

    cdef int refuse_entry(self, str why) except 0:
        """Note that an entry can never be copied."""
        self.refusal = why
        return NEVER_COPIED

    cdef Slice* space(self, Py_ssize_t count) except NULL:
        """The array of words, with space for at least this number."""
        cdef Slice* moved
        if count > self.capacity:
            moved = <Slice*>realloc(self.items, count * sizeof(Slice))
            if moved == NULL:
                raise MemoryError("no memory for a dead letter")
            self.items = moved
            self.capacity = count
        return self.items

    # ------------------------------------------------------------ what becomes of the entry

    cdef int leave(self, EntryId at_id) except -1:
        """Remove an entry from the pending entries of the group."""
        if self.group.pending.acknowledge(at_id.ms, at_id.seq):
            self.left.add(at_id.ms, at_id.seq)
        return 0

    cdef int keep(self, EntryId at_id, int64_t deliveries, tuple facts,
                  bint may_be_copied) except -1:
        """Let an entry be dead."""
        cdef PendingAt at
        cdef const Pending* record = find_pending(self.group.pending.records, at_id, &at)
        cdef bytes count
        if record == NULL or self.group.pending.deliveries(record) != deliveries:
            count = b"%d" % deliveries
            give_back(self.group.pending, at_id.ms, at_id.seq, count, self.ctx.steady_ms, 0)
            self.ctx.change((WAIT, self.key, self.group.name, self.ctx.steady_ms, 0, count,
                             bytes(make_id(at_id.ms, at_id.seq, False))), None, 0)
        keep_dead(self.group.pending, at_id.ms, at_id.seq, facts)
        if not may_be_copied:
            set_dead(self.group.pending, at_id.ms, at_id.seq, facts, False)
        if self.dead is None:
            self.dead = {}
        self.dead.setdefault(facts, []).append((at_id.ms, at_id.seq))
        if self.target_key is not None:
            self.log(at_id, self.trouble if may_be_copied else self.refusal)
        return 0

    cdef int log(self, EntryId at_id, str why) except -1:
        """Log that an entry stays dead, at most one line per second; why None: it is copied in a later
        turn."""
        cdef uint64_t count
        if why is None:
            return 0
        count = self.ctx.keyspace.dead_letters.unlogged_count(self.ctx.steady_ms)
        if count:
            more = f", and {count - 1} more since the last such line" if count > 1 else ""
            self.ctx.server.warn(
                f"entry {make_id(at_id.ms, at_id.seq, False)} of stream '{shown(self.key)}' is dead in "
                f"group '{shown(self.group.name)}' and is not copied to '{shown(self.target_key)}'{more}: "
                f"{why}")
        return 0

    cdef int finish(self) except -1:
        """Record what left the group and what is dead, and schedule the next try."""
        cdef Context ctx = self.ctx
        cdef uint64_t count
        cdef bytes reason
        if self.left.count:
            record_ack(ctx.effects, ctx.db.index, self.key, self.group.name, self.left)
            ctx.count_change(None, None, self.left.count)
        if self.copied is None and self.of_reason:
            self.record_copied(self.reason, self.of_reason)
        elif self.copied is not None:
            self.flush_reason()
            for reason, count in self.copied.items():
                self.record_copied(reason, count)
        if self.dead is not None:
            self.record_dead()
        if self.is_grouped and not self.is_broken:
            ctx.effects.close_group()
        self.schedule()
        return 0

    cdef int record_dead(self) except -1:
        """Record the entries that are dead."""
        cdef Context ctx = self.ctx
        for (reason, consumer, text), ids in self.dead.items():
            words = [bytes(make_id(ms, seq, False)) for ms, seq in ids]
            ctx.change((DEAD_EFFECT, self.key, self.group.name, reason, consumer, text, *words),
                       None, <uint64_t>len(ids))
            ctx.keyspace.dead_letters.note_dead(ctx.db.index, self.key, self.group.name)
        return 0

    cdef int record_copied(self, bytes reason, uint64_t count) except -1:
        """Count and record copies: COPIED key group reason number."""
        cdef Effects effects = self.ctx.effects
        count_copies(self.group, reason, count)
        self.ctx.keyspace.dead_letters.copied += count
        if not effects.enabled:
            return 0
        effects.begin(self.ctx.db.index, COPIED_CODE, 4)
        effects.put_bytes(self.key)
        effects.put_bytes(self.group.name)
        effects.put_bytes(reason)
        effects.put_number(count)
        return effects.finish()

    cdef int schedule(self) except -1:
        """Set the time at which dead entries are copied next."""
        cdef uint64_t now_ms = self.ctx.steady_ms
        cdef uint64_t moment = NEVER
        if not self.is_opened:
            return 0
        if self.target_key is not None and first_dead(self.group.pending, 1):
            moment = now_ms
            if self.trouble is not None:
                moment = self.group.rules.copy_at_ms
                if moment <= now_ms or moment == NEVER:
                    moment = now_ms + AGAIN_MS
        self.group.rules.copy_at_ms = moment
        return 0


cdef inline void set_slice(Slice* item, bytes text) noexcept:
    item.ptr = PyBytes_AS_STRING(text)
    item.size = PyBytes_GET_SIZE(text)


cdef inline char* put_number(Slice* item, char* at, uint64_t number) noexcept:
    """Write a number and set a word to it; returns the end."""
    item.ptr = at
    item.size = format_u64(at, number)
    return at + item.size


cdef int64_t hops_of(const Slice* items, Py_ssize_t count) except -1:
    """The number of times that an entry with these words was copied; 0 if it is no copy."""
    cdef const Slice* last
    cdef int64_t hops
    cdef bytes name
    cdef Py_ssize_t i
    if count <= 2 * FIELDS:
        return 0
    last = &items[count - 2 * FIELDS]
    for i in range(FIELDS - 1, -1, -1):
        name = NAMES[i]
        if last[2 * i].size != len(name) or memcmp(last[2 * i].ptr, <const char*>name, len(name)):
            return 0
    if parse_int(last[2 * FIELDS - 1].ptr, last[2 * FIELDS - 1].size, &hops) < 0 or hops < 1:
        return 0
    return hops


# ---------------------------------------------------------------- for TREDRIVE

def entries_after(Stream stream not None, uint64_t ms, uint64_t seq, uint64_t count) -> list:
    """Up to `count` entries after an ID: (ms, seq) and, if it is a copy, its words; otherwise None. At
    most LOOKED_AT_BYTES_MAX of copies, and always one entry."""
    cdef uint64_t size_bytes = 0
    cdef DeadLetterWriter space = DeadLetterWriter.__new__(DeadLetterWriter)
    cdef EntryId start = EntryId(ms, seq)
    cdef Walk walk
    cdef Entry* entry
    cdef Slice* items
    cdef list found = []
    if not step_up(&start):
        return found
    stream.walk_start(&walk, start)
    while (<uint64_t>len(found) < count and size_bytes < LOOKED_AT_BYTES_MAX
           and stream.walk_next(&walk)):
        entry = &walk.cursor.entry
        items = space.space(2 * <Py_ssize_t>entry.fields)
        _unpacked = entry_slices(&walk.view, entry, items)
        words = None
        if hops_of(items, 2 * <Py_ssize_t>entry.fields):
            words = entry_words(&walk.view, entry)
            size_bytes += sum(map(len, words))
        found.append(((entry.ms, entry.seq), words))
    return found


def check_appends(Context ctx not None, Stream stream not None, uint64_t count) -> None:
    """Refuse to append the original fields of this many copies."""
    if ctx.memory_error is not None:
        raise CommandError(ctx.memory_error)
    check_append(ctx, stream)
    if stream.last_ms == NEVER and stream.last_seq > NEVER - count:
        raise CommandError(EXHAUSTED)


def append_words(Context ctx not None, bytes key not None, Stream stream not None,
                 list words not None) -> None:
    """Append an entry with these names and values."""
    cdef DeadLetterWriter space = DeadLetterWriter.__new__(DeadLetterWriter)
    cdef Slice key_slice = Slice(key, len(key))
    cdef NewEntry made
    cdef Py_ssize_t i
    made.count = len(words)
    made.items = space.space(made.count)
    for i in range(made.count):
        set_slice(&made.items[i], words[i])
    new_id(ctx, stream, &made.id)
    append_entry(ctx, &key_slice, stream, &made, False)
