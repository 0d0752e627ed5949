# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Filters of entries by the values of their fields (WHERE).

Names are looked up once for each field-name set of a block, not for each entry: a set becomes a short
list of values to look at. A block in which no set has all the fields is skipped, unless it has entries
with names of their own. Values are compared where they are; only packed ones of some forms are
unpacked first.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from libc.math cimport INFINITY
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from millstream.encoding cimport Slice
from millstream.entry_id cimport id_less
from millstream.storage.blocks.entry_filter cimport (
    CONDITIONS_MAX, MATCH, NO_MATCH, OUT_OF_WORK, Condition, Look,
)
from millstream.storage.blocks.layout cimport (
    AS_TEXT, AS_WORD, REF_PLAIN, SETS_MAX, SLACK, Cursor, Entry, Head, Packed, View, cursor_next,
    cursor_start, next_name, next_packed, next_word, read_entry, read_varint, skip_values,
    unpack_value, word_frame,
)
from millstream.storage.blocks.numbers cimport Number, compare_numbers, read_number

cdef enum:
    EQ
    PREFIX
    IN
    BETWEEN
    # A decimal with more digits takes much longer to read.
    DIGITS_QUICK = 16
    # What is known about a packed block (`Head.zero` in memory).
    NOT_KNOWN = 0
    ALL_NUMBERED = 1
    SOME_OWN = 2

OPERATORS = {b"EQ": EQ, b"PREFIX": PREFIX, b"IN": IN, b"BETWEEN": BETWEEN}


def is_bound(bytes word not None) -> bool:
    """True if a word is a bound of BETWEEN: a number, -inf or +inf, with `(` before it if the bound
    itself is excluded."""
    cdef Number number
    cdef bint excluded
    return read_bound(word, &number, &excluded)


cdef bint read_bound(bytes word, Number* out, bint* excluded) except -1:
    excluded[0] = word[:1] == b"("
    cdef bytes text = word[1:] if excluded[0] else word
    if text.lower() == b"-inf" or text.lower() == b"+inf":
        out.is_integer = False
        out.real = -INFINITY if text[:1] == b"-" else INFINITY
        return True
    return read_number(PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text), out)


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
    return view.words != NULL and (<Head*>view.checkpoints - 1).zero == NOT_KNOWN


cdef bint has_own_names(const View* view) noexcept:
    """True if entries of a block may have names of their own. The answer for a packed block, which is
    a sealed one, is kept in its header."""
    cdef Head* head
    cdef Cursor cursor
    if view.words == NULL:
        return view.set_count == SETS_MAX
    head = <Head*>view.checkpoints - 1
    if head.zero == NOT_KNOWN:
        head.zero = ALL_NUMBERED
        cursor_start(&cursor, view)
        while cursor.index < view.count:
            if cursor.at[0] & 31 >= REF_PLAIN:
                head.zero = SOME_OWN
                break
            cursor_next(&cursor, view)
    return head.zero == SOME_OWN


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

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(CONDITIONS_MAX):
            PyMem_Free(self.conditions[i].values)
        PyMem_Free(self.looks)
        PyMem_Free(self.space)

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
            if not read_bound(words[at + 2], &condition.low, &condition.above) or (
                    not read_bound(words[at + 3], &condition.high, &condition.below)):
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

    # ------------------------------------------------------------ names

    cdef bint begin(self, const View* view) except -1:
        """Begin with the entries of a block; False if none of them can match."""
        cdef const uint8_t* at
        cdef uint64_t fields, size
        cdef uint32_t i
        cdef uint32_t end = 0
        cdef bint possible = False
        self.set_count = view.set_count
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
            order = compare_numbers(&number, &condition.low)
            if order < condition.above:
                return False
            order = compare_numbers(&number, &condition.high)
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
        """The bytes of a packed value: where they are, or in a space that the next call uses again."""
        cdef char* space
        cdef Py_ssize_t size
        if packed.how == AS_TEXT:
            return <const char*>packed.rest
        if packed.how == AS_WORD:
            return <const char*>packed.word + word_frame(packed.word_size)
        size = <Py_ssize_t>packed.size + SLACK
        self.work += size >> 5
        if size > self.space_size:
            space = <char*>PyMem_Realloc(self.space, 2 * size)
            if space == NULL:
                raise MemoryError("no memory for a packed value")
            self.space = space
            self.space_size = 2 * size
        unpack_value(self.space, packed)
        return self.space

    # ------------------------------------------------------------ entries

    cdef int next_match(self, Cursor* cursor, const View* view, uint64_t end_ms, uint64_t end_seq,
                        int64_t* work_left) except -1:
        """Move to the next undeleted entry up to an ID that matches: it is then `cursor.entry`, and
        the cursor is after it. At least one entry is looked at; after OUT_OF_WORK, `cursor.entry` is
        the last one."""
        cdef const uint8_t* values
        cdef bint found
        while cursor.index < view.count:
            values = read_entry(view, cursor.at, &cursor.entry)
            if id_less(end_ms, end_seq, cursor.entry.ms, cursor.entry.seq):
                return NO_MATCH
            self.work = cursor.entry.fields >> 2
            self.at = values
            self.passed = 0
            found = not cursor.entry.deleted and self.matches(view, &cursor.entry)
            work_left[0] -= 1 + self.work
            if view.words != NULL:
                cursor.at = skip_values(view, values, cursor.entry.fields)
            else:
                cursor.at = skip_values(view, self.at, cursor.entry.fields - self.passed)
            cursor.index += 1
            if found:
                return MATCH
            if work_left[0] <= 0:
                return OUT_OF_WORK
        return NO_MATCH
