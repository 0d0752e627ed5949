"""Files that real servers wrote (tests/support/redis_files) have the keys that these showed."""

from __future__ import annotations

import json

import pytest
from tests.support.redis_files import FOLDER, as_facts

from millstream.server.moving.compared_sides import open_side
from millstream.server.moving.key_states import Filters

NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))


@pytest.mark.parametrize("name", NAMES)
def test_files_of_a_real_server_have_its_keys(name: str) -> None:
    expected = json.loads((FOLDER / f"{name}.json").read_text())
    assert len(expected) >= 7
    aof = FOLDER / f"{name}-aof"
    for path in (FOLDER / f"{name}.rdb", aof if aof.is_dir() else FOLDER / f"{name}.aof"):
        found = as_facts(open_side(str(path)).states(Filters()))
        # A string that SETBIT has made is no text: an AOF does not have its value.
        known = [row for row in expected if path.suffix == ".rdb" or row["key"] != "bits"]
        for row, other in zip(known, found, strict=True):
            both = {name for name in row if None not in (row[name], other[name])}
            assert {name: row[name] for name in both} == {name: other[name] for name in both}
            assert row["expiry"] == other["expiry"]
            assert len(both) >= 3
