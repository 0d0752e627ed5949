"""The findings of a check of a data directory, and the words for the losses of a repair."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum

from millstream.commands.runtime.effects import EffectError, split_effects
from millstream.errors import DamageError, ForeignError, counted, printable, readable
from millstream.storage.blocks.block import Block
from millstream.storage.files.journal_reader import Gap
from millstream.storage.files.manifest import Manifest
from millstream.storage.files.recovery import Recovered

APPENDING = (b"APPEND", b"APPENDONCE")  # the effects that add an entry to any stream
ADDING = (*APPENDING, b"COMPLETE", b"FIRE")  # those that add an entry


class Verdict(IntEnum):
    """The result of a check, and the exit code of the program."""

    WHOLE = 0
    DAMAGED = 1
    UNCHECKED = 2


@dataclass
class Place:
    """A fault: `offset` in bytes, None for the file as a whole."""

    offset: int | None
    reason: str


@dataclass
class FileReport:
    """One file. `state` is ok, torn, damaged, missing, unknown (another version's), misplaced
    (of another data directory),
    unread (it is unknown which of its frames are valid), unjudged (it is unknown whether it is
    current), unfinished, unnamed, kept (a folder of an earlier repair or rewind),
    description (of a backup), differs (from that description) or foreign;
    `holds` describes its contents, `loses` what a repair cannot keep."""

    name: str
    size_bytes: int = 0
    state: str = "ok"
    holds: str = ""
    places: list[Place] = field(default_factory=list)
    loses: list[str] = field(default_factory=list)

    def wrong(self, damage: DamageError) -> None:
        self.state = "missing" if damage.reason.startswith("is missing") else "damaged"
        if isinstance(damage, ForeignError):
            self.state = "misplaced"
        self.places.append(Place(damage.offset, damage.reason))


@dataclass
class Report:
    """The results of a check. `manifest` is the current manifest, or the one that a repair would
    write; None when it cannot be determined, and `hopeless` says why nothing can be repaired. After
    loading, `keys` and `entries` count those of the base, `total_keys` and `total_entries` those
    after the last frame, whose number is `last_frame`."""

    directory: str
    verdict: Verdict = Verdict.WHOLE
    files: list[FileReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    manifest: Manifest | None = None
    hopeless: str | None = None
    keys: int | None = None
    entries: int | None = None
    frames: int | None = None
    effects: int | None = None
    total_keys: int | None = None
    total_entries: int | None = None
    last_frame: int | None = None

    def worsen(self, verdict: Verdict) -> None:
        self.verdict = max(self.verdict, verdict)


def named(db: int, key: bytes) -> str:
    """A key in readable form."""
    return f"'{printable(readable(key))}'" + (f" of database {db}" if db else "")


def words_for_gap(gap: Gap) -> str:
    """Names the lost frames, and the keys that they changed as far as these can be read."""
    count = None if gap.last is None else gap.last - gap.first + 1
    which = f"frame {gap.first}" if count == 1 else f"frames {gap.first} to {gap.last}"
    if count is None:
        which = f"frame {gap.first} and any after it"
    words = f"{which}, at offset {gap.offset} of {gap.file}"
    with suppress(EffectError):
        split = split_effects(gap.payload)
        keys = dict.fromkeys((db, found[1]) for db, found, _ in split if len(found) > 1)
        appended = sum(found[0] in ADDING for _, found, _ in split)
        if split:
            names = ", ".join(named(*key) for key in keys) or "no key"
            what = f"{counted(len(split), 'effect')} on {names}"
            words += f": the first held {what}, among them {counted(appended, 'appended entry')}"
    return words


def words_for_lost(recovered: Recovered[Block]) -> str:
    """Describes the parts of one key that a repair cannot keep."""
    record, lost = recovered.record, recovered.lost
    name = f"{record.kind} {named(record.db, record.key)}"
    if record.kind != "stream":
        return f"{name}: all of it"
    pieces = [(piece.entries, piece[5:7], piece[7:9]) for piece in lost.pieces]
    if lost.first_block is not None:
        pieces.insert(0, lost.first_block)
    parts = [
        f"{counted(entries, 'entry')} from {first[0]}-{first[1]} to {last[0]}-{last[1]}"
        for entries, first, last in pieces
    ]
    if lost.meta:
        parts.append(
            "its groups, what they had pending, its counters, its policy, and how far its"
            " producers have come"
        )
    return f"{name}: {'; '.join(parts)}"
