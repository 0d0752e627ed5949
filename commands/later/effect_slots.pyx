# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Divides the effects of a frame by the cluster slots of their keys.

All keys of an effect are in one slot, because those of a request are. Exceptions are DEL, which may
name keys of several requests, and the effects without a key, which belong to no slot.
"""

from libc.stdint cimport uint8_t

from millstream.commands.runtime.effects cimport SELECT_CODE, EffectArgs, Effects
from millstream.encoding cimport Slice
from millstream.storage.keyspace.cluster_slots cimport CLUSTER_SLOT_COUNT, cluster_slot

from millstream.commands.runtime.effects import EVERY_WORD, KEYS, EffectError
from millstream.storage.keyspace.slot_ranges import parse_ranges, ranges_of, ranges_text, slots_of

# What an effect concerns.
cdef enum:
    UNKNOWN = 0
    FIRST_KEY = 1  # the slot of its first word
    EACH_KEY = 2  # the slots of all its words
    NO_SLOT = 3
    EVERY_SLOT = 4  # it is passed on for any slots
    ALL_KEYS = 5  # it removes all keys
    NAMED_SLOTS = 6  # its first word names slots

cdef uint8_t[128] kinds_of_codes
SPECIAL = {
    b"TIME": NO_SLOT, b"CLOCK": EVERY_SLOT, b"FLUSHALL": ALL_KEYS, b"FLUSHDB": ALL_KEYS,
    b"FLUSHSLOTS": NAMED_SLOTS,
}


cdef int kind_of(name) except -1:
    if name in SPECIAL:
        return SPECIAL[name]
    if name not in KEYS:
        return FIRST_KEY
    keys = KEYS[name]
    if keys is EVERY_WORD:
        return EACH_KEY
    return FIRST_KEY if keys and keys[0] == (1, 0) else NO_SLOT


cdef int kind_at(EffectArgs args) except -1:
    cdef int kind = kinds_of_codes[args.code] if args.code else UNKNOWN
    if kind == UNKNOWN:
        kind = kind_of(args[0])
        if args.code:
            kinds_of_codes[args.code] = <uint8_t>kind
    return kind


def divide(bytes payload not None, const uint8_t[::1] wanted not None) -> bytes:
    """The effects of a frame for the keys of these slots, as a payload. `wanted` has a byte for each
    slot, 0 if it is not wanted.

    FLUSHALL and FLUSHDB become FLUSHSLOTS with these slots. CLOCK is passed on. What belongs to the server that
    recorded the frame is left out. EffectError has the offset of unreadable bytes.
    """
    cdef Effects out = Effects()
    cdef EffectArgs args = EffectArgs()
    cdef const char* start = payload
    cdef const char* at = start
    cdef const char* end = start + len(payload)
    cdef const char* here = start
    cdef bint selected = True  # the effects are of database 0
    cdef int kind
    if wanted.shape[0] != CLUSTER_SLOT_COUNT:
        raise ValueError("there is not one byte for each slot")
    try:
        while at < end:
            here = at
            at = args.read(at, end)
            if args.code == SELECT_CODE:
                args.unpack()
                selected = args.take_int() == 0
                continue
            kind = kind_at(args)
            if kind == EVERY_SLOT:
                put_whole(out, here, at)
            elif not selected or kind == NO_SLOT or args.count < 2 and kind != ALL_KEYS:
                continue
            elif kind == FIRST_KEY:
                if wants(wanted, args, 1):
                    put_whole(out, here, at)
            elif kind == EACH_KEY:
                put_each(out, args, wanted, here, at)
            else:
                named = range(CLUSTER_SLOT_COUNT)
                if kind == NAMED_SLOTS:
                    named = slots_of(parse_ranges(args[1]))
                ranges = ranges_of([slot for slot in named if wanted[slot]])
                if ranges:
                    out.put_effect(0, (b"FLUSHSLOTS", ranges_text(ranges)))
    except (ValueError, IndexError) as error:
        raise EffectError(here - start, str(error)) from error
    divided = out.take()
    if divided is None:
        raise MemoryError("no memory to divide a frame")
    return divided


cdef bint wants(const uint8_t[::1] wanted, EffectArgs args, Py_ssize_t place) except -1:
    cdef Slice* key = &args.items[place]
    if key.size < 0:
        args.unpack()
    return wanted[cluster_slot(key.ptr, key.size)] != 0


cdef int put_whole(Effects out, const char* start, const char* end) except -1:
    out.begun += 1
    out.out.put_raw(start, end - start)
    return out.finish()


cdef int put_each(Effects out, EffectArgs args, const uint8_t[::1] wanted, const char* start,
                  const char* end) except -1:
    """Put the wanted ones of the keys that an effect names."""
    cdef Py_ssize_t i
    cdef list found = [args[0]]
    for i in range(1, args.count):
        if wants(wanted, args, i):
            found.append(args[i])
    if len(found) == args.count:
        return put_whole(out, start, end)
    if len(found) > 1:
        return out.put_effect(0, tuple(found))
    return 0
