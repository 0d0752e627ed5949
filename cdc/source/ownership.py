"""The owner of a source's slot and publication.

Their name comes from the configuration, and another pipeline may have the same one. Each pipeline
has an ID, which is in its state in millstream and in the comment of its publication. A slot or a
publication that the state does not know is left alone.
"""

from __future__ import annotations

import re
import secrets

from millstream.cdc.config import Source
from millstream.cdc.protocol.session import Connection
from millstream.cdc.source.slots import ReplicationSlot
from millstream.cdc.sql import identifier, literal
from millstream.cdc.streams.source_state import SourceState

ID = re.compile(r"millstream cdc ([0-9a-f]{16})\b")


def new_owner() -> str:
    return secrets.token_hex(8)


def comment_sql(source: Source, owner: str, prefix: str) -> str:
    """The statement that marks the publication as that of a pipeline."""
    text = f"millstream cdc {owner}, source {source.name}, prefix {prefix}"
    return f"COMMENT ON PUBLICATION {identifier(source.slot)} IS {literal(text)}"


def read_comment(connection: Connection, source: Source) -> str | None:
    """The comment of the publication; None if there is no publication."""
    row = connection.execute(
        "SELECT coalesce(obj_description(oid, 'pg_publication'), '') FROM pg_publication"
        " WHERE pubname = %s",
        [source.slot],
    ).fetchone()
    return None if row is None else str(row[0])


def owner_in(comment: str | None) -> str | None:
    """The ID of the pipeline in the comment of a publication; None if the comment is another."""
    found = ID.match(comment or "")
    return None if found is None else found[1]


def foreign(
    source: Source, state: SourceState | None, slot: ReplicationSlot | None, comment: str | None
) -> str | None:
    """Name what exists at the source and is not this pipeline's; None if nothing."""
    owner = owner_in(comment)
    if state is not None and state.take_over:
        return None
    if state is None and slot is not None:
        found = f"the slot {slot.name} exists, but millstream has no record of it"
    elif owner is not None and (state is None or state.owner != owner):
        found = f"the publication {source.slot} has the comment {comment!r}, "
        found += "and millstream has no record of this ID"
    else:
        return None
    pid = "" if slot is None or slot.active_pid is None else f" (active for PID {slot.active_pid})"
    return f"{found}: another millstream cdc may use it{pid}"


def foreign_line(
    source: Source, state: SourceState | None, slot: ReplicationSlot | None, comment: str | None
) -> str | None:
    """The same in one line with the advice."""
    found = foreign(source, state, slot, comment)
    return None if found is None else f"{found}; {advice(source, slot)}"


def advice(source: Source, slot: ReplicationSlot | None) -> str:
    """The next step if the slot or the publication is not this pipeline's."""
    text = "give this source another `name` or `sid`"
    if slot is not None and slot.active_pid is not None:
        return text
    return (
        f"{text}; or, if no other pipeline uses it, copy everything again: "
        f"millstream cdc resync {source.name} --all --take-over"
    )
