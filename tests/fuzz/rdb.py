"""The target `rdb`: changed RDB files are imported, as `millstream import` does.

Whatever the bytes are, these hold:

1. an import ends with a base or with a sentence, and with nothing else;
2. the base loads as at the start of a server, and each stream in it is sound;
3. the report counts the keys, entries, groups and pending entries that the base has;
4. its digests are those of the loaded streams;
5. the size of the pieces in which the file arrives does not matter;
6. what is imported without --salvage is imported with it, too;
7. --salvage keeps the whole keys before the damage;
8. a sentence about a damage has an offset within the file;
9. a comparison of the file with the base finds no difference;
10. a file made of the base for the newest Redis is imported to the same streams;
11. a base is at most as large as what the file can hold.
"""

from __future__ import annotations

import re
import struct
import tempfile
from pathlib import Path
from random import Random

from tests.support.redis_files import FOLDER
from tests.support.storage_access import check_stream
from tests.unit.test_importing import ALL, SEED_FILE, Converted

from millstream.server.moving.compared_sides import FileSide, KeyspaceSide
from millstream.server.moving.comparing import Comparison
from millstream.server.moving.key_states import Filters, NotComparable
from millstream.storage.dump.base_making import ImportFailure, Wanted
from millstream.storage.dump.digests import group_row, groups_digest, stream_digest
from millstream.storage.dump.file_writing import TARGETS, RdbWriter
from millstream.storage.dump.rdb_bytes import crc64
from millstream.storage.files.manifest import base_name
from millstream.storage.streams.stream import Stream

SALVAGE = Wanted(salvage=True)
# LZF makes 88 bytes of one; a base has some more for each key.
_GROWTH_MAX = 88
_HEAD_BYTES = 1 << 16


def seeds() -> list[bytes]:
    return [SEED_FILE, *(path.read_bytes() for path in sorted(FOLDER.glob("*.rdb")))]


def completed(data: bytes, random: Random) -> bytes:
    """The file with a right checksum, mostly."""
    if len(data) < 9 or random.randrange(8) == 0:
        return data
    return data[:-8] + struct.pack("<Q", crc64(data[:-8]))


def check(data: bytes, random: Random) -> None:
    """Check everything for one file. AssertionError, or any other exception, is a finding."""
    made = converted(data, ALL)
    salvaged = converted(data, SALVAGE)
    if isinstance(made, Converted):
        check_base(made, data)
        assert isinstance(salvaged, Converted)
        assert salvaged.streams == made.streams
        again = converted(data, ALL, random.choice((1, 2, 7, 64, 4096)))
        assert isinstance(again, Converted)
        assert (again.streams, again.findings) == (made.streams, made.findings)
        check_comparison(made, data)
        check_export(made)
    else:
        check_sentence(made, salvaged, data)
    if isinstance(salvaged, Converted):
        check_base(salvaged, data)


def converted(data: bytes, wanted: Wanted, piece_bytes: int = 1 << 20) -> Converted | str:
    try:
        return Converted(data, wanted=wanted, piece_bytes=piece_bytes)
    except ImportFailure as failure:
        return str(failure)


def check_base(made: Converted, data: bytes) -> None:
    totals = made.findings.totals
    streams = []
    for number, name in made.keys:
        value = made.keyspace.databases[number].table[name]
        if isinstance(value, Stream):
            check_stream(value)
            streams.append(value)
    assert (totals.streams, totals.streams + totals.strings) == (len(streams), len(made.keys))
    assert totals.entries == sum(stream.length for stream in streams)
    groups = [group for stream in streams for group in stream.groups.values()]
    assert totals.groups == len(groups)
    assert totals.pending == sum(group.pending.count for group in groups)
    assert totals.consumers == sum(len(group.pending.consumers) for group in groups)
    digests = sorted(
        (stream_digest(stream), groups_digest(map(group_row, stream.groups.values())))
        for stream in streams
    )
    told = sorted((facts["entries_digest"], facts["groups_digest"]) for facts in made.streams)
    assert told == digests
    size = made.disk.read(base_name(1)).size
    assert size <= _HEAD_BYTES + _GROWTH_MAX * len(data)


def check_sentence(sentence: str, salvaged: Converted | str, data: bytes) -> None:
    found = re.search(r"is damaged at offset (\d+)", sentence)
    if found is not None:
        assert int(found[1]) <= len(data)
    whole = re.search(r"(\d+) keys? before it (?:is|are) whole", sentence)
    if whole is not None and isinstance(salvaged, Converted):
        findings = salvaged.findings
        left_out = sum(
            one.keys
            for what, one in findings.left_out.items()
            if what not in ("functions", "module data", "key metadata")
        )
        kept = len(salvaged.keys) + left_out + findings.expired + len(findings.lost)
        assert kept >= int(whole[1])


def check_comparison(made: Converted, data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "dump.rdb"
        path.write_bytes(data)
        try:
            file = FileSide(path)
            base = KeyspaceSide("base", made.keyspace, has_consumer_times=False)
            result = Comparison(file, base).run(Filters(), 0)
        except NotComparable:
            raise AssertionError("a file that was imported cannot be compared") from None
    adjusted = made.findings.adjusted
    if adjusted.delivery_times or made.findings.expired:
        return
    assert result.different == {}


def check_export(made: Converted) -> None:
    """Write the keys for the newest Redis, and import that file."""
    parts: list[bytes] = []
    writer = RdbWriter(parts.append, TARGETS["8.8"], b"unowned")
    for number, database in enumerate(made.keyspace.databases):
        for name, value in database.table.items():
            if isinstance(value, Stream):
                writer.add_stream(number, name, value, database.expiries.get(name))
    writer.finish()
    again = converted(b"".join(parts), ALL)
    assert isinstance(again, Converted), again
    assert by_key(again) == by_key(made)


def by_key(made: Converted) -> list[dict[str, object]]:
    return sorted(made.streams, key=lambda facts: (facts["db"], facts["key"]))
