# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The keys that match a pattern as a reply, those of a large database found in turns.

How many match is known only when all have been looked at, and that takes a tenth of a second for
some hundred thousand: others have their turn meanwhile. The keys are those of the moment of asking.
What is found is kept as it will be sent; nothing leaves before the last key was looked at.
"""

from millstream.commands.engine.ranges cimport SLICE_BYTES
from millstream.commands.runtime.replies cimport Encodable, Sliced
from millstream.encoding cimport Output
from millstream.storage.streams.keyspace cimport Database

cdef enum:
    # Keys, and slots for keys, looked at in one turn.
    LOOKS = 1024


cdef class FoundKeys(Encodable):
    """The keys of a database for which `matches` answers something true."""

    def __init__(self, Database database not None, matches):
        self.remainder = SlicedKeys(database.walk(), matches)

    cdef int encode(self, Output out, int resp) except -1:
        return 0

    cdef Sliced rest(self):
        return self.remainder


cdef class SlicedKeys(Sliced):
    """`pieces` are what was found, encoded; the last one is to be sent first."""

    def __init__(self, walk, matches):
        self.walk = walk
        self.matches = matches
        self.out = Output()
        self.pieces = []

    def __del__(self):
        # The client may be gone before all keys were looked at.
        self.walk.close()

    def prepare(self) -> bool:
        cdef bytes key
        if self.out is None:
            return False
        keys = self.walk.step(LOOKS)
        if keys is None:
            self.finish()
            return False
        for key in keys if self.matches is None else filter(self.matches, keys):
            self.out.put_bulk_bytes(key)
            self.count += 1
        if self.out.size >= SLICE_BYTES:
            self.pieces.append(self.out.take())
        return True

    cdef int finish(self) except -1:
        cdef Output head = Output()
        self.walk.close()
        self.pieces.append(self.out.take())
        self.out = None
        head.put_head(c'*', self.count)
        self.pieces.append(head.take())
        return 0

    def next_slice(self) -> bytes:
        piece = b""
        while self.pieces and not piece:
            piece = self.pieces.pop()
        return piece
