# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The part of a stream above its log while IDs are reserved: open reservations, and held entries,
which are complete but not visible yet.

The log of a stream has the entries that readers may see. It ends at the position: the last ID
handed out before the oldest open reservation. Everything above it is here, in a list of segments in
the order of IDs:

* a Slot: one ID. It is an open reservation, one that was given up, or a held entry: a completed
reservation, or an entry that was appended after one;
* a Run: many held entries as blocks. They are moved to the log as whole blocks, so releasing a
million entries takes a few milliseconds.

The first segment is always an open reservation. When it is settled (completed or given up),
everything before the next open one moves into the log, and the position advances (`release`).
"""

from libc.stdint cimport UINT64_MAX as MAX, uint32_t, uint64_t

cimport cython

from millstream.encoding cimport Slice
from millstream.entry_id cimport EntryId, id_less, step_up
from millstream.storage.blocks.open_block cimport payload_of
from millstream.storage.reservations.held_segment_list cimport SegmentList
from millstream.storage.reservations.held_segments cimport (
    ENTRY_BYTES, Run, Slot, Writer, append_words, link, pack_words, size_of,
)
from millstream.storage.streams.stream cimport RESERVING, Stream

from collections import OrderedDict

from millstream.storage.blocks.lazyfree import discard_items

cdef enum:
    # The number of writers to check when a new one exceeds the limit.
    FORGET_LOOKS = 64


@cython.no_gc
cdef class Held(SegmentList):
    """The segments of one stream, and the writers known to it."""

    def __init__(self):
        self.segments = []
        self.moments_ms = []
        self.writers = OrderedDict()
        self.next_deadline_ms = self.scheduled_ms = MAX
        self.node_entries = 100
        self.node_bytes = 4096

    def __dealloc__(self):
        if self.segments is not None:
            discard_items(self.segments)

    cdef Writer writer(self, bytes name, uint64_t writers_max):
        """The writer with this name, created if necessary; it becomes the one used last. Above
        writers_max, the least recently used writers without reservations are forgotten."""
        cdef Writer writer = self.recent
        if writer is not None and writer.name == name:
            return writer
        writer = self.writers.get(name)
        if writer is None:
            writer = Writer.__new__(Writer)
            writer.name = name
            self.forget_writers(writers_max)
            self.writers[name] = writer
        else:
            self.writers.move_to_end(name)
        self.recent = writer
        return writer

    def forget_writers(self, uint64_t writers_max) -> None:
        """Forget the least recently used writers until there are fewer than writers_max, checking
        at most FORGET_LOOKS. Writers with reservations stay."""
        cdef Writer writer
        cdef Py_ssize_t looks = min(len(self.writers), FORGET_LOOKS)
        while looks and <uint64_t>len(self.writers) >= writers_max:
            looks -= 1
            name = next(iter(self.writers))
            writer = self.writers[name]
            if writer.reservations:
                self.writers.move_to_end(name)
                continue
            del self.writers[name]
            self.has_forgotten = True
            if writer is self.recent:
                self.recent = None

    # ------------------------------------------------------------ reserving and settling

    cdef int reserve(self, Stream stream, EntryId first, uint64_t count, Writer writer,
                     uint32_t lease_ms, uint64_t deadline_ms) except -1:
        """Reserve `count` IDs from `first` on, which is above the last ID. The caller has checked
        that enough IDs exist."""
        cdef Slot made
        cdef list more
        cdef EntryId lowest = first
        cdef uint64_t _
        if not stream.restrictions & RESERVING:
            self.last.ms = stream.last_ms
            self.last.seq = stream.last_seq
        if count == 1:
            made = Slot.__new__(Slot)
            self.segments.append(made)
            self.hand_out(made, first, writer, lease_ms, deadline_ms)
        else:
            more = []
            for _ in range(count):
                more.append(Slot.__new__(Slot))
            self.segments += more
            for made in more:
                self.hand_out(made, first, writer, lease_ms, deadline_ms)
                step_up(&first)
        if self.first_reserved.ms == 0 and self.first_reserved.seq == 0:
            self.first_reserved = lowest
        self.reservations += count
        self.next_deadline_ms = min(self.next_deadline_ms, deadline_ms)
        stream.restrictions |= RESERVING
        return 0

    cdef inline int hand_out(self, Slot made, EntryId entry_id, Writer writer,
                             uint32_t lease_ms, uint64_t deadline_ms) noexcept:
        """Give its ID to a new reservation, which is already among the segments."""
        made.id = entry_id
        made.before = self.last
        made.lease_ms = lease_ms
        made.deadline_ms = deadline_ms
        writer.add(made)
        self.last = entry_id
        return 0

    cdef bint may_have_reserved(self, bytes name, const EntryId* at) except -1:
        """True if a writer can have reserved an ID at some time: False if it certainly has not.
        The IDs of settled reservations are not remembered, only the bounds of each writer's."""
        cdef Writer writer
        cdef EntryId greatest
        if id_less(at.ms, at.seq, self.first_reserved.ms, self.first_reserved.seq):
            return False
        writer = self.writers.get(name)
        if writer is None:
            return self.has_forgotten
        greatest = writer.greatest()
        return not id_less(greatest.ms, greatest.seq, at.ms, at.seq)

    cdef int hold(self, EntryId entry_id, Slice* items, Py_ssize_t count) except -1:
        """Hold an entry that is appended while IDs are reserved; its ID is above the last one."""
        cdef Slot newest = <Slot>self.segments[len(self.segments) - 1]
        cdef Slot made
        cdef Run run
        cdef uint64_t payload = payload_of(items, count)
        if type(newest) is Run:
            run = <Run>newest
            if run.writers is not None:
                run.writers.append(None)
            try:
                run.entries.append(entry_id, items, count, self.node_entries,
                                   self.node_bytes)
            except BaseException:
                if run.writers is not None:
                    run.writers.pop()
                raise
            run.size_bytes += payload + ENTRY_BYTES
        else:
            made = Slot.__new__(Slot)
            made.id = entry_id
            made.words = pack_words(items, count, payload)
            self.segments.append(made)
            self.settled_since += 1
        self.last = entry_id
        self.entries += 1
        self.size_bytes += payload + ENTRY_BYTES
        return 0

    cdef int complete(self, Stream stream, Slot reservation, Py_ssize_t index, Slice* items,
                      Py_ssize_t count) except -1:
        """Settle a reservation, the segment at `index`, with an entry. The entry of the oldest
        reservation goes to the log. Call `release` afterwards."""
        cdef uint64_t payload
        if index == self.first:
            stream.append(reservation.id, items, count, self.node_entries,
                          self.node_bytes)
        else:
            payload = payload_of(items, count)
            reservation.words = pack_words(items, count, payload)
            self.entries += 1
            self.size_bytes += payload + ENTRY_BYTES
        reservation.writer.settle(reservation)
        self.reservations -= 1
        self.settled_since += 1
        return 0

    cdef int give_up(self, Slot reservation) except -1:
        """Settle a reservation without an entry. Call `release` afterwards."""
        reservation.writer.settle(reservation)
        self.reservations -= 1
        self.settled_since += 1
        return 0

    cdef int release(self, Stream stream) except -1:
        """Move everything that is settled before the oldest reservation into the log, and advance
        the position.
        """
        cdef list segments = self.segments
        cdef Py_ssize_t count = len(segments)
        cdef Slot slot
        cdef EntryId position = self.last
        while self.first < count:
            slot = <Slot>segments[self.first]
            if slot.is_open:
                position = slot.before
                break
            if type(slot) is Run:
                self.release_run(stream, <Run>slot)
            else:
                if slot.words is not None:
                    append_words(stream, slot.id, slot.words, self.node_entries, self.node_bytes)
                    self.entries -= 1
                    self.size_bytes -= size_of(slot.words)
                self.settled_since -= self.settled_since > 0
            segments[self.first] = None
            self.first += 1
        self.remove_dropped()
        stream.last_ms = position.ms
        stream.last_seq = position.seq
        if self.reservations == 0:
            stream.restrictions &= ~RESERVING
            self.next_deadline_ms = MAX
        return 0

    cdef int release_run(self, Stream stream, Run run) except -1:
        """Append the entries of a run to the log."""
        cdef uint64_t before = run.entries.length
        cdef uint64_t before_bytes = run.size_bytes
        try:
            if run.entries.sealed is None:
                run.move_into(None, stream, self.node_entries, self.node_bytes)
            else:
                link(stream, run.entries)
        except BaseException:
            self.entries -= before - run.entries.length
            self.size_bytes -= before_bytes - run.size_bytes
            raise
        self.entries -= before
        self.size_bytes -= before_bytes
        return 0

    # ------------------------------------------------------------ leases

    cdef list due(self, uint64_t steady_ms):
        """The open reservations whose lease has ended. Afterwards `next_deadline_ms` is exact.
        """
        cdef Slot slot
        cdef list due = []
        cdef uint64_t earliest = MAX
        cdef Py_ssize_t i
        if self.next_deadline_ms > steady_ms:
            return due
        for i in range(self.first, len(self.segments)):
            slot = <Slot>self.segments[i]
            if not slot.is_open:
                continue
            if slot.deadline_ms <= steady_ms:
                due.append(slot)
            elif slot.deadline_ms < earliest:
                earliest = slot.deadline_ms
        self.next_deadline_ms = earliest
        return due

    def restart_leases(self, uint64_t steady_ms) -> None:
        """Restart every lease now: its writer could not renew it before."""
        cdef Slot slot
        self.next_deadline_ms = MAX
        for slot in self.segments[self.first:]:
            if slot.is_open:
                self.renew(slot, slot.lease_ms, steady_ms)

    cpdef int note_moment(self, uint64_t moment_ms) except -1:
        """Record that a timer of the stream was scheduled, earlier than the other ones."""
        self.moments_ms.append(moment_ms)
        self.scheduled_ms = moment_ms
        return 0

    cdef int pass_moments(self, uint64_t steady_ms) except -1:
        """Forget the timers up to this time, which have run."""
        cdef Py_ssize_t left = len(self.moments_ms)
        while left and <uint64_t>self.moments_ms[left - 1] <= steady_ms:
            left -= 1
        del self.moments_ms[left:]
        self.scheduled_ms = self.moments_ms[left - 1] if left else MAX
        return 0

    def forget_moments(self) -> None:
        """Forget all timers: there are none, or they are for another key."""
        self.moments_ms.clear()
        self.scheduled_ms = MAX

    cdef int renew(self, Slot reservation, uint32_t lease_ms, uint64_t steady_ms) except -1:
        """Restart a lease now, with this length."""
        reservation.lease_ms = lease_ms
        reservation.deadline_ms = steady_ms + lease_ms
        self.next_deadline_ms = min(self.next_deadline_ms, reservation.deadline_ms)
        return 0

    # ------------------------------------------------------------ Python's view

    def reserved_by(self, bytes writer_name not None, list ids=None) -> list[Slot]:
        """The open reservations of a writer, in order; with `ids`, (ms, seq) each, only those with
        these IDs."""
        cdef Writer writer = self.writers.get(writer_name)
        cdef void* at = NULL if writer is None else writer.oldest
        cdef list found = []
        cdef Slot slot
        cdef EntryId entry_id
        cdef Py_ssize_t index
        if ids is None:
            while at != NULL:
                found.append(<Slot>at)
                at = (<Slot>at).following
            return found
        for entry_id.ms, entry_id.seq in ids:
            slot = self.find_open(&entry_id, &index)
            if slot is not None and slot.writer is writer:
                found.append(slot)
        return found

    def reserved_except(self, bytes writer_name not None, set ids not None) -> list[Slot]:
        """The open reservations of a writer, except those with these IDs, (ms, seq) each."""
        return [slot for slot in self.reserved_by(writer_name)
                if ((<Slot>slot).id.ms, (<Slot>slot).id.seq) not in ids]

    def lease_of(self, uint64_t ms, uint64_t seq) -> tuple | None:
        """(writer's name, length of the lease in milliseconds, its end in milliseconds of the
        steady clock) of an open reservation; None when there is none with this ID."""
        cdef EntryId at = EntryId(ms, seq)
        cdef Py_ssize_t index
        cdef Slot found = self.find_open(&at, &index)
        if found is None:
            return None
        return found.writer.name, found.lease_ms, found.deadline_ms

    def give_up_id(self, uint64_t ms, uint64_t seq) -> bool:
        """Give up an open reservation; False when the ID is not reserved. Call `release_into`
        afterwards."""
        cdef EntryId at = EntryId(ms, seq)
        cdef Py_ssize_t index
        cdef Slot found = self.find_open(&at, &index)
        if found is None:
            return False
        self.give_up(found)
        return True

    def release_into(self, Stream stream not None) -> None:
        """`release` for callers in Python."""
        self.release(stream)

    def renew_lease(self, uint64_t ms, uint64_t seq, uint32_t lease_ms, uint64_t steady_ms) -> bool:
        """Restart the lease of an open reservation with this length; False when the ID is not
        reserved."""
        cdef EntryId at = EntryId(ms, seq)
        cdef Py_ssize_t index
        cdef Slot found = self.find_open(&at, &index)
        if found is None:
            return False
        self.renew(found, lease_ms, steady_ms)
        return True

    @property
    def last_id(self) -> tuple[int, int]:
        """The last ID handed out; valid while there are reservations."""
        return self.last.ms, self.last.seq

    @property
    def oldest_id(self) -> tuple[int, int] | None:
        """The ID of the oldest open reservation, None without one."""
        cdef Slot oldest = self.oldest()
        return None if oldest is None else (oldest.id.ms, oldest.id.seq)

    def writer_rows(self) -> list:
        """For each writer: (name, oldest reservation or None, the ID before it or None, the
        greatest ID settled below it or None, number of reservations)."""
        cdef Writer writer
        cdef Slot oldest
        rows = []
        for writer in self.writers.values():
            last = (writer.last.ms, writer.last.seq) if writer.last.ms or writer.last.seq else None
            if writer.oldest == NULL:
                rows.append((writer.name, None, None, last, 0))
            else:
                oldest = <Slot>writer.oldest
                rows.append((writer.name, (oldest.id.ms, oldest.id.seq),
                             (oldest.before.ms, oldest.before.seq), last, writer.reservations))
        return rows

    def writer_position(self, bytes name not None) -> tuple[int, int] | None:
        """The last ID handed out before the oldest reservation of a writer; None without one."""
        cdef Writer writer = self.writers.get(name)
        cdef Slot oldest
        if writer is None or writer.oldest == NULL:
            return None
        oldest = <Slot>writer.oldest
        return oldest.before.ms, oldest.before.seq

    @property
    def memory_bytes(self) -> int:
        """An estimate of the memory used."""
        cdef Writer writer
        cdef uint64_t total = 200 + self.segment_bytes()
        for writer in self.writers.values():
            total += 200 + <uint64_t>len(writer.name)
        return total

    cdef int check_order(self, Stream stream) except -1:
        """ValueError unless the IDs of the segments ascend from the position to the last ID handed
        out."""
        cdef Slot segment
        cdef EntryId before
        before.ms = stream.last_ms
        before.seq = stream.last_seq
        if self.segments and not (<Slot>self.segments[0]).is_open:
            raise ValueError("what it holds does not begin with a reservation")
        for segment in self.segments:
            if not id_less(before.ms, before.seq, segment.id.ms, segment.id.seq):
                raise ValueError("the IDs of what it holds do not rise")
            before = segment.id
            if type(segment) is Run:
                before.ms = (<Run>segment).entries.last_ms
                before.seq = (<Run>segment).entries.last_seq
        if self.segments and id_less(self.last.ms, self.last.seq, before.ms, before.seq):
            raise ValueError("the last ID handed out is below one that it holds")
        return 0


def handed_out_id(Stream stream not None) -> tuple[int, int]:
    """`handed_out` for callers in Python."""
    cdef EntryId last = handed_out(stream)
    return last.ms, last.seq
