# cython: language_level=3, cdivision=True, initializedcheck=False
"""Validates a block: checks every length and offset in its bytes.

The readers of the layout (`block`) do not validate. Bytes from a file or a socket are checked here
first, so no bytes from any source can make a reader leave its block. `first_fault` checks a block
entry by entry and describes the first fault. Nearly every block is valid, and a start checks
millions of entries, so `fits` runs first. `fits` only returns yes or no, and walks two ranges
between checkpoints at the same time. Each step of a walk depends on the length that the previous
step read; with two walks the processor can overlap their steps.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from millstream.entry_id cimport id_less
from millstream.storage.blocks.layout cimport (
    AS_WORD, AS_WORD_AND_TEXT, CHECKPOINT_EVERY, FORM_ANCHOR, FORM_LATER_MS, FORM_NEXT_MS,
    FORM_NEXT_SEQ, REF_LITERAL, REF_PLAIN, SETS_MAX, WORD_BYTES_MAX, View, bulk_size, read_u16,
    read_varint, word_start,
)


cdef const char* find_fault(const View* view, uint32_t* entry) noexcept nogil:
    """NULL when every length and offset is valid; otherwise the fault, with its entry (`count` when
    the fault is in no entry). A block without a fault can be read without leaving the block."""
    if fits(view):
        return NULL
    return first_fault(view, entry)


cdef int check_view(const View* view) except -1:
    """ValueError when find_fault finds a fault."""
    cdef uint32_t entry
    cdef const char* fault = find_fault(view, &entry)
    if fault != NULL:
        raise ValueError(fault_text(fault, entry, view.count))
    return 0


cdef str fault_text(const char* fault, uint32_t entry, uint32_t count):
    """The sentence for a fault from find_fault or view_at."""
    where = "" if entry >= count else f" entry {entry}:"
    return f"block:{where} {fault.decode()}"


# ---------------------------------------------------------------- faults

cdef inline const uint8_t* checked_varint(const uint8_t* at, const uint8_t* end,
                                          uint64_t* out) noexcept nogil:
    """Like read_varint; NULL when the number does not end before `end`."""
    cdef const uint8_t* stop = at
    if at < end and at[0] < 128:
        out[0] = at[0]
        return at + 1
    while stop < end and stop[0] >= 128 and stop - at < 10:
        stop += 1
    if stop >= end or stop - at >= 10:
        return NULL
    return read_varint(at, out)


cdef inline const uint8_t* check_name(const uint8_t* at, const uint8_t* stop) noexcept nogil:
    """Check one field name, a bulk string after its length; return the position after it, or
    NULL."""
    cdef uint64_t size
    cdef uint64_t length = 0
    cdef const uint8_t* digit
    at = checked_varint(at, stop, &size)
    if at == NULL or size < 6 or size > <uint64_t>(stop - at) or at[0] != c'$':
        return NULL
    digit = at + 1
    while digit < at + size - 3 and 48 <= digit[0] <= 57 and length < size:
        length = length * 10 + digit[0] - 48
        digit += 1
    if (digit[0] != c'\r' or digit[1] != c'\n' or at[size - 2] != c'\r'
            or at[size - 1] != c'\n'):
        return NULL
    if length >= size or bulk_size(<Py_ssize_t>length) != size or digit + 4 + length != at + size:
        return NULL
    return at + size


cdef const uint8_t* check_definition(const uint8_t* at, const uint8_t* end, bint plain,
                                     uint64_t* fields) noexcept nogil:
    """Check one field-name set, whose names are `plain` or bulk strings; return the position after
    it, or NULL."""
    cdef uint64_t names_size
    cdef uint64_t _
    cdef const uint8_t* stop
    at = checked_varint(at, end, fields)
    if at == NULL or fields[0] == 0:
        return NULL
    at = checked_varint(at, end, &names_size)
    if at == NULL or names_size > <uint64_t>(end - at):
        return NULL
    stop = at + names_size
    if plain:
        return stop if check_values(at, stop, fields[0]) == stop else NULL
    for _ in range(fields[0]):
        at = check_name(at, stop)
        if at == NULL:
            return NULL
    return at if at == stop else NULL


cdef const uint8_t* check_values(const uint8_t* at, const uint8_t* end,
                                 uint64_t fields) noexcept nogil:
    """Check an entry's values; return the position after them, or NULL."""
    cdef uint64_t number
    cdef uint64_t _
    for _ in range(fields):
        at = checked_varint(at, end, &number)
        if at == NULL or number > <uint64_t>(end - at):
            return NULL
        at += number
    return at


cdef const uint8_t* check_packed(const View* view, const uint8_t* at, const uint8_t* end,
                                 uint64_t fields) noexcept nogil:
    """Check an entry's packed values; return the position after them, or NULL."""
    cdef uint64_t number
    cdef uint64_t _
    cdef uint32_t how
    at = checked_varint(at, end, &number)
    if at == NULL or number > <uint64_t>(end - at):
        return NULL
    end = at + number
    for _ in range(fields):
        at = checked_varint(at, end, &number)
        if at == NULL:
            return NULL
        how = number & 3
        number >>= 2
        if how == AS_WORD or how == AS_WORD_AND_TEXT:
            if number >= read_u16(view.words):
                return NULL
            if how == AS_WORD:
                continue
            at = checked_varint(at, end, &number)
        if at == NULL or number > <uint64_t>(end - at):
            return NULL
        at += number
    return at if at == end else NULL


cdef bint check_dictionary(const View* view) noexcept nogil:
    """Check the words of packed values: their places, their frames, and that none is too long."""
    cdef uint32_t count = read_u16(view.words)
    cdef uint32_t start = 4 + 2 * count
    cdef uint32_t end
    cdef uint32_t digits
    cdef const uint8_t* word
    cdef uint64_t size
    cdef uint32_t i
    if word_start(view.words, 0) != start:
        return False
    for i in range(count):
        end = word_start(view.words, i + 1)
        if end < start or end > view.words_size:
            return False
        word = view.words + start
        digits = 1 if end - start < 16 else 2
        if end - start < 6 or end - start > WORD_BYTES_MAX + 7:
            return False
        size = end - start - 5 - digits
        if (word[0] != c'$' or word[digits] != 48 + size % 10 or word[digits + 1] != c'\r'
                or word[digits + 2] != c'\n' or word[end - start - 2] != c'\r'
                or word[end - start - 1] != c'\n' or (digits == 1 and size > 9)
                or (digits == 2 and (size < 10 or word[1] != 48 + size // 10))):
            return False
        start = end
    return start == view.words_size


cdef const char* check_tables(const View* view) noexcept nogil:
    cdef uint32_t i
    if view.set_count > SETS_MAX or view.node_count == 0 or view.live > view.count:
        return b"counts do not fit"
    for i in range(view.node_count - 1):
        if view.nodes[i] >= view.count or view.nodes[i] == 0 or (
                i and view.nodes[i] <= view.nodes[i - 1]):
            return b"node table is out of order"
    if view.words != NULL and not check_dictionary(view):
        return b"its dictionary is malformed"
    return NULL


cdef struct Scan:
    # The walk of first_fault: its position, the last ID, and the sets that were defined before.
    const uint8_t* at
    const uint8_t* end
    uint64_t ms
    uint64_t seq
    uint32_t live
    uint32_t known
    uint64_t[SETS_MAX] set_fields


cdef const char* first_fault(const View* view, uint32_t* entry) noexcept nogil:
    """Like find_fault, entry by entry."""
    cdef Scan scan
    cdef uint32_t index
    cdef const char* fault = check_tables(view)
    entry[0] = view.count
    if fault != NULL:
        return fault
    scan.at = view.entries
    scan.end = view.entries + view.size
    scan.ms, scan.seq = view.first_ms, view.first_seq - 1
    scan.live = scan.known = 0
    for index in range(view.count):
        fault = scan_entry(&scan, view, index)
        if fault != NULL:
            entry[0] = index
            return fault
    if scan.at != scan.end or scan.known != view.set_count:
        return b"entries do not fill the block"
    if scan.live != view.live or scan.ms != view.last_ms or scan.seq != view.last_seq:
        return b"counts or last id do not fit the entries"
    return NULL


cdef const char* scan_entry(Scan* scan, const View* view, uint32_t index) noexcept nogil:
    """Pass one entry; return its fault, or NULL."""
    cdef uint64_t fields
    cdef uint32_t head
    cdef const char* fault
    if scan.at >= scan.end:
        return b"entries end too early"
    if index and index % CHECKPOINT_EVERY == 0 and (
            view.checkpoints[index // CHECKPOINT_EVERY - 1] != scan.at - view.entries):
        return b"its checkpoint is wrong"
    head = scan.at[0]
    scan.live += not head >> 7
    scan.at += 1
    fault = scan_id(scan, view, index, (head >> 5) & 3)
    if fault == NULL:
        fault = scan_names(scan, view, head & 31, &fields)
    if fault != NULL:
        return fault
    if view.words != NULL:
        scan.at = check_packed(view, scan.at, scan.end, fields)
    else:
        scan.at = check_values(scan.at, scan.end, fields)
    if scan.at == NULL:
        return b"a value runs past the end"
    return NULL


cdef const char* scan_id(Scan* scan, const View* view, uint32_t index,
                         uint32_t form) noexcept nogil:
    """Pass the ID of an entry, which has this encoding."""
    cdef uint64_t before_ms = scan.ms
    cdef uint64_t before_seq = scan.seq
    cdef uint64_t number
    if form == FORM_NEXT_SEQ:
        scan.seq += 1
    elif form == FORM_NEXT_MS:
        scan.ms, scan.seq = scan.ms + 1, 0
    else:
        scan.at = checked_varint(scan.at, scan.end, &number)
        if scan.at != NULL and form == FORM_LATER_MS:
            scan.ms, scan.seq = scan.ms + number, 0
        elif scan.at != NULL:
            scan.ms = view.first_ms + number
            scan.at = checked_varint(scan.at, scan.end, &scan.seq)
        if scan.at == NULL:
            return b"a number runs past the end"
    if index == 0:
        if scan.ms != view.first_ms or scan.seq != view.first_seq:
            return b"it is not the first id"
        return NULL
    if index % CHECKPOINT_EVERY == 0 and form != FORM_ANCHOR:
        return b"it does not carry its id"
    if not id_less(before_ms, before_seq, scan.ms, scan.seq):
        return b"its id does not rise"
    return NULL


cdef const char* scan_names(Scan* scan, const View* view, uint32_t ref,
                            uint64_t* fields) noexcept nogil:
    """Pass the field names of an entry, which refers to set `ref`; `fields` becomes their number."""
    if ref < scan.known:
        fields[0] = scan.set_fields[ref]
        return NULL
    if ref == REF_PLAIN and scan.known != SETS_MAX and view.words == NULL or ref < REF_PLAIN and (
            ref != scan.known or ref >= view.set_count
            or view.sets[ref] != scan.at - view.entries):
        return b"it refers to an unknown field-name set"
    scan.at = check_definition(scan.at, scan.end, ref == REF_PLAIN, fields)
    if scan.at == NULL:
        return b"its field names are malformed"
    if ref < REF_PLAIN:
        scan.set_fields[ref] = fields[0]
        scan.known += 1
    return NULL


# ---------------------------------------------------------------- whether all fits

# first_fault handles larger parts of an ID. Below this limit no step can overflow.
cdef uint64_t ID_PART_MAX = <uint64_t>1 << 62


cdef struct Sets:
    # For each field-name set of a block: its number of fields, and the size of its definition.
    uint64_t[SETS_MAX] fields
    uint32_t[SETS_MAX] sizes


cdef struct Lane:
    # A range that begins at a checkpoint: the ID of the entry before (ms, seq), and the number of
    # sets defined before.
    uint64_t ms
    uint64_t seq
    uint32_t known
    uint32_t deleted
    # The state at its start, its first ID, and its end.
    const uint8_t* start
    const uint8_t* end
    uint64_t first_ms
    uint64_t first_seq
    uint32_t known_first


cdef bint fits(const View* view) noexcept nogil:
    """True only if first_fault would find no fault; may be False for a valid block. (`index` cannot
    overflow: an entry has at least two bytes, and `size` is a 32-bit number.)"""
    cdef Sets sets
    cdef Lane done, first, second
    cdef const uint8_t* at
    cdef const uint8_t* other
    cdef uint32_t deleted = 0
    cdef uint32_t index = 0
    cdef uint32_t _
    if view.words != NULL or check_tables(view) != NULL or not read_sets(view, &sets):
        return False
    done.end = view.entries
    done.known = 0
    done.ms = done.seq = 0
    while index < view.count:
        at = begin_lane(view, &sets, index, &first)
        if index + 2 * CHECKPOINT_EVERY <= view.count:
            other = begin_lane(view, &sets, index + CHECKPOINT_EVERY, &second)
            for _ in range(CHECKPOINT_EVERY - 1):
                if at == NULL or other == NULL:
                    return False
                at = pass_entry(at, &first, view, &sets)
                other = pass_entry(other, &second, view, &sets)
            if not end_lane(at, &first, &done, view):
                return False
            deleted += first.deleted
            done, first, at = first, second, other
            index += CHECKPOINT_EVERY
        else:
            for _ in range(min(<uint32_t>CHECKPOINT_EVERY, view.count - index) - 1):
                if at == NULL:
                    return False
                at = pass_entry(at, &first, view, &sets)
        if not end_lane(at, &first, &done, view):
            return False
        deleted += first.deleted
        done = first
        index += CHECKPOINT_EVERY
    return (done.end == view.entries + view.size and done.known == view.set_count
            and done.ms == view.last_ms and done.seq == view.last_seq
            and view.count - deleted == view.live)


cdef bint read_sets(const View* view, Sets* sets) noexcept nogil:
    cdef const uint8_t* at
    cdef const uint8_t* after
    cdef uint32_t i
    for i in range(view.set_count):
        if view.sets[i] >= view.size or (i and view.sets[i] <= view.sets[i - 1]):
            return False
        at = view.entries + view.sets[i]
        after = check_definition(at, view.entries + view.size, False, &sets.fields[i])
        if after == NULL:
            return False
        sets.sizes[i] = <uint32_t>(after - at)
    return True


cdef const uint8_t* begin_lane(const View* view, const Sets* sets, uint32_t index,
                               Lane* lane) noexcept nogil:
    """Begin a lane at entry `index`, which has a checkpoint; return the position after that entry,
    or NULL if it is not valid."""
    cdef const uint8_t* at
    cdef uint32_t offset = 0
    lane.ms, lane.seq = view.first_ms, view.first_seq - 1
    lane.known = lane.deleted = 0
    if index:
        offset = view.checkpoints[index // CHECKPOINT_EVERY - 1]
        if offset >= view.size or (view.entries[offset] >> 5) & 3 != FORM_ANCHOR:
            return NULL
    while lane.known < view.set_count and view.sets[lane.known] < offset:
        lane.known += 1
    lane.known_first = lane.known
    lane.start = view.entries + offset
    at = pass_any(lane.start, lane, view, sets)
    lane.first_ms, lane.first_seq = lane.ms, lane.seq
    if index == 0 and (lane.ms != view.first_ms or lane.seq != view.first_seq):
        return NULL
    return at


cdef bint end_lane(const uint8_t* at, Lane* lane, const Lane* before,
                   const View* view) noexcept nogil:
    """End a lane; return whether its start matches the end of the lane before it."""
    lane.end = at
    return at != NULL and lane.start == before.end and lane.known_first == before.known and (
        lane.start == view.entries
        or id_less(before.ms, before.seq, lane.first_ms, lane.first_seq))


cdef inline const uint8_t* pass_entry(const uint8_t* at, Lane* lane, const View* view,
                                      const Sets* sets) noexcept nogil:
    """The position after the lane's next entry, or NULL when the entry is not valid. This function
    handles typical entries itself: consecutive ID, known names, short values."""
    cdef const uint8_t* end = view.entries + view.size
    cdef uint64_t fields, size, is_next_ms
    cdef uint32_t head
    if at >= end:
        return NULL
    head = at[0]
    if head >= FORM_LATER_MS << 5 or (head & 31) >= lane.known:
        return pass_any(at, lane, view, sets)
    # Without a branch, because the processor cannot predict it.
    is_next_ms = head >> 5
    lane.ms += is_next_ms
    lane.seq = (lane.seq + 1) & (is_next_ms - 1)
    fields = sets.fields[head & 31]
    at += 1
    if <uint64_t>(end - at) < fields * 128:
        return check_values(at, end, fields)
    while fields:
        size = at[0]
        if size >= 128:
            return check_values(at, end, fields)
        at += size + 1
        fields -= 1
    return at


cdef const uint8_t* pass_any(const uint8_t* at, Lane* lane, const View* view,
                             const Sets* sets) noexcept nogil:
    """Like pass_entry, for all entries."""
    cdef const uint8_t* end = view.entries + view.size
    cdef const uint8_t* entry = at
    cdef uint64_t before_ms = lane.ms
    cdef uint64_t before_seq = lane.seq
    cdef uint64_t fields
    cdef uint64_t number = 0
    cdef uint32_t ref, form
    if at >= end:
        return NULL
    ref = at[0] & 31
    form = (at[0] >> 5) & 3
    lane.deleted += at[0] >> 7
    at += 1
    if form == FORM_NEXT_SEQ:
        lane.seq += 1
    elif form == FORM_NEXT_MS:
        lane.ms, lane.seq = lane.ms + 1, 0
    else:
        at = checked_varint(at, end, &number)
        if at == NULL:
            return NULL
        if form == FORM_LATER_MS:
            lane.ms, lane.seq = lane.ms + number, 0
        else:
            lane.ms = view.first_ms + number
            at = checked_varint(at, end, &lane.seq)
            if at == NULL:
                return NULL
    if entry != lane.start and not id_less(before_ms, before_seq, lane.ms, lane.seq):
        return NULL
    if (lane.ms | lane.seq | number) >= ID_PART_MAX:
        return NULL
    if ref < lane.known:
        fields = sets.fields[ref]
    elif ref >= REF_PLAIN and (ref == REF_LITERAL or lane.known == SETS_MAX):
        at = check_definition(at, end, ref == REF_PLAIN, &fields)
        if at == NULL:
            return NULL
    elif ref == lane.known and ref < view.set_count and view.sets[ref] == at - view.entries:
        fields = sets.fields[ref]
        at += sets.sizes[ref]
        lane.known += 1
    else:
        return NULL
    return check_values(at, end, fields)
