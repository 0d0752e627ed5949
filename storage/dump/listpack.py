"""A stream's entries in the dump format of Redis, which stores them in nodes.

A node is a listpack: a sequence of texts and numbers, each followed by its length. The names of the
first entry are stored once at the beginning of the node; IDs are differences from the node's key.
Nodes are preserved in both directions, so trimming with `~` evicts the same entries before and
after. Reading checks every length, count and ID, because a payload may come from any source.

`read_node` and `write_node` yield None after each step, for other work.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator
from itertools import islice

from millstream.errors import PayloadError
from millstream.storage.blocks.block import Block
from millstream.storage.dump.primitives import EntryId, canonical_int
from millstream.storage.streams.stream import Stream

Element = int | bytes
Entry = tuple[int, int, list[bytes]]

HEADER_BYTES = 6
END = b"\xff"
COUNT_UNKNOWN = 0xFFFF  # more elements than the header can count
DELETED = 1
SAME_FIELDS = 2
# A few bytes of LZF can expand to hundreds of fields, which need memory while they are read.
FIELDS_MAX = 1 << 20
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


# ---------------------------------------------------------------- reading elements


def _check_header(listpack: bytes) -> int:
    """The number of elements that the header of a listpack states."""
    if len(listpack) <= HEADER_BYTES or listpack[-1:] != END:
        raise PayloadError("a node is not a listpack")
    size_bytes, elements = struct.unpack_from("<IH", listpack)
    if size_bytes != len(listpack):
        raise PayloadError("the length of a node differs from the length in its header")
    return int(elements)


def _elements(listpack: bytes) -> Iterator[Element]:
    """The elements of a listpack whose header is correct."""
    at, end = HEADER_BYTES, len(listpack) - 1
    item: Element
    while at < end:
        kind = listpack[at]
        if kind < 0x80:
            item, after = kind, at + 1
        elif kind < 0xC0:
            after = at + 1 + (kind & 0x3F)
            item = listpack[at + 1 : after]
        else:
            item, after = _long_element(listpack, at)
        if after < end and listpack[after] == after - at < 128:
            at = after + 1
        else:
            at = _end_of_long(listpack, at, after)
        yield item


def _long_element(listpack: bytes, at: int) -> tuple[Element, int]:
    """An element with more than one byte before its text, and its end."""
    kind = listpack[at]
    if kind < 0xE0:
        number = (kind & 0x1F) << 8 | listpack[at + 1]
        return number - 8192 if number >= 4096 else number, at + 2
    if kind in _NUMBER_WIDTHS:
        after = at + 1 + _NUMBER_WIDTHS[kind]
        return int.from_bytes(listpack[at + 1 : after], "little", signed=True), after
    if kind > 0xF0:
        raise PayloadError("a node has a malformed element")
    if kind < 0xF0:
        start, size_bytes = at + 2, (kind & 0x0F) << 8 | listpack[at + 1]
    else:
        start, size_bytes = at + 5, int.from_bytes(listpack[at + 1 : at + 5], "little")
    return listpack[start : start + size_bytes], start + size_bytes


def _end_of_long(listpack: bytes, at: int, after: int) -> int:
    """The end of the length that follows an element of more than 127 bytes."""
    back = _back_length(after - at)
    end = after + len(back)
    if end >= len(listpack) or listpack[after:end] != back:
        raise PayloadError("a node has a malformed element")
    return end


# ---------------------------------------------------------------- reading a node


def _numbers(elements: Iterator[Element], count: int) -> list[int]:
    numbers = [item for item in islice(elements, count) if isinstance(item, int)]
    if len(numbers) < count:
        raise PayloadError("a node has a text or nothing where a number belongs")
    return numbers


def _counts(elements: Iterator[Element], count: int) -> list[int]:
    counts = _numbers(elements, count)
    if min(counts) < 0:
        raise PayloadError("a node has a count below 0")
    return counts


def _texts(elements: Iterator[Element], count: int) -> Generator[None, None, list[bytes]]:
    """The next elements as texts."""
    found: list[bytes] = []
    while len(found) < count:
        if found:
            yield
        some = list(islice(elements, min(count - len(found), STEP_ELEMENTS)))
        if not some:
            raise PayloadError("an entry has more fields than there are")
        found += [item if isinstance(item, bytes) else b"%d" % item for item in some]
    return found


def _fields(elements: Iterator[Element], each: int) -> Generator[None, None, list[bytes]]:
    """A count of fields, and `each` texts for each of them."""
    (fields,) = _counts(elements, 1)
    if fields == 0:
        raise PayloadError("an entry has no fields")
    if fields > FIELDS_MAX:
        raise PayloadError(f"an entry has {fields} fields, more than {FIELDS_MAX}")
    return (yield from _texts(elements, fields * each))


def read_node(stream: Stream, key: EntryId, listpack: bytes) -> Iterator[None]:
    """Append the entries of a node to a stream that has no other user yet.

    PayloadError when the node is not as Redis writes it; the stream is then incomplete.
    """
    stated = _check_header(listpack)
    elements = _elements(listpack)
    live, deleted = _counts(elements, 2)
    names = yield from _fields(elements, 1)
    if _numbers(elements, 1) != [0]:
        raise PayloadError("the names of a node's first entry have no end")
    count = paused_at = 4 + len(names)
    appended = 0
    for flags in elements:
        if count - paused_at >= STEP_ELEMENTS:
            paused_at = count
            yield
        difference = _numbers(elements, 2)
        words, size = yield from _read_words(elements, flags, names)
        if _numbers(elements, 1) != [size]:
            raise PayloadError("an entry counts other elements than it has")
        count += size + 1
        if int(flags) & DELETED:
            deleted -= 1
        else:
            _append(stream, key, difference, words, len(listpack) if appended == 0 else 0)
            appended += 1
    if deleted or appended != live or stated not in (COUNT_UNKNOWN, count):
        raise PayloadError("a node counts other entries than it has")


def _read_words(
    elements: Iterator[Element], flags: Element, names: list[bytes]
) -> Generator[None, None, tuple[list[bytes], int]]:
    """The words of an entry, and the number of its elements before their count."""
    if flags not in range(1 + (DELETED | SAME_FIELDS)):
        raise PayloadError("an entry has unknown flags")
    if not int(flags) & SAME_FIELDS:
        words = yield from _fields(elements, 2)
        return words, 4 + len(words)
    words = [b""] * (2 * len(names))
    words[::2] = names
    words[1::2] = yield from _texts(elements, len(names))
    return words, 3 + len(names)


def _append(
    stream: Stream, key: EntryId, difference: list[int], words: list[bytes], node_bytes: int
) -> None:
    """Append an entry with this difference from the key of its node. The first entry begins a node
    of `node_bytes` bytes."""
    entry_id = (key[0] + difference[0]) % (1 << 64), (key[1] + difference[1]) % (1 << 64)
    if entry_id < key:
        raise PayloadError("the ID of an entry is below the ID of its node")
    if node_bytes:
        stream.begin_node(node_bytes)
    try:
        # A limit of one entry begins a new node; no limit continues the node.
        stream.append_entry(*entry_id, words, 1 if node_bytes else 0, 0)
    except ValueError as error:
        raise PayloadError("the IDs of entries do not increase") from error


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
