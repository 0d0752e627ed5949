"""The kinds of tables are known in one place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from millstream.cdc.config import TableType
from millstream.cdc.destination.table_kinds import KINDS

CDC = Path(__file__).resolve().parents[2] / "cdc"
NAMED = re.compile(rf'"(?:{"|".join(get_args(TableType))})"|\.type (?:==|!=|in)\b')


def test_each_type_of_the_configuration_has_a_kind() -> None:
    assert set(KINDS) == set(get_args(TableType))


def test_no_other_module_names_or_compares_a_type() -> None:
    allowed = {CDC / "config.py", CDC / "destination" / "table_kinds.py"}
    found = [
        f"{path.relative_to(CDC)}: {text}"
        for path in CDC.rglob("*.py")
        if path not in allowed
        for text in NAMED.findall(path.read_text())
    ]
    assert found == []
