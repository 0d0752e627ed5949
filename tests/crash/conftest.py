"""A disk and a wall clock that a test stalls, breaks and sets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.outside import FakeOutside


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[FakeOutside]:
    outside = FakeOutside(tmp_path)
    yield outside
    outside.free_disk()  # a process that waits for the disk could not end
