"""The CRC-32 of gzip, for the frames, chunks and blocks of files.

ISA-L's implementation is four times as fast as zlib's on processors with carry-less multiplication.
Where ISA-L is not available, zlib has the same function.
"""

try:
    from isal.isal_zlib import crc32
except ImportError:  # no wheel for this machine
    from zlib import crc32

__all__ = ["crc32"]
