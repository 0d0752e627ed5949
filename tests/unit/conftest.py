"""A server in the test's own process, and a client of it."""

from __future__ import annotations

import pytest
from tests.support.in_process import InProcessClient, InProcessServer


@pytest.fixture
def in_process() -> InProcessServer:
    return InProcessServer()


@pytest.fixture
def player(in_process: InProcessServer) -> InProcessClient:
    """A RESP2 client of `in_process`."""
    return in_process.player()
