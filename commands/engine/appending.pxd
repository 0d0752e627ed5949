from libc.stdint cimport uint64_t

from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.stream_effects cimport NewEntry
from millstream.encoding cimport Slice
from millstream.entry_id cimport EntryId
from millstream.ids cimport Id
from millstream.storage.reservations.held cimport Held
from millstream.storage.streams.stream cimport RESERVING, Stream

cdef Stream stream_to_append(Context ctx, Slice* key, Slice* items, Py_ssize_t count)
cdef Id append_entry(Context ctx, Slice* key, Stream stream, const NewEntry* entry, bint dotted)
cdef Id append_numbered(Context ctx, Slice* key, Stream stream, const NewEntry* entry,
                        bytes producer, uint64_t seq)
cdef Id append_message(Context ctx, Slice* key, Stream stream, const NewEntry* entry,
                       bytes producer, bytes iid)
cdef int count_appended(Context ctx, Slice* key, Stream stream, uint64_t count) except -1
cdef int check_append(Context ctx, Stream stream) except -1
cdef int restricted_id(Context ctx, Stream stream, EntryId* out) except -1
cdef int check_above_promise(Context ctx, Stream stream, EntryId entry_id, str name,
                             bint dotted) except -1


cdef inline int put_entry(Context ctx, Stream stream, const NewEntry* entry) except -1:
    """Append an entry to the log or, while IDs are reserved, to the held entries; without
    recording it."""
    if stream.restrictions & RESERVING:
        return (<Held>stream.held).hold(entry.id, entry.items, entry.count)
    return stream.append(entry.id, entry.items, entry.count, ctx.keyspace.node_entries,
                         ctx.keyspace.node_bytes)


cdef inline int new_id(Context ctx, Stream stream, EntryId* out) except -1:
    """Generate the ID of an entry that is appended now."""
    if stream.restrictions:
        return restricted_id(ctx, stream, out)
    return stream.next_id(ctx.now_ms, out)


cdef inline Id append_new(Context ctx, Slice* key, Slice* items, Py_ssize_t count,
                          bint dotted):
    """Append one entry with these words and a generated ID, which is returned. The stream is
    created if necessary."""
    cdef Stream stream = stream_to_append(ctx, key, items, count)
    cdef NewEntry entry
    entry.items = items
    entry.count = count
    new_id(ctx, stream, &entry.id)
    return append_entry(ctx, key, stream, &entry, dotted)
