"""Names and addresses of hosts, before anything looks them up."""

from __future__ import annotations

import pytest

from millstream.host_names import check_host


@pytest.mark.parametrize(
    "host",
    [
        "localhost", "db-1.example", "db_1", "example.", "münchen.example", "127.0.0.1", "0", "::1",
        "fe80::1%eth0", "x" * 63,
    ],
)  # fmt: skip
def test_hosts(host: str) -> None:
    check_host(host)


@pytest.mark.parametrize(
    "host",
    [
        "", ".", "a b", "a\nb", "a..b", ".a", "*", "[::1]", "127.0.0.1:7000", "redis://a", "a/b",
        "x" * 64, "x." * 150, "\ufffd", "a\0",
    ],
)  # fmt: skip
def test_texts_that_are_no_host(host: str) -> None:
    with pytest.raises(ValueError, match="neither the name nor the IP address of a host"):
        check_host(host)


def test_a_long_text_is_cut() -> None:
    with pytest.raises(ValueError, match=f"^'{'x' * 100}[.]{{3}}' is neither"):
        check_host("x" * 100_000)
