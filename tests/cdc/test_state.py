"""The states in millstream: written states are read again, and anything else is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millstream.cdc.config_file import parse
from millstream.cdc.streams.source_state import (
    SourceColumn,
    SourceState,
    StateError,
    TableConfig,
    TableState,
)

SOURCE = SourceState("millstream_shop_eu", "7300000000000000001", 3, 0x16B374D848, "made")
TABLE = TableState(
    "copied",
    0x16B374D848,
    (SourceColumn("id", "numeric(10,2)", True, True), SourceColumn("ü:%", "text", False)),
    "full",
    17,
    16384,
    TableConfig(
        "public.items", "history", ("id", "ü:%"), "id > 1", {"id": "n"}, {"y": "id+1"}, "s"
    ),
)


def test_a_state_is_read_as_it_was_written() -> None:
    assert SourceState.from_json(SOURCE.to_json()) == SOURCE
    assert TableState.from_json(TABLE.to_json().encode()) == TABLE
    assert TableState.from_json(TableState().to_json()) == TableState()


def test_lsns_are_written_as_postgresql_writes_them() -> None:
    assert json.loads(SOURCE.to_json())["durable_lsn"] == "16/B374D848"
    assert json.loads(TABLE.to_json())["copy_lsn"] == "16/B374D848"


@pytest.mark.parametrize(
    "text", ["", "7", "[]", "{}", '{"phase": "copied"}', "\ud800".encode("utf-8", "surrogatepass")]
)
def test_other_texts_are_refused(text: str | bytes) -> None:
    with pytest.raises(StateError, match="not"):
        SourceState.from_json(text)
    with pytest.raises(StateError, match="not"):
        TableState.from_json(text)


@pytest.mark.parametrize("change", [{"phase": "done"}, {"identity": "half"}, {"new": 1}])
def test_unknown_values_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(StateError, match="not the state of a table"):
        TableState.from_json(json.dumps({**json.loads(TABLE.to_json()), **change}))


def test_the_configuration_is_recorded_with_the_full_target_name() -> None:
    text = """\
[destination]
url = "postgresql://warehouse/dw"
schema = "dw"
[[database]]
name = "shop"
source = [{ sid = "eu", url = "postgresql://eu/shop" }]
tables = { orders = { columns = ["id"] } }
"""
    config = parse(text, Path("cdc.toml"), {})
    [table] = config.sources[0].tables
    assert TableConfig.of(table, config) == TableConfig(
        "dw.orders", "clone", ("id",), sid_column="sid"
    )
