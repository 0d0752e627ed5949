# cython: language_level=3, wraparound=False, embedsignature=True
"""Records: the entries that a client returns.

A record has a tuple of its values, and a layout with the names that it shares with the other
records of its stream. Its ID is text until it is read, and then replaces the text.
"""

cimport cython
from cpython.object cimport Py_EQ, PyObject_RichCompareBool, PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from libc.stdint cimport uint64_t

from collections.abc import Mapping
from types import GenericAlias
from typing import TypeVar

from millstream.client.ids import ID, read_id

cdef extern from "Python.h":
    bint PyUnicode_IS_COMPACT_ASCII(object)
    const char* PyUnicode_AsUTF8AndSize(object, Py_ssize_t*) except NULL
    object PyType_GenericAlloc(PyTypeObject*, Py_ssize_t)

cdef extern from *:
    """
    #if PY_VERSION_HEX >= 0x030e0000  // A tuple keeps its hash: -1 means that it is not known.
    #define forget_hash(made) (((PyTupleObject*)(made))->ob_hash = -1)
    #else
    #define forget_hash(made) ((void)0)
    #endif
    """
    void forget_hash(object made)

cdef enum:
    # A number of this many digits fits into 64 bits.
    DIGITS_SAFE = 19

T = TypeVar("T", bound="str | bytes")
V = TypeVar("V")

# The number of combinations of field names that a reader knows.
LAYOUTS_MAX = 100


@cython.final
@cython.no_gc
cdef class Layout:
    """The field names of an entry. Records with the same fields share it: names that are kept for
    each record take more memory than the rest of a small one."""

    def __cinit__(self, tuple names not None):
        self.names = names
        # The place of each field's value, the last one if the field appears more than once.
        self.positions = {name: position for position, name in enumerate(names)}


cdef Layout NO_FIELDS = Layout(())


@cython.freelist(256)
@cython.collection_type("mapping")
@cython.no_gc  # it refers to text and to nothing else that a record could be reached from
cdef class Record:
    """An entry of a stream: a mapping from field to value.

    For a field that appears more than once the mapping has the last value; `pairs` has them all.
    Records with the same ID and shard are equal.

    >>> record = Record(ID(5, 1), "orders", ["5.1", "item", "tea", "count", "2"])
    >>> record["item"], record.id, record.shard
    ('tea', ID(ms=5, seq=1), 'orders')
    >>> dict(record)
    {'item': 'tea', 'count': '2'}
    """

    __reversed__ = None  # as of a Mapping

    def __cinit__(self):
        # The C code relies on both.
        self._layout = NO_FIELDS
        self._values = ()

    def __init__(self, id, shard, entry, late=False):
        """`entry` is the server's form: the ID, then fields and values. If `id` is None, it is read
        from there when it is needed."""
        self._id = entry[0] if id is None else id
        self.shard = shard
        self.late = late
        self._layout = Layout(tuple(entry[1::2]))
        self._values = tuple(entry[2::2])

    @property
    def id(self):
        """The ID of the entry.

        >>> Record(None, "orders", ["5.1", "item", "tea"]).id
        ID(ms=5, seq=1)
        """
        if type(self._id) is not ID:
            self._id = id_in_reply(self._id)
        return self._id

    @property
    def pairs(self):
        """All fields with their values, in the order of the entry.

        >>> Record(ID(5), "orders", ["5.0", "tag", "a", "tag", "b"]).pairs
        [('tag', 'a'), ('tag', 'b')]
        """
        return list(zip(self._layout.names, self._values, strict=True))

    @property
    def value(self):
        """The fields as the codec of the reader decodes them; see `Stream.of`.

        >>> record = Record(ID(5), "orders", ["5.0", "item", "tea"])
        >>> hasattr(record, "value")
        False
        """
        raise AttributeError("the record has no value: read the stream with .of(codec)")

    @property
    def created_at(self):
        """The time in the ID, in UTC, exact to the millisecond.

        >>> Record(ID(1795170387725), "orders", ["1795170387725.0", "n", "1"]).created_at.year
        2026
        """
        return self.id.created_at

    def __getitem__(self, field):
        return self._values[<Py_ssize_t>self._layout.positions[field]]

    def __iter__(self):
        return iter(self._layout.positions)

    def __len__(self):
        return len(self._layout.positions)

    def __contains__(self, field):
        return field in self._layout.positions

    def get(self, field, default=None):
        """The value of a field, or the default.

        >>> Record(ID(5), "orders", ["5.0", "item", "tea"]).get("size", "none")
        'none'
        """
        return self[field] if field in self._layout.positions else default

    def keys(self):
        """The fields.

        >>> list(Record(ID(5), "orders", ["5.0", "item", "tea"]).keys())
        ['item']
        """
        return self._layout.positions.keys()

    def values(self):
        """The values, in the order of the fields.

        >>> list(Record(ID(5), "orders", ["5.0", "item", "tea"]).values())
        ['tea']
        """
        return self.mapping().values()

    def items(self):
        """The fields with their values.

        >>> list(Record(ID(5), "orders", ["5.0", "item", "tea"]).items())
        [('item', 'tea')]
        """
        return self.mapping().items()

    cdef dict mapping(self):
        return dict(zip(self._layout.names, self._values, strict=True))

    def __eq__(self, other):
        if not isinstance(other, Record):
            return NotImplemented
        return self.id == other.id and self.shard == other.shard

    def __hash__(self):
        return hash((self.id, self.shard))

    def __repr__(self):
        return f"Record({self.shard} {self.id} {self.mapping()!r})"

    def __reduce__(self):
        entry = [str(self.id)]
        for pair in self.pairs:
            entry += pair
        return type(self), (self.id, self.shard, entry, self.late)

    @classmethod
    def __class_getitem__(cls, text):
        return GenericAlias(cls, text)


Mapping.register(Record)


class ValueRecord(Record):
    """A record with the value that a codec has made of its fields."""

    __slots__ = ("value",)

    def __repr__(self):
        return f"Record({self.shard} {self.id} {self.value!r})"

    def __reduce__(self):
        return with_value, (Record(*Record.__reduce__(self)[1]), self.value)


def with_value(Record record not None, value):
    """The record as one that has a `value`."""
    cdef Record made = ValueRecord.__new__(ValueRecord)
    made._id = record._id
    made.shard = record.shard
    made.late = record.late
    made._layout = record._layout
    made._values = record._values
    made.value = value
    return made


def mark_late(Record record not None):
    """A record with a greater ID was handed out before this one."""
    record.late = True


cdef class RecordReader:
    """Makes the records of replies."""

    def __cinit__(self):
        self._layout = NO_FIELDS
        self._layouts = {}

    def read(self, shard, entries):
        """The records of entries, as Record(None, shard, entry) makes them, with layouts that they
        share."""
        cdef list found = []
        for entry in entries:
            found.append(self.record(shard, entry))
        return found

    cdef Record record(self, object shard, list entry):
        cdef Py_ssize_t count = len(entry) // 2
        cdef Py_ssize_t i
        if len(entry) != 2 * count + 1:
            raise ValueError(f"an entry of {len(entry)} words is not an ID with pairs")
        if not has_names(entry, self._layout.names):
            self._layout = self.find(tuple(entry[1::2]))
        cdef Record record = Record.__new__(Record)
        cdef tuple values = PyTuple_New(count)
        for i in range(count):
            value = entry[2 * i + 2]
            Py_INCREF(value)  # the tuple takes it over
            PyTuple_SET_ITEM(values, i, value)
        record._id = entry[0]
        record.shard = shard
        record._layout = self._layout
        record._values = values
        return record

    cdef Layout find(self, tuple names):
        cdef Layout layout = self._layouts.get(names)
        if layout is None:
            if len(self._layouts) == LAYOUTS_MAX:  # field names that are data
                self._layouts.clear()
            layout = self._layouts[names] = Layout(names)
        return layout

    @property
    def layouts(self):
        """The number of combinations of field names that are known."""
        return len(self._layouts)


@cython.final
cdef class Handed:
    """The number of records that a stream has handed out."""

    cdef public Py_ssize_t count


@cython.final
cdef class Run:
    """The next records of a stream of one shard, all but the last one that was fetched. It ends
    early when the follow that began at `begun` is stopped, or when `merge` has another heap."""

    cdef object _buffer, _take, _shard, _merge, _heap, _stops, _begun
    cdef Handed _handed

    def __init__(self, shard, merge, stops, begun, Handed handed not None):
        self._shard = shard
        self._buffer = shard.buffer
        self._take = self._buffer.popleft
        self._merge = merge
        self._heap = merge.heap
        self._stops = stops
        self._begun = begun
        self._handed = handed

    def __iter__(self):
        return self

    def __next__(self):
        # No signal handler runs in the middle of this.
        if (
            len(self._buffer) < 2
            or self._merge.heap is not self._heap
            or not PyObject_RichCompareBool(self._stops.count, self._begun, Py_EQ)
        ):
            raise StopIteration
        record = self._take()
        self._shard.last = record
        self._handed.count += 1
        return record


cdef bint has_names(list entry, tuple names) except -1:
    """True if an entry has these fields, in this order."""
    cdef Py_ssize_t i
    if len(entry) != 2 * len(names) + 1:
        return False
    for i in range(len(names)):
        if not PyObject_RichCompareBool(entry[2 * i + 1], names[i], Py_EQ):
            return False
    return True


cdef object id_in_reply(object text):
    """An ID as `read_id` reads it, in less time. Text of an unusual form is left to `read_id`."""
    cdef Py_ssize_t size, first, second
    cdef const char* start
    cdef uint64_t ms, seq
    if type(text) is str and PyUnicode_IS_COMPACT_ASCII(text):
        start = PyUnicode_AsUTF8AndSize(text, &size)
    elif type(text) is bytes:
        start, size = text, len(<bytes>text)
    else:
        return read_id(text)
    first = read_digits(start, size, &ms)
    if not 0 < first < size - 1 or (start[first] != c"." and start[first] != c"-"):
        return read_id(text)
    second = read_digits(start + first + 1, size - first - 1, &seq)
    if first + 1 + second != size:
        return read_id(text)
    return new_id(ms, seq)


cdef Py_ssize_t read_digits(const char* text, Py_ssize_t size, uint64_t* out) noexcept:
    """Parse the leading digits, at most DIGITS_SAFE, and return their count."""
    cdef Py_ssize_t most = min(size, <Py_ssize_t>DIGITS_SAFE)
    cdef Py_ssize_t i = 0
    cdef uint64_t value = 0
    cdef uint64_t digit
    while i < most:
        digit = <uint64_t>(<unsigned char>text[i]) - 48
        if digit > 9:
            break
        value = value * 10 + digit
        i += 1
    out[0] = value
    return i


cdef object new_id(object ms, object seq):
    """ID(ms, seq), without a tuple of arguments."""
    made = PyType_GenericAlloc(<PyTypeObject*>ID, 2)
    forget_hash(made)
    Py_INCREF(ms)
    PyTuple_SET_ITEM(made, 0, ms)
    Py_INCREF(seq)
    PyTuple_SET_ITEM(made, 1, seq)
    return made
