"""Writes a stream's entries in the dump format of Redis, which stores them in nodes.

A node is a listpack: a sequence of texts and numbers, each followed by its length (`node_codec`
reads it). The names of the first entry are stored once at the beginning of the node; IDs are
differences from the node's key.
Nodes are preserved in both directions, so trimming with `~` evicts the same entries before and
after. `write_node` yields None after each step, for other work.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator
from itertools import islice

from millstream.errors import PayloadError
from millstream.storage.blocks.block import Block
from millstream.storage.dump.primitives import EntryId, canonical_int

Entry = tuple[int, int, list[bytes]]

HEADER_BYTES = 6
END = b"\xff"
COUNT_UNKNOWN = 0xFFFF  # more elements than the header can count
SAME_FIELDS = 2
# Elements per step: about a quarter of a millisecond's work.
STEP_ELEMENTS = 256
NODE_MAX_BYTES = 0xFFFFFFFF

# First byte of a number of fixed width: the number of bytes after it.
_NUMBER_WIDTHS = {0xF1: 2, 0xF2: 3, 0xF3: 4, 0xF4: 8}
_SMALL_NUMBERS = [bytes((number, 1)) for number in range(128)]
# For texts of fewer than 64 bytes, by size: the bytes before and after the text.
_SHORT_TEXTS = [(bytes((0x80 | size,)), bytes((size + 1,))) for size in range(64)]


def _back_length(size_bytes: int) -> bytes:
    """The length after an element of this size, which is parsed from its end: seven bits in each
    byte, all bytes but the first marked. From two bytes on, Redis uses one more byte for the
    largest number that would fit, and refuses any other width."""
    if size_bytes < 128:
        return bytes((size_bytes,))
    limits = (16_383, 2_097_151, 268_435_455)
    width = 2 + sum(size_bytes >= limit for limit in limits)
    groups = [size_bytes >> 7 * i & 127 for i in reversed(range(width))]
    return bytes([groups[0], *(group | 128 for group in groups[1:])])


# ---------------------------------------------------------------- writing


def _number_element(number: int) -> bytes:
    """A number in Redis' shortest encoding."""
    if 0 <= number < 128:
        return _SMALL_NUMBERS[number]
    if -4096 <= number < 4096:
        return struct.pack(">HB", 0xC000 | number & 0x1FFF, 2)
    for kind, width in _NUMBER_WIDTHS.items():
        if -(1 << 8 * width - 1) <= number < 1 << 8 * width - 1:
            return b"%c%b%c" % (kind, number.to_bytes(width, "little", signed=True), width + 1)
    raise OverflowError(f"{number} has more than 64 bits")


def _text_element(text: bytes) -> bytes:
    """A name or value; a text that is a 64-bit number is encoded as a number."""
    number = canonical_int(text)
    if number is not None and _signed(number) == number:
        return _number_element(number)
    size_bytes = len(text)
    if size_bytes < 64:
        before, after = _SHORT_TEXTS[size_bytes]
        return before + text + after
    if size_bytes < 4096:
        head = struct.pack(">H", 0xE000 | size_bytes)
    else:
        head = struct.pack("<BI", 0xF0, size_bytes)
    return head + text + _back_length(len(head) + size_bytes)


def _signed(number: int) -> int:
    """The lowest 64 bits of a number as a signed number."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def live_nodes(block: Block, first_kept: EntryId) -> list[list[Entry]]:
    """The entries of a block that are neither deleted nor below the first kept ID, by node, without
    empty nodes."""
    nodes = block.nodes()
    if block.first_id < first_kept:
        nodes = [[entry for entry in node if entry[:2] >= first_kept] for node in nodes]
    return [node for node in nodes if node]


def count_live_nodes(block: Block, first_kept: EntryId) -> int:
    """The number of nodes that `live_nodes` returns."""
    if block.live == block.count and block.first_id >= first_kept:
        return block.node_count
    return len(live_nodes(block, first_kept))


def write_node(entries: list[Entry]) -> Generator[None, None, bytes]:
    """The listpack of a node with these entries. Its key is the ID of the first."""
    made: list[bytes] = []
    elements = _node_elements(entries)
    while some := list(islice(elements, STEP_ELEMENTS)):
        made += some
        yield
    size_bytes = HEADER_BYTES + sum(map(len, made)) + len(END)
    if size_bytes > NODE_MAX_BYTES:
        raise PayloadError("ERR a node of this stream is too long for Redis' dump format")
    head = struct.pack("<IH", size_bytes, min(len(made), COUNT_UNKNOWN))
    return b"".join([head, *made, END])


def _node_elements(entries: list[Entry]) -> Iterator[bytes]:
    first_ms, first_seq, words = entries[0]
    names = words[::2]
    yield from map(_number_element, (len(entries), 0, len(names)))
    yield from map(_text_element, names)
    yield _number_element(0)
    for ms, seq, words in entries:
        difference = _signed(ms - first_ms), _signed(seq - first_seq)
        if words[::2] == names:
            head: tuple[int, ...] = SAME_FIELDS, *difference
            texts = words[1::2]
        else:
            head = 0, *difference, len(words) // 2
            texts = words
        yield from map(_number_element, head)
        yield from map(_text_element, texts)
        yield _number_element(len(head) + len(texts))
