"""A member of a shard in a server: what it logs about its store."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millstream.server.cluster.member_service import MemberService, MemberSettings
from millstream.server.cluster.store.records import NodeRecord
from millstream.server.cluster.store.store import Unreachable


def test_each_reason_for_a_lost_store_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    unused: Any = None
    terms: Any = SimpleNamespace(
        steady_ms=lambda: 0, require_lease=lambda is_required: None, is_leading=False
    )
    settings = MemberSettings(NodeRecord("h", 1, 0, "", "", "", ""), "s1", 10, 5000, uses_tls=False)
    service = MemberService(
        "a" * 40, terms, unused, unused, unused, settings, lambda: None, seen=unused
    )
    for reason in ("it is down", "it is down", "it is slow", "it is slow"):
        service._lose(Unreachable(reason))
    assert [record.message for record in caplog.records] == [
        "etcd cannot be used: it is down",
        "etcd cannot be used: it is slow",
    ]
    assert service.etcd_errors == 4
