from millstream.storage.blocks.block cimport Block
from millstream.storage.blocks.layout cimport View

cdef Block packed_block(const View* view)
