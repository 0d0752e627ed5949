# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Reads that wait: of several streams, for entries that match a filter, or of groups.

While a read waits on groups, they count it and cannot end by their time to live, which starts again
at the end of the wait.
"""

from libc.stdint cimport UINT64_MAX as MAX, int64_t

from millstream.commands.engine.search_work cimport RETRY_WORK, SearchShare
from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.encoding cimport Slice
from millstream.entry_id cimport EntryId, id_less, step_down, step_up
from millstream.storage.groups.group cimport Group
from millstream.storage.keyspace.keyspace_core cimport DatabaseCore as Database
from millstream.storage.log.log_search cimport Search, begin_search, search_log
from millstream.storage.streams.stream cimport Stream

cdef enum:
    # The delay of a read that cannot be recorded now.
    AGAIN_MS = 1000


cdef class StreamsRead(BlockedRead):
    """A read of several streams: its keys and, for each, the ID after which it reads."""

    cdef Stream look_up(self, Context ctx, Slice* key):
        """Look up a stream for the first attempt."""
        return ctx.read_stream_at(key)

    cdef tuple take_after(self, Args args, Stream stream):
        """Take an ID, (ms, seq); words for a stream's end are resolved now."""
        raise NotImplementedError

    cdef list take_streams(self, Context ctx, Args args):
        """Take the remaining words, as many keys as IDs; returns the streams."""
        cdef list streams = []
        cdef Py_ssize_t count = (args.count - args.pos) // 2
        cdef Slice* key = &args.items[args.pos]
        cdef Py_ssize_t i
        self.keys = []
        self.after = []
        args.pos += count
        for i in range(count):
            stream = self.look_up(ctx, &key[i])
            streams.append(stream)
            self.keys.append((self.db_index, ctx.db.key_of(&key[i])))
            self.after.append(self.take_after(args, stream))
        return streams


cdef class SearchingRead(StreamsRead):
    """A read of several streams that may have a filter (None: it has none). It looks for the first
    match, and remembers how far it has looked. While `is_searching`, it is continued in later turns, and
    a change of its streams does not retry it."""

    cdef int set_searching(self, bint searching) except -1:
        if self.share is None:
            self.share = SearchShare.__new__(SearchShare)
        return self.share.set_running(searching)

    cdef EntryId position(self, Py_ssize_t i, Stream stream):
        """The ID after which the search of a stream continues: that of the request, or up to where
        nothing matches."""
        cdef EntryId found
        place = self.after[i]
        if self.looked is not None and self.looked[i] is not None and (
                self.looked[i][0] == stream.incarnation and self.looked[i][1:] > place):
            place = self.looked[i][1:]
        found.ms, found.seq = place
        return found

    cdef int note_missed(self, Py_ssize_t i, Stream stream, EntryId start) except -1:
        """Note that entries after the position were evicted before this read has searched them."""
        if id_less(start.ms, start.seq, stream.max_evicted_ms, stream.max_evicted_seq):
            is_gap = start.ms or start.seq or self.has_gap_in(i, stream)
            self.missed[i] = (
                stream.incarnation, stream.max_evicted_ms, stream.max_evicted_seq, bool(is_gap))
        return 0

    cdef bint has_missed(self, Py_ssize_t i, Stream stream, EntryId* evicted) except -1:
        """True if entries of a stream were evicted before this read could search them."""
        if self.missed is None or self.missed[i] is None or (
                self.missed[i][0] != stream.incarnation):
            return False
        evicted.ms, evicted.seq = self.missed[i][1:3]
        return True

    cdef bint has_gap_in(self, Py_ssize_t i, Stream stream) except -1:
        """`has_missed`, if the read does not begin at 0."""
        cdef EntryId evicted
        return self.has_missed(i, stream, &evicted) and self.missed[i][3]

    cdef bint look(self, list streams) except -1:
        """Look for a match; True if a stream has one after its position. If there is more to look at
        than this turn allows, the read is searching."""
        cdef int64_t work
        cdef bint is_found
        self.set_searching(False)
        if self.looked is None:
            self.looked = [None] * len(streams)
            self.missed = [None] * len(streams)
        work = self.share.begin()
        if work <= 0:
            self.set_searching(True)
            return False
        work -= RETRY_WORK
        is_found = self.look_on(streams, &work)
        self.share.end(work)
        return is_found

    cdef bint look_on(self, list streams, int64_t* work) except -1:
        cdef Search search
        cdef Stream stream
        cdef EntryId start
        cdef Py_ssize_t i
        cdef bint complete
        for i in range(len(streams)):
            stream = streams[i]
            if stream is None:
                continue
            start = self.position(i, stream)
            self.note_missed(i, stream, start)
            if not stream.has_newer(start):
                continue
            step_up(&start)
            begin_search(&search, start, EntryId(MAX, MAX), 1)
            search.work = work[0]
            complete = search_log(stream, self.filter, &search, None)
            work[0] = search.work
            start = search.last if search.found else search.start
            step_down(&start)
            self.looked[i] = (stream.incarnation, start.ms, start.seq)
            if search.found:
                return True
            if not complete or (work[0] <= 0 and i + 1 < len(streams)):
                self.set_searching(True)
                return False
        return False

    def ended(self, Context ctx not None) -> None:
        if self.is_searching():
            self.set_searching(False)


cdef class GroupsRead(BlockedRead):
    """A read of the groups with one name, in one or several streams."""

    cdef int count_in(self, Group group, int change) except -1:
        """Count the client in or out of a group on which it waits."""
        group.pending.blocked_clients += change
        return 0

    cdef int hold(self, list groups) except -1:
        """Count the client as waiting on these groups, and no longer on others."""
        if self.held is not None:
            for group in self.held:
                self.count_in(group, -1)
        self.held = groups
        for group in groups:
            self.count_in(group, 1)
        return 0

    def join(self, Stream stream not None, Group group not None) -> None:
        self.count_in(group, 1)
        self.held.append(group)

    cdef int note_end(self, Context ctx, Group group) except -1:
        """Note that the wait on a group has ended."""
        return 0

    cdef int retry_later(self, Context ctx) except -1:
        """Retry the reads of these groups a little later."""
        for _, key in self.keys:
            self.look_again(ctx, key, AGAIN_MS)
        return 0

    cdef int look_again(self, Context ctx, bytes key, uint64_t after_ms) except -1:
        """Look at a key again after this time."""
        ctx.keyspace.timer_requests.append((ctx.steady_ms + after_ms, self.db_index, key, self.group))
        return 0

    cdef bint has_room(self, Context ctx, int64_t size, bint first) except -1:
        """Check that the journal has space for effects. Without it, the first attempt is refused,
        and a later one is retried."""
        if first:
            ctx.effects.require(size)
        elif not ctx.effects.has_room(size):
            self.retry_later(ctx)
            return False
        return True

    def ended(self, Context ctx not None) -> None:
        cdef Database db = <Database>ctx.keyspace.databases[self.db_index]
        cdef Group group
        self.hold([])
        for _, key in self.keys:
            value = db.get(key)
            group = (<Stream>value).group(self.group) if isinstance(value, Stream) else None
            if group is not None:
                group.restart_ttl(ctx.steady_ms)
                self.note_end(ctx, group)
                ctx.keyspace.schedule(self.db_index, key, group)
