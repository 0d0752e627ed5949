"""The fuzz targets (tests/fuzz) hold for some fixed seeds."""

from __future__ import annotations

from types import ModuleType

import pytest
from tests.fuzz import aof, link, rdb
from tests.fuzz.__main__ import run_seed
from tests.support.effort import examples


@pytest.mark.parametrize("target", [rdb, aof, link])
def test_changed_files_break_nothing(target: ModuleType) -> None:
    files = target.seeds()
    assert len(files) >= 4
    for seed in range(examples(100)):
        assert run_seed(target, files, seed) is None, seed
