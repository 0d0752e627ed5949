# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The fast check of restricted users: one byte for the command, then the keys in place.

`Permission.passes` never allows what `verdict.denial` denies. It may fail to allow a request of
an unusual kind: a second selector, rules for first arguments, channels, keys that are not in a row.
Then the executor asks `verdict`, which takes some microseconds.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

import re

from millstream.commands.runtime.arguments cimport Args, OwnedArgs, is_word
from millstream.encoding cimport Slice

from millstream.commands.access.catalog import all_entries, find_entry
from millstream.commands.access.verdict import CHANNELS, use_of
from millstream.commands.table.keyspecs import BOTH, OPTIONS_START, READS
from millstream.glob import is_literal

HEAD = re.compile(rb"[^*?\[\\]{0,8}")
"""The bytes at the beginning of a pattern that match only themselves."""

cdef const char* ONES = b"\xff\xff\xff\xff\xff\xff\xff\xff"

cdef enum:
    ANY_KEY
    EXACT
    PREFIX
    GLOB


cdef class Demand:
    """Requirements of a command: its number, and the places of its keys. One for each command of
    the table; TREAD has another one for its form with GROUP. `slot_place` has the places of keys and
    of shard channels, which belong to a slot, too; with `any_slots`, a node of a cluster takes keys of
    several of its slots."""

    def __init__(self, command, option=None):
        suffix = "" if option is None else f"|{option.decode().lower()}"
        entry = find_entry(command.name + suffix) or find_entry(command.name.partition("|")[0])
        self.name = command.name + suffix
        self.number = entry.number
        self.open_to_all = "no_auth" in command.flags
        self.uses_channels = bool(command.traits & CHANNELS.keys())
        self.any_slots = "any_slots" in command.traits
        self.find_places(command, option)
        if option is None and command.writes_with is not None:
            self.option = command.writes_with
            self.with_option = Demand(command, command.writes_with)

    def find_places(self, command, option):
        specs = [spec for spec in command.key_specs if spec.is_key]
        self.use = 0
        for spec in specs:
            flags = spec.flags.split()
            if command.writes_with is not None:
                flags = (READS if option is None else BOTH).split()
            # What depends on other options may be everything.
            self.use |= 3 if "variable_flags" in flags else use_of(flags)
        self.first, self.last, self.step = command.keys
        if not specs:
            self.place = NO_KEYS
        elif specs[0].keyword:
            # Options of XREADGROUP may stand before GROUP, where COMMAND's key spec begins.
            self.first = 2 if specs[0].first == 2 else 1
            self.place = AFTER_STREAMS
        else:
            self.place = ELSEWHERE if "movablekeys" in command.flags else IN_A_ROW
        self.slot_place = IN_A_ROW if self.place == NO_KEYS and self.first else self.place

    cdef Demand of(self, Args args):
        """The demand of this request: another one with the option that writes. None if that word may
        be one of a condition."""
        cdef Py_ssize_t i
        if self.with_option is None:
            return self
        for i in range(OPTIONS_START, args.count):
            if is_word(&args.items[i], self.option):
                return self.with_option
            if is_word(&args.items[i], b"WHERE"):
                return None
        return self


cdef int set_pattern(KeyPattern* pattern, bytes text, int use) except -1:
    """`text` has to live as long as the pattern."""
    cdef bytes head = HEAD.match(text)[0]
    pattern.text = PyBytes_AS_STRING(text)
    pattern.size = PyBytes_GET_SIZE(text)
    pattern.use = use
    if text.strip(b"*") == b"" and text:
        pattern.kind = ANY_KEY
    elif is_literal(text):
        pattern.kind = EXACT
    elif text.endswith(b"*") and is_literal(text[:len(text) - 1]):
        pattern.kind = PREFIX
        pattern.size -= 1
    else:
        pattern.kind = GLOB
    pattern.front = front_of(PyBytes_AS_STRING(head), PyBytes_GET_SIZE(head))
    pattern.mask = front_of(ONES, PyBytes_GET_SIZE(head))
    return 0


cdef inline uint64_t front_of(const char* text, Py_ssize_t size) noexcept nogil:
    """The first eight bytes as one number; zeros after the end of a shorter text."""
    cdef uint64_t whole = 0
    cdef uint32_t low
    cdef uint32_t high
    if size >= 8:
        memcpy(&whole, text, 8)
    elif size >= 4:
        memcpy(&low, text, 4)
        memcpy(&high, text + size - 4, 4)
        whole = low | (<uint64_t>high << (8 * (size - 4)))
    else:
        while size > 0:
            size -= 1
            whole = (whole << 8) | <unsigned char>text[size]
    return whole


cdef bint pattern_matches(const KeyPattern* pattern, const char* key,
                          Py_ssize_t size) noexcept nogil:
    """True if a key whose first bytes fit the pattern matches it."""
    if pattern.kind == PREFIX:
        return size >= pattern.size and (
            pattern.size <= 8 or memcmp(key + 8, pattern.text + 8, pattern.size - 8) == 0)
    if pattern.kind == EXACT:
        return size == pattern.size and memcmp(key, pattern.text, size) == 0
    return pattern.kind == ANY_KEY or glob_matches(pattern.text, pattern.size, key, size)


cdef class Permission:
    """Permissions of a user's root selector at present: computed again when the rules change."""

    def __init__(self, user):
        selector = user.root
        entries = all_entries()
        allowed = bytearray(len(entries))
        for name in selector.allowed:
            allowed[entries[name].number] = 1
        self.user = user
        self.allowed = bytes(allowed)
        self.all_keys = selector.all_keys
        self.all_channels = selector.all_channels
        self.texts = [text for text, _ in selector.patterns]
        self.patterns = <KeyPattern*>PyMem_Calloc(max(1, len(self.texts)), sizeof(KeyPattern))
        if self.patterns is NULL:
            raise MemoryError
        for text, use in selector.patterns:
            set_pattern(&self.patterns[self.pattern_count], text, use)
            self.pattern_count += 1

    def __dealloc__(self):
        PyMem_Free(self.patterns)

    cdef bint passes(self, Demand demand, Args args) except -1:
        """True if the root selector surely allows this request."""
        if demand.with_option is not None:
            demand = demand.of(args)
            if demand is None:
                return False
        if not demand.open_to_all:
            if demand.number >= PyBytes_GET_SIZE(self.allowed):
                return False
            if not PyBytes_AS_STRING(self.allowed)[demand.number]:
                return False
        if demand.uses_channels and not self.all_channels:
            return False
        if self.all_keys or demand.place == NO_KEYS:
            return True
        return self.passes_keys(demand, args)

    cdef bint passes_keys(self, Demand demand, Args args) noexcept:
        cdef Py_ssize_t at = demand.first
        cdef Py_ssize_t last = demand.last if demand.last >= 0 else args.count + demand.last
        if demand.place == ELSEWHERE:
            return False
        if demand.place == AFTER_STREAMS:
            at = streams_end(args, at)
            if at < 0 or (args.count - at) & 1:
                return False
            last = at + (args.count - at) // 2 - 1
            while at <= last:
                if not self.passes_key(&args.items[at], demand.use):
                    return False
                at += 1
            return True
        while at <= last and at < args.count:
            if not self.passes_key(&args.items[at], demand.use):
                return False
            at += demand.step
        return True

    cdef bint passes_key(self, Slice* key, int use) noexcept:
        cdef uint64_t front = front_of(key.ptr, key.size)
        cdef const KeyPattern* pattern = self.patterns
        cdef const KeyPattern* end = pattern + self.pattern_count
        while pattern < end:
            # Most patterns differ in the first bytes, so this test alone rules them out.
            if ((front ^ pattern.front) & pattern.mask == 0 and pattern.use & use == use
                    and pattern_matches(pattern, key.ptr, key.size)):
                return True
            pattern += 1
        return False

    def allows(self, command, list words not None) -> bool:
        """`passes` for tests."""
        return self.passes(Demand(command), OwnedArgs(words))


cdef Py_ssize_t streams_end(Args args, Py_ssize_t at) noexcept:
    """The position after STREAMS; -1 if an unknown word stands before it."""
    cdef Slice* word
    while at < args.count:
        word = &args.items[at]
        if is_word(word, b"STREAMS"):
            return at + 1
        if is_word(word, b"NOACK") or is_word(word, b"CLOCK"):
            at += 1
        elif is_word(word, b"GROUP"):
            at += 3
        elif (is_word(word, b"COUNT") or is_word(word, b"BLOCK") or is_word(word, b"CLAIM")
                or is_word(word, b"MAXCOUNT") or is_word(word, b"MAXSIZE")):
            at += 2
        else:
            return -1
    return -1


# ---------------------------------------------------------------- patterns

cdef bint glob_matches(const char* pattern, Py_ssize_t pattern_size,
                       const char* text, Py_ssize_t text_size) noexcept nogil:
    """As `glob.matcher`, on bytes in place. Only the last star is retried, which takes at most
    the product of the two lengths: between stars every item matches one byte."""
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t i = 0
    cdef Py_ssize_t star = -1
    cdef Py_ssize_t star_text = 0
    cdef Py_ssize_t next_at
    while i < text_size:
        if at < pattern_size and pattern[at] == c'*':
            at += 1
            star = at
            star_text = i
            continue
        next_at = match_item(pattern, pattern_size, at, <unsigned char>text[i])
        if next_at >= 0:
            at = next_at
            i += 1
        elif star >= 0:
            star_text += 1
            at = star
            i = star_text
        else:
            return False
    while at < pattern_size and pattern[at] == c'*':
        at += 1
    return at == pattern_size


cdef Py_ssize_t match_item(const char* pattern, Py_ssize_t size, Py_ssize_t at,
                           unsigned char letter) noexcept nogil:
    """The position after the pattern's item at `at`, if that matches this byte; else -1."""
    cdef char item
    if at >= size:
        return -1
    item = pattern[at]
    if item == c'?':
        return at + 1
    if item == c'[':
        return match_class(pattern, size, at + 1, letter)
    if item == c'\\' and at + 1 < size:
        at += 1
    return at + 1 if <unsigned char>pattern[at] == letter else -1


cdef Py_ssize_t match_class(const char* pattern, Py_ssize_t size, Py_ssize_t at,
                            unsigned char letter) noexcept nogil:
    """`match_item` for a class, after its bracket. Without a closing bracket the class extends to
    the end."""
    cdef bint negated = at < size and pattern[at] == c'^'
    cdef bint found = False
    cdef unsigned char low
    cdef unsigned char high
    if negated:
        at += 1
    while at < size and pattern[at] != c']':
        low = high = <unsigned char>pattern[at]
        if low == c'\\' and at + 1 < size:
            low = high = <unsigned char>pattern[at + 1]
            at += 2
        elif at + 2 < size and pattern[at + 1] == c'-':
            high = <unsigned char>pattern[at + 2]
            at += 3
        else:
            at += 1
        if low <= letter <= high or high <= letter <= low:
            found = True
    if at < size:
        at += 1
    return at if found != negated else -1


def glob(bytes pattern not None, bytes text not None) -> bool:
    """`glob_matches` for tests."""
    return glob_matches(pattern, len(pattern), text, len(text))
