# cython: language_level=3, wraparound=False
"""Reservations and held entries (storage/reservations/held) in a snapshot: docs/formats.md, held.

A snapshot shows one moment. `share` copies the parts that may change later, which takes about 0.1
us per reservation; a thread packs the copy in small parts.
"""

from libc.stdint cimport INT64_MAX, uint64_t

from millstream.entry_id cimport EntryId, id_less
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
    PART_BYTES = 65536

# The first element of a segment's row.
cdef enum:
    RESERVATION_ROW = 0
    ENTRY_ROW = 1
    RUN_ROW = 2
    MORE_OF_RUN_ROW = 3  # only in parts


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

    def __len__(self) -> int:
        """The number of rows and of blocks."""
        cdef Py_ssize_t count = len(self.segments) + len(self.writers)
        for segment in self.segments:
            if type(segment) is tuple:
                count += len(segment[0])
        return count

    def parts(self, Py_ssize_t rows_max, Py_ssize_t blocks_max):
        """The arguments of `load_more`, as msgpack, each with at most this number of rows, or of
        blocks of a run."""
        import msgpack

        cdef list rows = []
        cdef Py_ssize_t size_bytes = 0
        packer = msgpack.Packer()
        yield packer.pack({
            "last_id": [self.last.ms, self.last.seq],
            "first_reserved": [self.first_reserved.ms, self.first_reserved.seq],
            "has_forgotten": self.has_forgotten,
        })
        for start in range(0, len(self.writers), rows_max):
            yield packer.pack({"writers": self.writers[start:start + rows_max]})
        for segment in self.segments:
            if type(segment) is tuple:
                if rows:
                    yield self.rows_part(packer, rows)
                    rows, size_bytes = [], 0
                yield from self.run_parts(packer, segment[0], segment[1], blocks_max)
                continue
            rows.append(packer.pack(self.row_of(<Slot>segment)))
            size_bytes += len(rows[len(rows) - 1])
            if len(rows) == rows_max or size_bytes >= PART_BYTES:
                yield self.rows_part(packer, rows)
                rows, size_bytes = [], 0
        if rows:
            yield self.rows_part(packer, rows)

    def rows_part(self, packer, list rows):
        head = packer.pack_map_header(1) + packer.pack("segments")
        return head + packer.pack_array_header(len(rows)) + b"".join(rows)

    def run_parts(self, packer, blocks, writers, Py_ssize_t blocks_max):
        """The first blocks of a run as a row of their own, then the others."""
        cdef Py_ssize_t at = 0
        cdef Py_ssize_t entries = 0
        kind = RUN_ROW
        while at < len(blocks):
            data, taken, _, live = Block.pack(blocks[at:at + blocks_max], PART_BYTES, INT64_MAX)
            numbers = None if writers is None else [
                self.number_of(writer) for writer in writers[entries:entries + live]]
            at += taken
            yield packer.pack({
                "segments": [[<int>kind, [[taken, data]], numbers, at == len(blocks)]]})
            entries += live
            kind = MORE_OF_RUN_ROW

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


def load_more(Stream stream not None, dict meta not None, uint64_t steady_ms) -> int:
    """Add a part of `SharedHeld.parts` to what a stream holds, with all leases restarted; the number
    of reservations in it. What is there after each part is consistent. ValueError when the parts are
    not."""
    cdef Held held
    cdef uint64_t before
    cdef Py_ssize_t start
    if "last_id" in meta:
        if stream.held is not None:
            raise ValueError("what it holds begins twice")
        held = stream.held = Held()
        held.last.ms, held.last.seq = meta["last_id"]
        held.writers.first_reserved.ms, held.writers.first_reserved.seq = meta["first_reserved"]
        held.writers.has_forgotten = meta["has_forgotten"]
    elif stream.held is None:
        raise ValueError("a part of what it holds comes before its beginning")
    held = stream.held
    before = held.reservations
    for row in meta.get("writers", ()):
        load_writer(held, row)
    rows = meta.get("segments", ())
    if rows:
        writers = list(held.writers.by_name.values())
        start = len(held.segments.items)
        for row in rows:
            if row[0] == MORE_OF_RUN_ROW:
                extend_run(held, row, writers)
            else:
                load_segment(held, row, writers)
        check_rising(held, stream, start)
        restart_some(held, start, steady_ms)
    if held.reservations:
        stream.restrictions |= RESERVING
    return held.reservations - before


cdef int check_rising(Held held, Stream stream, Py_ssize_t start) except -1:
    """As `Held.check_order`, for the segments from one on."""
    cdef EntryId before
    cdef Slot segment
    cdef Py_ssize_t i
    if not (<Slot>held.segments.items[0]).is_open:
        raise ValueError("what it holds does not begin with a reservation")
    if start:
        end_of(<Slot>held.segments.items[start - 1], &before)
    else:
        before.ms, before.seq = stream.last_ms, stream.last_seq
    for i in range(start, len(held.segments.items)):
        segment = <Slot>held.segments.items[i]
        if not id_less(before.ms, before.seq, segment.id.ms, segment.id.seq):
            raise ValueError("the IDs of what it holds do not rise")
        end_of(segment, &before)
    if id_less(held.last.ms, held.last.seq, before.ms, before.seq):
        raise ValueError("the last ID handed out is below one that it holds")
    return 0


cdef int end_of(Slot segment, EntryId* found) except -1:
    """Get the last ID of a segment."""
    found[0] = segment.id
    if type(segment) is Run:
        found.ms, found.seq = (<Run>segment).entries.last_ms, (<Run>segment).entries.last_seq
    return 0


cdef int restart_some(Held held, Py_ssize_t start, uint64_t steady_ms) except -1:
    """Restart the leases of the segments from one on."""
    cdef Slot slot
    cdef Py_ssize_t i
    for i in range(start, len(held.segments.items)):
        slot = <Slot>held.segments.items[i]
        if slot.is_open:
            held.renew(slot, slot.lease_ms, steady_ms)
    return 0


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
    cdef list blocks = blocks_of(row)
    made.entries = EntryLog.__new__(EntryLog)
    made.id.ms, made.id.seq = blocks[0].first_id
    add_blocks(held, made, blocks, len(row) < 4 or row[3])
    add_writers(made, row[2], writers)
    held.segments.items.append(made)
    return 0


cdef int extend_run(Held held, row, list writers) except -1:
    """Add blocks to the last segment, which is a run."""
    cdef list segments = held.segments.items
    cdef Run run
    if not segments or type(segments[len(segments) - 1]) is not Run:
        raise ValueError("more of a run without its beginning")
    run = <Run>segments[len(segments) - 1]
    if run.entries.has_tail():  # this run was in a snapshot meanwhile
        run.entries.seal()
    add_blocks(held, run, blocks_of(row), row[3])
    add_writers(run, row[2], writers)
    return 0


cdef list blocks_of(row):
    """The blocks of a row of a run."""
    cdef list blocks = []
    for count, data in row[1]:
        blocks += Block.unpack(memoryview(data), 0, count)[0]
    if not blocks:
        raise ValueError("a run without entries")
    return blocks


cdef int add_blocks(Held held, Run run, list blocks, bint is_open) except -1:
    """Add blocks to a run, and count their entries. `is_open`: the last one continues."""
    cdef uint64_t before = run.entries.length
    cdef uint64_t size_bytes = 0
    run.entries.last_ms, run.entries.last_seq = blocks[len(blocks) - 1].last_id
    load_blocks(run.entries, blocks, is_open)
    run.entries.entries_added = run.entries.length
    first_ms, first_seq = blocks[0].first_id
    for _, _, words in run.entries.range(first_ms, first_seq):
        size_bytes += sum([len(word) for word in words]) + ENTRY_BYTES
    run.size_bytes += size_bytes
    held.entries += run.entries.length - before
    held.size_bytes += size_bytes
    return 0


cdef int add_writers(Run run, numbers, list writers) except -1:
    """Add the writers of the entries that were loaded last."""
    if numbers is None:
        if run.writers is not None:
            raise ValueError("a run has not one writer for each entry")
        return 0
    more = [None if number is None else writers[number] for number in numbers]
    run.writers = more if run.writers is None else run.writers + more
    if len(run.writers) != len(run.entries):
        raise ValueError("a run has not one writer for each entry")
    return 0
