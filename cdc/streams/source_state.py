"""The states of a source and its tables in millstream, as JSON.

The reader writes the states, `millstream cdc apply` only reads them. Every change of a state names
the text that it replaces, so a request to copy a table again is never lost, and a reader that was
replaced by another one cannot move anything backwards.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Self, TypeAlias, get_args

from millstream.cdc import CdcError
from millstream.cdc.config import CdcConfig, Table, target_name
from millstream.cdc.sql import lsn_text, read_lsn

SlotPhase: TypeAlias = Literal["making", "made"]
Phase: TypeAlias = Literal["wanted", "pausing", "copying", "copied"]
Identity: TypeAlias = Literal["default", "full", "index", "nothing"]


class StateError(CdcError):
    """A text in millstream is not a state; the text says which key and what is wrong."""


@dataclass(frozen=True)
class SourceState:
    """The slot of a source and how far it has been read.

    `making` is recorded before the slot is created, `made` afterwards. Everything before
    `durable_lsn` is in millstream. With `resync`, everything is to be copied again with a new slot.
    `owner` is the ID of the pipeline, which is also in the comment of its publication; states of
    earlier versions have none. With `take_over`, a slot and a publication of another pipeline are
    replaced.
    """

    slot: str
    system: str
    timeline: int
    durable_lsn: int
    phase: SlotPhase = "making"
    resync: bool = False
    owner: str = ""
    take_over: bool = False

    def to_json(self) -> str:
        values = {**asdict(self), "durable_lsn": lsn_text(self.durable_lsn)}
        return json.dumps(values, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """StateError if the text is not a state."""
        values = _object(text)
        try:
            values["durable_lsn"] = read_lsn(values["durable_lsn"])
            state = cls(**values)
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"not the state of a source: {error}: {_shown(text)}") from None
        if state.phase not in get_args(SlotPhase):
            raise StateError(f"not the state of a source: {_shown(text)}")
        return state


def has_slot(state: SourceState | None) -> bool:
    """True if there is a slot to read from."""
    return state is not None and state.phase == "made" and not state.resync


@dataclass(frozen=True)
class SourceColumn:
    """A column of a source's table. `type` is the type's name in SQL, with its modifier."""

    name: str
    type: str
    key: bool
    """True if the column is part of the replica identity (of the primary key with identity
    full)."""
    not_null: bool = False
    number: int = 0
    """The column's number in the source's catalog; 0 in states that earlier versions wrote."""


@dataclass(frozen=True)
class TableConfig:
    """The part of a table's configuration that shapes its copy."""

    target: str
    type: str
    columns: tuple[str, ...] = ()
    where: str = ""
    rename: Mapping[str, str] = field(default_factory=dict)
    set: Mapping[str, str] = field(default_factory=dict)
    sid_column: str = ""

    @classmethod
    def of(cls, table: Table, config: CdcConfig) -> TableConfig:
        return cls(
            target_name(table, config),
            table.type,
            table.columns,
            table.where,
            dict(table.rename),
            dict(table.set),
            config.destination.sid_column,
        )


@dataclass(frozen=True)
class TableState:
    """The progress of a table's copy.

    `wanted`: a copy has been asked for; `apply` applies the changes after its position, if it has
    one. `pausing`: `apply` leaves the table alone from its next batch on; its streams may be
    deleted and created again. `copying`: the copy stream gets the rows as of `copy_lsn`, and
    `apply` loads them as they arrive. `copied`: the copy stream is complete; `apply` loads the rest
    of it if the position's copy is older than `copy_lsn`, then applies the changes from `copy_lsn`
    on.

    `request` is the number of the request to copy, different for each, so that a copy that was
    begun for an earlier request cannot be mistaken for one of a later request.

    `rows` is the number of rows in a complete copy. `incarnation` is that of the stream of changes,
    from TINFO. `oid` is the table's number in the source's catalog; it tells a table from a later
    one with the same name. `published` is the stamp of the table's place in the publication, which
    every change of that place replaces; states of earlier versions have none. `lost` is why changes
    since the copy may be missing.
    """

    phase: Phase = "wanted"
    copy_lsn: int = 0
    columns: tuple[SourceColumn, ...] = ()
    identity: Identity = "default"
    incarnation: int = 0
    oid: int = 0
    table_config: TableConfig | None = None
    request: int = 0
    rows: int = 0
    published: str = ""
    lost: str = ""

    def to_json(self) -> str:
        values = {**asdict(self), "copy_lsn": lsn_text(self.copy_lsn)}
        return json.dumps(values, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """StateError if the text is not a state."""
        values = _object(text)
        try:
            values["copy_lsn"] = read_lsn(values["copy_lsn"])
            values["columns"] = tuple(SourceColumn(**column) for column in values["columns"])
            config = values["table_config"]
            if config is not None:
                config = TableConfig(**{**config, "columns": tuple(config["columns"])})
            state = cls(**{**values, "table_config": config})
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"not the state of a table: {error}: {_shown(text)}") from None
        if state.phase not in get_args(Phase) or state.identity not in get_args(Identity):
            raise StateError(f"not the state of a table: {_shown(text)}")
        return state

    def asked(self, phase: Phase = "wanted") -> TableState:
        """The state that asks for a new copy."""
        return replace(self, phase=phase, request=time.time_ns())


def _object(text: str | bytes) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except ValueError:
        raise StateError(f"not JSON: {_shown(text)}") from None
    if not isinstance(values, dict):
        raise StateError(f"not a JSON object: {_shown(text)}")
    return values


def _shown(text: str | bytes) -> str:
    return repr(text[:200])
