# cython: language_level=3, wraparound=False
"""The frequent cases of SET, INCR and EXPIRE.

The handlers of these commands and of their variants begin with a function of this module. It reads
its words in the receive buffer, changes one value and records that. If more is needed (an event, a
watch, a snapshot, an error), it changes nothing and says so, and the handler continues as usual.
tests/unit/test_frequent_commands.py compares both ways.
"""

from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t, uint64_t

from millstream.commands.runtime.arguments cimport Args, is_word, parse_int
from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.effects cimport Effects
from millstream.encoding cimport Slice, format_u64

from millstream.commands.generic import value_effects
from millstream.commands.runtime.effects import CODES

cdef int SET_CODE = CODES[value_effects.SET]
cdef int UPDATE_CODE = CODES[value_effects.UPDATE]
cdef bytes EXPIRE = value_effects.EXPIRE


cdef bytes decimal(int64_t number):
    """A number as text."""
    cdef char[21] text
    cdef Py_ssize_t size
    if number >= 0:
        size = format_u64(text, <uint64_t>number)
        return text[:size]
    text[0] = c'-'
    size = 1 + format_u64(text + 1, 0 - <uint64_t>number)
    return text[:size]


cdef int count_value(Context ctx, int code, bytes key, bytes value) except -1:
    """Record and count the new value of a key that had a value of the same type; `code` is that of
    the effect."""
    cdef Effects effects = ctx.effects
    if effects.enabled:
        effects.begin(ctx.db.index, code, 2)
        effects.put_bytes(key)
        effects.put_bytes(value)
        effects.finish()
    return ctx.count_change(None, None, 1)


def overwrite(Context ctx not None, Args args not None) -> bool:
    """Replace a string by another (SET key value); False: no change was made."""
    cdef bytes value
    if args.count != 3 or ctx.events or ctx.db.expiries:
        return False
    key = ctx.db.key_of(&args.items[1])
    value = args.items[2].ptr[:args.items[2].size]
    if not ctx.db.replace_string(key, value, False):
        return False
    count_value(ctx, SET_CODE, key, value)
    return True


def overwrite_expiring(Context ctx not None, Args args not None) -> bool:
    """Replace a string by another and postpone its expiry (SET key value EX or PX time); False:
    no change was made."""
    cdef int64_t at_ms = 0
    cdef int64_t unit_ms
    cdef bytes key, value
    if args.count != 5 or ctx.events or ctx.db.append_buffers:
        return False
    if is_word(&args.items[3], b"EX"):
        unit_ms = 1000
    elif is_word(&args.items[3], b"PX"):
        unit_ms = 1
    else:
        return False
    if parse_int(args.items[4].ptr, args.items[4].size, &at_ms) < 0 or not (
            0 < at_ms <= (INT64_MAX - <int64_t>ctx.now_ms) // unit_ms):
        return False
    at_ms = <int64_t>ctx.now_ms + at_ms * unit_ms
    key = ctx.db.key_of(&args.items[1])
    if not isinstance(ctx.db.value_of(key), bytes) or not ctx.db.extend_expiry(key, at_ms):
        return False
    value = args.items[2].ptr[:args.items[2].size]
    ctx.db.replace_string(key, value, True)
    count_value(ctx, UPDATE_CODE, key, value)
    ctx.change((EXPIRE, key, at_ms), None, 0)
    return True


def add_to_integer(Context ctx not None, Args args not None, int64_t amount):
    """Add to the integer at the key (INCR). Returns the sum; None: no change was made."""
    cdef int64_t number = 0
    cdef bytes text
    key = ctx.db.key_of(&args.items[1])
    value = ctx.db.value_of(key)
    if ctx.events or type(value) is not bytes or (
            parse_int(<bytes>value, len(<bytes>value), &number) < 0):
        return None
    if number > INT64_MAX - amount if amount > 0 else number < INT64_MIN - amount:
        return None
    number += amount
    text = decimal(number)
    if not ctx.db.replace_string(key, text, True):
        return None
    count_value(ctx, UPDATE_CODE, key, text)
    return number


def extend_expiry(Context ctx not None, Args args not None, int64_t base_ms, int64_t unit_ms) -> bool:
    """Postpone the expiry of a key (EXPIRE key time, without conditions) to `base_ms` plus the
    time in units of `unit_ms`. False: no change was made."""
    cdef int64_t at_ms = 0
    cdef Slice* word
    if args.count != 3:
        return False
    word = &args.items[2]
    if parse_int(word.ptr, word.size, &at_ms) < 0 or not (
            0 < at_ms <= (INT64_MAX - base_ms) // unit_ms):
        return False
    at_ms = base_ms + at_ms * unit_ms
    if <uint64_t>at_ms <= ctx.now_ms:
        return False
    key = ctx.db.key_of(&args.items[1])
    value = ctx.db.value_of(key)
    if value is None or not ctx.db.extend_expiry(key, at_ms):
        return False
    if ctx.keyspace.touching:
        ctx.db.note_use(key, value)
    ctx.change((EXPIRE, key, at_ms), b"expire", 1)
    return True
