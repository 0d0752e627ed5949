# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Filters of entries by the values of their fields (WHERE).

Names are looked up once for each field-name set of a block, not for each entry: a set becomes a short
list of values to look at. A block in which no set has all the fields is skipped, unless it has entries
with names of their own. Values are compared where they are; only packed ones of some forms are
unpacked first.

Where values are not packed, an entry that matches contains the bytes of each value that EQ requires.
A search for these bytes is several times as fast as a look at each entry, so it comes first.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from millstream.encoding cimport Slice
from millstream.entry_id cimport id_less
from millstream.storage.blocks.entry_filter cimport (
    CONDITIONS_MAX, MATCH, NO_MATCH, OUT_OF_WORK, Condition, Look,
)
from millstream.storage.blocks.layout cimport (
    AS_TEXT, AS_WORD, CHECKPOINT_EVERY, REF_PLAIN, SETS_MAX, SLACK, Cursor, Entry, Head, Packed, View,
    checkpoint_count, cursor_checkpoint, cursor_next, cursor_start, next_name, next_packed, next_word,
    read_entry, read_varint, skip_values, unpacked_value, write_varint,
)
from millstream.storage.blocks.numbers cimport Bound, Number, compare_to_bound, read_bound, read_number

cdef uint64_t ONES = 0x0101010101010101ULL
cdef uint64_t HIGH_BITS = 0x8080808080808080ULL

cdef enum:
    EQ
    PREFIX
    IN
    BETWEEN
    # A decimal with more digits takes much longer to read.
    DIGITS_QUICK = 16
    # Matches are found by their bytes if there are at least two, and by at most 64 of them.
    NEEDLE_LEAST = 2
    NEEDLE_MOST = 64
    # Looks at each entry are faster if more than a quarter of the entries have the needle.
    FEW = 4
    # A search looks at 32 bytes in the time of a unit of work.
    SCANNED_SHIFT = 5
    # What is known about a packed block (`Head.own_names`).
    NOT_KNOWN = 0
    ALL_NUMBERED = 1
    SOME_OWN = 2

cdef dict OPERATORS = {b"EQ": EQ, b"PREFIX": PREFIX, b"IN": IN, b"BETWEEN": BETWEEN}

# How many words follow each operator; COUNTED: a number, and as many words as it says.
COUNTED = -1
OPERANDS = {b"EQ": 1, b"PREFIX": 1, b"IN": COUNTED, b"BETWEEN": 2}


def is_bound(bytes word not None) -> bool:
    """True if a word is a bound of BETWEEN: a number, -inf or +inf, with `(` before it if the bound
    itself is excluded."""
    cdef Bound bound
    cdef bint excluded
    return take_bound(word, &bound, &excluded)


cdef bint take_bound(bytes word, Bound* out, bint* excluded) except -1:
    excluded[0] = word[:1] == b"("
    return read_bound(word[1:] if excluded[0] else word, out)


cdef inline Slice slice_of(bytes word):
    cdef Slice made
    made.ptr = PyBytes_AS_STRING(word)
    made.size = PyBytes_GET_SIZE(word)
    return made


cdef inline int compare_texts(const char* text, Py_ssize_t size, const Slice* other) noexcept nogil:
    """Compare by size, then by bytes: the order of IN's values."""
    if size != other.size:
        return -1 if size < other.size else 1
    return memcmp(text, other.ptr, size)


cdef bint is_unexamined(const View* view) noexcept:
    """True if `has_own_names` has to walk through the block."""
    return view.words != NULL and (<Head*>view.checkpoints - 1).own_names == NOT_KNOWN


cdef bint has_own_names(const View* view) noexcept:
    """True if entries of a block may have names of their own. The answer for a packed block, which is
    a sealed one, is kept in its header."""
    cdef Head* head
    cdef Cursor cursor
    if view.words == NULL:
        return view.set_count == SETS_MAX
    head = <Head*>view.checkpoints - 1
    if head.own_names == NOT_KNOWN:
        head.own_names = ALL_NUMBERED
        cursor_start(&cursor, view)
        while cursor.index < view.count:
            if cursor.at[0] & 31 >= REF_PLAIN:
                head.own_names = SOME_OWN
                break
            cursor_next(&cursor, view)
    return head.own_names == SOME_OWN


cdef void approach(Cursor* cursor, const View* view, const uint8_t* place) noexcept nogil:
    """Move to the last checkpoint before a place, if the cursor is before it."""
    cdef uint32_t most = checkpoint_count(view.count)
    cdef uint32_t following = cursor.index // CHECKPOINT_EVERY + 1
    cdef uint32_t found = 0
    while following <= most and view.entries + view.checkpoints[following - 1] <= place:
        found = following
        following += 1
    if found:
        cursor_checkpoint(cursor, view, found)


cdef inline uint64_t eight(const uint8_t* at) noexcept nogil:
    cdef uint64_t made
    memcpy(&made, at, 8)
    return made


cdef const uint8_t* find_needle(const uint8_t* at, const uint8_t* end, const uint8_t* needle,
                                Py_ssize_t size) noexcept nogil:
    """The first place of a needle of at least two bytes; NULL if there is none. Eight places are
    looked at together: those with its first two bytes and its last one are compared."""
    cdef const uint8_t* stop = end - size  # the last place
    cdef uint64_t first = needle[0] * ONES
    cdef uint64_t second = needle[1] * ONES
    cdef uint64_t last = needle[size - 1] * ONES
    cdef uint64_t differ
    cdef Py_ssize_t place
    while at + 7 <= stop:
        differ = (eight(at) ^ first) | (eight(at + 1) ^ second) | (eight(at + size - 1) ^ last)
        if (differ - ONES) & ~differ & HIGH_BITS:
            for place in range(8):
                if at[place] == needle[0] and memcmp(at + place, needle, size) == 0:
                    return at + place
        at += 8
    while at <= stop:
        if at[0] == needle[0] and memcmp(at, needle, size) == 0:
            return at
        at += 1
    return NULL


@cython.final
cdef class EntryFilter:
    """Conditions that must all hold. `words` are those of the conditions as WHERE gives them, without
    their number, with operators in upper case; `count` is the number of conditions. ValueError if
    they are not valid.
    """

    def __init__(self, list words not None):
        cdef Py_ssize_t at = 0
        words = self.words = list(words)  # a copy: conditions point into its items
        self.operands = []
        while at < len(words):
            if self.count == CONDITIONS_MAX:
                raise ValueError(f"more than {CONDITIONS_MAX} conditions")
            at += self.add_condition(&self.conditions[self.count], words, at)
            self.count += 1
        if not self.count:
            raise ValueError("no condition")
        self.set_needle()

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(CONDITIONS_MAX):
            PyMem_Free(self.conditions[i].values)
        PyMem_Free(self.looks)
        PyMem_Free(self.space.bytes)

    cdef int add_condition(self, Condition* condition, list words, Py_ssize_t at) except -1:
        """Set a condition from the words from `at` on; return the number of its words."""
        cdef list operands
        cdef Py_ssize_t i
        cdef Py_ssize_t size = 4 if words[at + 1:at + 2] == [b"BETWEEN"] else 3
        if len(words) < at + size or words[at + 1] not in OPERATORS:
            raise ValueError("a condition is not complete, or its operator is unknown")
        condition.how = OPERATORS[words[at + 1]]
        condition.field = slice_of(words[at])
        if condition.how == BETWEEN:
            if not take_bound(words[at + 2], &condition.low, &condition.above) or (
                    not take_bound(words[at + 3], &condition.high, &condition.below)):
                raise ValueError("a bound is not a number")
            return 4
        operands = [words[at + 2]]
        if condition.how == IN:
            size = 3 + int(words[at + 2])
            operands = sorted(words[at + 3:at + size], key=lambda word: (len(word), word))
            if len(operands) != size - 3:
                raise ValueError("IN has fewer values than its number")
        self.operands.append(operands)
        condition.count = len(operands)
        condition.values = <Slice*>PyMem_Malloc(max(1, len(operands)) * sizeof(Slice))
        if condition.values == NULL:
            raise MemoryError("no memory for the values of a condition")
        for i in range(len(operands)):
            condition.values[i] = slice_of(operands[i])
        return size

    cdef int set_needle(self) except -1:
        """Choose the longest value that a condition requires, as an entry has it: after its size,
        which PREFIX does not know."""
        cdef uint8_t[16] size
        cdef Condition* condition
        cdef bytes found
        cdef Py_ssize_t i
        self.needle = b""
        for i in range(self.count):
            condition = &self.conditions[i]
            if condition.how == BETWEEN or condition.count > 1:
                continue
            found = condition.values[0].ptr[:condition.values[0].size]
            if condition.how != PREFIX:
                found = size[:write_varint(size, len(found)) - size] + found
            if len(found) > len(self.needle):
                self.needle = found[:NEEDLE_MOST]
        self.needle_size = len(self.needle)
        return 0

    # ------------------------------------------------------------ names

    cdef bint begin(self, const View* view) except -1:
        """Begin with the entries of a block; False if none of them can match."""
        cdef const uint8_t* at
        cdef uint64_t fields, size
        cdef uint32_t i
        cdef uint32_t end = 0
        cdef bint possible = False
        self.set_count = view.set_count
        self.candidates = 0
        self.work += 8
        for i in range(view.set_count):
            self.starts[i] = end
            at = read_varint(view.entries + view.sets[i], &fields)
            at = read_varint(at, &size)
            self.names[i] = at
            self.resolve(at, <uint32_t>fields, False, &end)
            possible = possible or end > self.starts[i]
        self.starts[view.set_count] = end
        if possible:
            return True
        if is_unexamined(view):
            self.work += view.count
        return has_own_names(view)

    cdef int resolve(self, const uint8_t* names, uint32_t fields, bint plain,
                     uint32_t* end) except -1:
        """Add the looks for a list of names from `end` on; none if a field is missing."""
        cdef uint32_t start = end[0]
        cdef uint32_t field
        cdef Slice name
        cdef Py_ssize_t i
        self.work += fields
        for field in range(fields):
            names = next_name(names, plain, &name)
            for i in range(self.count):
                if name.size == self.conditions[i].field.size and memcmp(
                        name.ptr, self.conditions[i].field.ptr, name.size) == 0:
                    self.add_look(end[0], field, i)
                    end[0] += 1
        if not self.has_looks_for_all(start, end[0]):
            end[0] = start
        return 0

    cdef int add_look(self, uint32_t at, uint32_t field, int condition) except -1:
        cdef Look* looks
        if at == self.look_capacity:
            looks = <Look*>PyMem_Realloc(self.looks, (2 * <size_t>at + 16) * sizeof(Look))
            if looks == NULL:
                raise MemoryError("no memory for the fields of a filter")
            self.looks = looks
            self.look_capacity = 2 * at + 16
        self.looks[at].field = field
        self.looks[at].condition = <uint8_t>condition
        self.looks[at].is_last = False
        return 0

    cdef bint has_looks_for_all(self, uint32_t start, uint32_t end) noexcept:
        """True if each condition has a look; its last one is marked."""
        cdef uint32_t seen = 0
        while end > start:
            end -= 1
            if not seen & (<uint32_t>1 << self.looks[end].condition):
                self.looks[end].is_last = True
                seen |= <uint32_t>1 << self.looks[end].condition
        return seen == (<uint32_t>1 << self.count) - 1

    # ------------------------------------------------------------ values

    cdef bint matches(self, const View* view, const Entry* entry) except -1:
        """True if an entry of the block that was begun matches. Deletion is not looked at."""
        cdef uint32_t i
        cdef uint32_t end
        self.work += 1
        for i in range(self.set_count):
            if entry.names == self.names[i]:
                return self.passes(view, entry, self.starts[i], self.starts[i + 1])
        # Names of its own: their looks come after those of the sets.
        end = self.starts[self.set_count]
        self.resolve(entry.names, entry.fields, entry.plain, &end)
        return self.passes(view, entry, self.starts[self.set_count], end)

    cdef bint passes(self, const View* view, const Entry* entry, uint32_t start,
                     uint32_t end) except -1:
        cdef const uint8_t* at = entry.values
        cdef const Look* look = self.looks + start
        cdef const Look* last = self.looks + end
        cdef uint32_t field = 0
        cdef uint32_t held = 0
        cdef uint64_t size
        cdef Packed packed
        cdef Slice word
        cdef bint is_read
        word.ptr = NULL
        word.size = 0
        self.at = at
        self.passed = 0
        if start == end:
            return False
        self.work += self.looks[end - 1].field + (end - start)
        if view.words == NULL:
            return self.passes_plain(at, look, last)
        at = read_varint(at, &size)
        while look < last:
            while field <= look.field:
                at = next_packed(view, at, &packed)
                field += 1
            is_read = False
            while look < last and look.field == field - 1:
                if not held & (<uint32_t>1 << look.condition):
                    if not is_read:
                        word.ptr = self.unpacked(&packed)
                        word.size = <Py_ssize_t>packed.size
                        is_read = True
                    if self.holds(&self.conditions[look.condition], word.ptr, word.size):
                        held |= <uint32_t>1 << look.condition
                    elif look.is_last:
                        return False
                look += 1
        return True

    cdef bint passes_plain(self, const uint8_t* at, const Look* look,
                           const Look* last) except -1:
        """`passes` for values that are not packed."""
        cdef uint32_t field = 0
        cdef uint32_t held = 0
        cdef Slice word
        word.ptr = NULL
        word.size = 0
        while look < last:
            while field <= look.field:
                at = next_word(at, &word)
                field += 1
            self.at = at
            self.passed = field
            if not held & (<uint32_t>1 << look.condition):
                if self.holds(&self.conditions[look.condition], word.ptr, word.size):
                    held |= <uint32_t>1 << look.condition
                elif look.is_last:
                    return False
            look += 1
        return True

    cdef bint holds(self, const Condition* condition, const char* text, Py_ssize_t size) except -1:
        """True if a value meets a condition."""
        cdef const Slice* operand = condition.values
        cdef Number number
        cdef Py_ssize_t low, high, middle
        cdef int order
        if condition.how == EQ:
            if size != operand.size:
                return False
            self.work += size >> 8
            return memcmp(text, operand.ptr, size) == 0
        if condition.how == PREFIX:
            self.work += operand.size >> 8
            return size >= operand.size and memcmp(text, operand.ptr, operand.size) == 0
        if condition.how == BETWEEN:
            self.work += 2 + (size >> 3) + (40 if size > DIGITS_QUICK else 0)
            if not read_number(text, size, &number):
                return False
            order = compare_to_bound(&number, &condition.low)
            if order < condition.above:
                return False
            order = compare_to_bound(&number, &condition.high)
            return order <= 0 - <int>condition.below
        low = 0
        high = condition.count
        self.work += 4 + (size >> 5)
        while low < high:
            self.work += 1
            middle = (low + high) >> 1
            order = compare_texts(text, size, &operand[middle])
            if order == 0:
                return True
            if order < 0:
                high = middle
            else:
                low = middle + 1
        return False

    cdef const char* unpacked(self, const Packed* packed) except NULL:
        """The bytes of a packed value, until the next call."""
        if packed.how != AS_TEXT and packed.how != AS_WORD:
            self.work += (<Py_ssize_t>packed.size + SLACK) >> 5
        return unpacked_value(&self.space, packed)

    # ------------------------------------------------------------ entries

    cdef int next_match(self, Cursor* cursor, const View* view, uint64_t end_ms, uint64_t end_seq,
                        int64_t* work_left) except -1:
        """Move to the next undeleted entry up to an ID that matches: it is then `cursor.entry`, and
        the cursor is after it. At least one entry is looked at; after OUT_OF_WORK, `cursor.entry` is
        the last one."""
        if self.needle_helps(view, cursor.index):
            return self.next_with_needle(cursor, view, end_ms, end_seq, work_left)
        return self.next_looked_at(cursor, view, end_ms, end_seq, work_left)

    cdef bint needle_helps(self, const View* view, uint32_t looked_at) noexcept:
        """True if there is a needle, and few of the entries so far have it."""
        return (self.needle_size >= NEEDLE_LEAST and view.words == NULL
                and self.candidates * FEW <= looked_at + CHECKPOINT_EVERY)

    cdef bint may_have(self, const View* view, const uint8_t* at, const uint8_t* end) except -1:
        """False if no entry in these bytes of the block can match."""
        if self.needle_size < NEEDLE_LEAST or view.words != NULL:
            return True
        self.work += 1 + ((end - at) >> SCANNED_SHIFT)
        return find_needle(
            at, end, <const uint8_t*>PyBytes_AS_STRING(self.needle), self.needle_size) != NULL

    cdef int next_looked_at(self, Cursor* cursor, const View* view, uint64_t end_ms,
                            uint64_t end_seq, int64_t* work_left) except -1:
        """`next_match` by a look at each entry."""
        cdef const uint8_t* values
        cdef bint found
        while cursor.index < view.count:
            values = read_entry(view, cursor.at, &cursor.entry)
            if id_less(end_ms, end_seq, cursor.entry.ms, cursor.entry.seq):
                return NO_MATCH
            found = self.look_at(cursor, view, values)
            work_left[0] -= self.work
            if found:
                return MATCH
            if work_left[0] <= 0:
                return OUT_OF_WORK
        return NO_MATCH

    cdef int next_with_needle(self, Cursor* cursor, const View* view, uint64_t end_ms,
                              uint64_t end_seq, int64_t* work_left) except -1:
        """`next_match` by a look at the entries that have the needle."""
        cdef const uint8_t* end = view.entries + view.size
        cdef const uint8_t* needle = <const uint8_t*>PyBytes_AS_STRING(self.needle)
        cdef const uint8_t* place
        cdef const uint8_t* values
        cdef const uint8_t* after
        cdef bint found
        while cursor.index < view.count:
            if not self.needle_helps(view, cursor.index):
                return self.next_looked_at(cursor, view, end_ms, end_seq, work_left)
            place = find_needle(cursor.at, end, needle, self.needle_size)
            work_left[0] -= 1 + (((end if place == NULL else place) - cursor.at) >> SCANNED_SHIFT)
            if place == NULL:
                return NO_MATCH
            self.candidates += 1
            approach(cursor, view, place)
            while True:
                values = read_entry(view, cursor.at, &cursor.entry)
                after = skip_values(view, values, cursor.entry.fields)
                if place < after:
                    break
                work_left[0] -= 1
                cursor.at = after
                cursor.index += 1
                if cursor.index == view.count:
                    return NO_MATCH
            if id_less(end_ms, end_seq, cursor.entry.ms, cursor.entry.seq):
                return NO_MATCH
            found = self.look_at(cursor, view, values)
            work_left[0] -= self.work
            if found:
                return MATCH
            if work_left[0] <= 0:
                return OUT_OF_WORK
        return NO_MATCH

    cdef bint look_at(self, Cursor* cursor, const View* view, const uint8_t* values) except -1:
        """True if the entry that was read matches; the cursor is then after it."""
        cdef bint found
        self.work = 1 + (cursor.entry.fields >> 2)
        self.at = values
        self.passed = 0
        found = not cursor.entry.deleted and self.matches(view, &cursor.entry)
        if view.words != NULL:
            cursor.at = skip_values(view, values, cursor.entry.fields)
        else:
            cursor.at = skip_values(view, self.at, cursor.entry.fields - self.passed)
        cursor.index += 1
        return found
