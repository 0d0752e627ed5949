# cython: language_level=3, wraparound=False
"""Reservations and held entries (storage/reservations/held) in a snapshot: docs/formats.md, held.

A snapshot shows one moment. `share` copies the parts that may change later, which takes about 0.1
us per reservation; a thread packs the copy in small parts.
"""

from libc.stdint cimport INT64_MAX, uint64_t

from millstream.entry_id cimport EntryId
from millstream.storage.log.entry_log cimport EntryLog
from millstream.storage.log.log_loading cimport load_blocks
from millstream.storage.reservations.held cimport Held
from millstream.storage.reservations.held_segments cimport (
    ENTRY_BYTES, Run, Slot, Writer, list_of_words, pack_list, size_of,
)
from millstream.storage.streams.stream cimport RESERVING, Stream

from millstream.storage.blocks.block import Block

cdef enum:
    # Packed in one step: less than a millisecond's work.
    PACKED_SEGMENTS = 200
    RUN_BLOCKS = 64
    RUN_BYTES = 1048576

# The first element of a segment's row.
cdef enum:
    RESERVATION_ROW = 0
    ENTRY_ROW = 1
    RUN_ROW = 2


def share(Held held not None) -> SharedHeld:
    """A point-in-time copy, to be packed later."""
    cdef SharedHeld made = SharedHeld.__new__(SharedHeld)
    cdef Writer writer
    made.last = held.last
    made.first_reserved = held.writers.first_reserved
    made.has_forgotten = held.writers.has_forgotten
    made.segments = [
        shared_segment(<Slot>segment) for segment in held.segments.items[held.segments.first:]
        if (<Slot>segment).is_open or (<Slot>segment).words is not None or type(segment) is Run]
    made.writers = []
    made.numbers = {}
    for writer in held.writers.by_name.values():
        made.numbers[writer.name] = len(made.writers)
        made.writers.append([writer.name, writer.last.ms, writer.last.seq, writer.settled.ms,
                             writer.settled.seq])
    return made


cdef object shared_segment(Slot segment):
    """A copy of a segment; a segment with an entry never changes and is not copied."""
    cdef Run run
    if type(segment) is Run:
        run = <Run>segment
        return (run.entries.blocks(), None if run.writers is None else list(run.writers))
    return copy_of(segment) if segment.is_open else segment


cdef Slot copy_of(Slot reservation):
    """The parts of an open reservation that a snapshot needs."""
    cdef Slot made = Slot.__new__(Slot)
    made.id = reservation.id
    made.before = reservation.before
    made.settled = reservation.settled
    made.lease_ms = reservation.lease_ms
    made.writer = reservation.writer
    made.is_open = True
    return made


cdef class SharedHeld:
    """The segments and writers of a stream at one moment."""

    def packed(self):
        """The argument of `load` as msgpack in small parts, on any thread."""
        import msgpack

        packer = msgpack.Packer()
        yield b"".join([
            packer.pack_map_header(5), packer.pack("last_id"),
            packer.pack([self.last.ms, self.last.seq]), packer.pack("first_reserved"),
            packer.pack([self.first_reserved.ms, self.first_reserved.seq]),
            packer.pack("has_forgotten"), packer.pack(self.has_forgotten), packer.pack("writers"),
            packer.pack(self.writers), packer.pack("segments"),
            packer.pack_array_header(len(self.segments))])
        for start in range(0, len(self.segments), PACKED_SEGMENTS):
            part = []
            for segment in self.segments[start:start + PACKED_SEGMENTS]:
                if type(segment) is tuple:
                    yield b"".join(part)
                    part = []
                    yield from self.packed_run(packer, segment[0], segment[1])
                else:
                    part.append(packer.pack(self.row_of(<Slot>segment)))
            yield b"".join(part)

    def packed_run(self, packer, blocks, writers):
        """[2, [[number of blocks, blocks], ...], writers]."""
        parts = []
        at = 0
        while at < len(blocks):
            data, taken, _, _ = Block.pack(blocks[at:at + RUN_BLOCKS], RUN_BYTES, INT64_MAX)
            parts.append((taken, data))
            at += taken
        yield packer.pack_array_header(3) + packer.pack(<int>RUN_ROW) + packer.pack_array_header(len(parts))
        for part in parts:
            yield packer.pack(part)
        yield packer.pack(None if writers is None else [
            self.number_of(writer) for writer in writers])

    cdef list row_of(self, Slot slot):
        if slot.is_open:
            return [RESERVATION_ROW, slot.id.ms, slot.id.seq, slot.before.ms, slot.before.seq,
                    slot.settled.ms, slot.settled.seq, self.number_of(slot.writer), slot.lease_ms]
        return [ENTRY_ROW, slot.id.ms, slot.id.seq, self.number_of(slot.writer),
                list_of_words(slot.words)]

    cdef object number_of(self, Writer writer):
        """A writer's number; None for a forgotten writer, whose entries are all visible."""
        return None if writer is None else self.numbers.get(writer.name)

    def dump(self) -> dict:
        """The argument of `load`."""
        import msgpack

        return msgpack.unpackb(b"".join(self.packed()), strict_map_key=False)


def load(meta, Stream stream not None, uint64_t steady_ms) -> Held:
    """Restore the result of `SharedHeld.packed` with all leases restarted, and mark the stream as
    reserving; ValueError when the parts are inconsistent."""
    cdef Held held = Held()
    held.last.ms, held.last.seq = meta["last_id"]
    # An older snapshot does not tell which IDs were reserved.
    held.writers.first_reserved.ms, held.writers.first_reserved.seq = meta.get("first_reserved", (0, 1))
    held.writers.has_forgotten = meta.get("has_forgotten", True)
    for row in meta["writers"]:
        load_writer(held, row)
    writers = list(held.writers.by_name.values())
    for row in meta["segments"]:
        load_segment(held, row, writers)
    held.check_order(stream)
    if held.reservations:
        stream.restrictions |= RESERVING
        held.restart_leases(steady_ms)
    return held


cdef int load_writer(Held held, row) except -1:
    cdef Writer writer = Writer.__new__(Writer)
    writer.name, writer.last.ms, writer.last.seq, writer.settled.ms, writer.settled.seq = row
    if not writer.name or writer.name in held.writers.by_name:
        raise ValueError(f"the writer {writer.name!r} stands there twice or has no name")
    held.writers.by_name[writer.name] = writer
    return 0


cdef int load_segment(Held held, row, list writers) except -1:
    if row[0] == RESERVATION_ROW:
        load_reservation(held, row, writers)
    elif row[0] == ENTRY_ROW:
        load_entry(held, row, writers)
    elif row[0] == RUN_ROW:
        load_run(held, row, writers)
    else:
        raise ValueError(f"a segment of kind {row[0]!r} is not known to this version")
    return 0


cdef int load_reservation(Held held, row, list writers) except -1:
    cdef Slot made = Slot.__new__(Slot)
    cdef Writer writer = writers[row[7]]
    cdef EntryId settled = writer.settled
    made.id.ms, made.id.seq, made.before.ms, made.before.seq = row[1:5]
    made.lease_ms = row[8]
    writer.add(made)
    made.settled.ms, made.settled.seq = row[5:7]
    writer.settled = settled
    held.segments.items.append(made)
    held.reservations += 1
    return 0


cdef int load_entry(Held held, row, list writers) except -1:
    cdef Slot made = Slot.__new__(Slot)
    made.id.ms, made.id.seq = row[1:3]
    made.writer = None if row[3] is None else writers[row[3]]
    made.words = pack_list(row[4])
    held.segments.items.append(made)
    held.entries += 1
    held.size_bytes += size_of(made.words)
    return 0


cdef int load_run(Held held, row, list writers) except -1:
    cdef Run made = Run.__new__(Run)
    blocks = []
    for count, data in row[1]:
        blocks += Block.unpack(memoryview(data), 0, count)[0]
    if not blocks:
        raise ValueError("a run without entries")
    made.entries = EntryLog.__new__(EntryLog)
    made.entries.last_ms, made.entries.last_seq = blocks[len(blocks) - 1].last_id
    load_blocks(made.entries, blocks, True)
    made.entries.entries_added = made.entries.length
    made.id.ms, made.id.seq = blocks[0].first_id
    if row[2] is not None:
        made.writers = [None if number is None else writers[number] for number in row[2]]
        if len(made.writers) != len(made.entries):
            raise ValueError("a run has not one writer for each entry")
    for _, _, words in made.entries.range():
        made.size_bytes += sum([len(word) for word in words]) + ENTRY_BYTES
    held.segments.items.append(made)
    held.entries += made.entries.length
    held.size_bytes += made.size_bytes
    return 0
