# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The part of a stream above its log while IDs are reserved: open reservations, and held entries,
which are complete but not visible yet.

The log of a stream has the entries that readers may see. It ends at the position: the last ID
handed out before the oldest open reservation. Everything above it is here, in a list of segments in
the order of IDs (held_segment_list):

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
from millstream.storage.reservations.held_writers cimport Writers
from millstream.storage.streams.stream cimport RESERVING, Stream


@cython.no_gc
cdef class Held:
    """The segments of one stream, the writers known to it, and the leases of its reservations."""

    def __cinit__(self):
        self.segments = SegmentList()
        self.writers = Writers()
        self.moments_ms = []
        self.next_deadline_ms = self.scheduled_ms = MAX

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
            self.segments.items.append(made)
            self.hand_out(made, first, writer, lease_ms, deadline_ms)
        else:
            more = []
            for _ in range(count):
                more.append(Slot.__new__(Slot))
            self.segments.items += more
            for made in more:
                self.hand_out(made, first, writer, lease_ms, deadline_ms)
                step_up(&first)
        if self.writers.first_reserved.ms == 0 and self.writers.first_reserved.seq == 0:
            self.writers.first_reserved = lowest
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

    cdef int hold(self, EntryId entry_id, Slice* items, Py_ssize_t count) except -1:
        """Hold an entry that is appended while IDs are reserved; its ID is above the last one."""
        cdef Slot newest = <Slot>self.segments.items[len(self.segments.items) - 1]
        cdef Slot made
        cdef Run run
        cdef uint64_t payload = payload_of(items, count)
        if type(newest) is Run:
            run = <Run>newest
            if run.writers is not None:
                run.writers.append(None)
            try:
                run.entries.append(entry_id, items, count, self.segments.node_entries,
                                   self.segments.node_bytes)
            except BaseException:
                if run.writers is not None:
                    run.writers.pop()
                raise
            run.size_bytes += payload + ENTRY_BYTES
        else:
            made = Slot.__new__(Slot)
            made.id = entry_id
            made.words = pack_words(items, count, payload)
            self.segments.items.append(made)
            self.segments.settled_since += 1
        self.last = entry_id
        self.entries += 1
        self.size_bytes += payload + ENTRY_BYTES
        return 0

    cdef int complete(self, Stream stream, Slot reservation, Py_ssize_t index, Slice* items,
                      Py_ssize_t count) except -1:
        """Settle a reservation, the segment at `index`, with an entry. The entry of the oldest
        reservation goes to the log. Call `release` afterwards."""
        cdef uint64_t payload
        if index == self.segments.first:
            stream.append(reservation.id, items, count, self.segments.node_entries,
                          self.segments.node_bytes)
        else:
            payload = payload_of(items, count)
            reservation.words = pack_words(items, count, payload)
            self.entries += 1
            self.size_bytes += payload + ENTRY_BYTES
        return self.settle(reservation)

    cdef int settle(self, Slot reservation) except -1:
        """Settle a reservation; without an entry unless `complete` has stored one. Call `release`
        afterwards."""
        reservation.writer.settle(reservation)
        self.reservations -= 1
        self.segments.settled_since += 1
        return 0

    cdef int release(self, Stream stream) except -1:
        """Move everything that is settled before the oldest reservation into the log, and advance
        the position.
        """
        cdef SegmentList segments = self.segments
        cdef Py_ssize_t count = len(segments.items)
        cdef Slot slot
        cdef EntryId position = self.last
        while segments.first < count:
            slot = <Slot>segments.items[segments.first]
            if slot.is_open:
                position = slot.before
                break
            if type(slot) is Run:
                self.release_run(stream, <Run>slot)
            elif slot.words is not None:
                append_words(stream, slot.id, slot.words, segments.node_entries,
                             segments.node_bytes)
                self.entries -= 1
                self.size_bytes -= size_of(slot.words)
            segments.drop_first()
        segments.remove_dropped()
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
                run.move_into(None, stream, self.segments.node_entries,
                              self.segments.node_bytes)
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
        for i in range(self.segments.first, len(self.segments.items)):
            slot = <Slot>self.segments.items[i]
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
        for slot in self.segments.items[self.segments.first:]:
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
        cdef Writer writer = self.writers.by_name.get(writer_name)
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
            slot = self.segments.find_open(&entry_id, &index)
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
        cdef Slot found = self.segments.find_open(&at, &index)
        if found is None:
            return None
        return found.writer.name, found.lease_ms, found.deadline_ms

    def give_up_id(self, uint64_t ms, uint64_t seq) -> bool:
        """Give up an open reservation; False when the ID is not reserved. Call `release_into`
        afterwards."""
        cdef EntryId at = EntryId(ms, seq)
        cdef Py_ssize_t index
        cdef Slot found = self.segments.find_open(&at, &index)
        if found is None:
            return False
        self.settle(found)
        return True

    def release_into(self, Stream stream not None) -> None:
        """`release` for callers in Python."""
        self.release(stream)

    def renew_lease(self, uint64_t ms, uint64_t seq, uint32_t lease_ms, uint64_t steady_ms) -> bool:
        """Restart the lease of an open reservation with this length; False when the ID is not
        reserved."""
        cdef EntryId at = EntryId(ms, seq)
        cdef Py_ssize_t index
        cdef Slot found = self.segments.find_open(&at, &index)
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
        cdef Slot oldest = self.segments.oldest()
        return None if oldest is None else (oldest.id.ms, oldest.id.seq)

    @property
    def memory_bytes(self) -> int:
        """An estimate of the memory used."""
        return 200 + self.segments.memory_bytes() + self.writers.memory_bytes()

    cdef int check_order(self, Stream stream) except -1:
        """ValueError unless the IDs of the segments ascend from the position to the last ID handed
        out."""
        cdef list segments = self.segments.items
        cdef Slot segment
        cdef EntryId before
        before.ms = stream.last_ms
        before.seq = stream.last_seq
        if segments and not (<Slot>segments[0]).is_open:
            raise ValueError("what it holds does not begin with a reservation")
        for segment in segments:
            if not id_less(before.ms, before.seq, segment.id.ms, segment.id.seq):
                raise ValueError("the IDs of what it holds do not rise")
            before = segment.id
            if type(segment) is Run:
                before.ms = (<Run>segment).entries.last_ms
                before.seq = (<Run>segment).entries.last_seq
        if segments and id_less(self.last.ms, self.last.seq, before.ms, before.seq):
            raise ValueError("the last ID handed out is below one that it holds")
        return 0


def handed_out_id(Stream stream not None) -> tuple[int, int]:
    """`handed_out` for callers in Python."""
    cdef EntryId last = handed_out(stream)
    return last.ms, last.seq
