"""Connections to sources and to the destination, and the SQL for them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.cdc.feeding import config_text, parsed
from tests.support.pipelines import url_of
from tests.support.waiting import wait_until

from millstream.cdc.destination.connections import connect as connect_destination
from millstream.cdc.destination.connections import in_one_line
from millstream.cdc.protocol.replication_stream import ReplicationStream
from millstream.cdc.source.pg_catalog import connect
from millstream.cdc.sql import identifier, literal

Source = psycopg.Connection[Any]


def lost_after(connection: psycopg.Connection[Any]) -> tuple[int, int, int]:
    """Seconds until a silent connection is asked whether it is there, the same after a question,
    and milliseconds until one that does not answer is given up."""
    with socket.socket(fileno=os.dup(connection.pgconn.socket)) as one:
        return (
            one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
            one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
            one.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
        )


def test_a_lost_connection_is_noticed(source: Source) -> None:
    url = url_of(source)
    config = parsed(config_text(1, url))
    with connect(url, "test") as one:
        assert lost_after(one) == (10, 5, 30_000)
    with connect_destination(config, "test") as one:
        assert lost_after(one) == (10, 5, 30_000)
    with ReplicationStream(url, "test") as replication:
        assert lost_after(replication._connection) == (10, 5, 30_000)
    with connect(f"{url}?tcp_user_timeout=5000", "test") as one:
        assert lost_after(one) == (10, 5, 5_000)


@pytest.mark.parametrize("conforming", ["on", "off"])
@pytest.mark.parametrize("text", ["", "it's", "a\\b", "\\'", '"', '"a"."b"', "%s", "{}", "\n", "ä"])
def test_a_text_is_quoted_in_sql(source: Source, text: str, conforming: str) -> None:
    source.execute(f"SET standard_conforming_strings = {conforming}")
    source.execute("SET escape_string_warning = off")
    found = source.execute(f"SELECT {literal(text)}::text".encode()).fetchone()
    assert found == (text,)
    if text:
        cursor = source.execute(f"SELECT 1 AS {identifier(text)}".encode())
        assert cursor.description is not None
        assert cursor.description[0].name == text


SLEEPER = """
import sys
from pathlib import Path
from millstream.cdc.config_file import load
from millstream.cdc.destination.connections import connect
connect(load(Path(sys.argv[1])), "sleeper").execute("SELECT pg_sleep(600)")
"""


def test_the_statement_of_a_killed_worker_ends(source: Source, tmp_path: Path) -> None:
    """It would hold the lock of its positions."""
    file = tmp_path / "cdc.toml"
    file.write_text(config_text(1, url_of(source)))
    sleeping = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'sleeper'"
    with subprocess.Popen([sys.executable, "-c", SLEEPER, str(file)]) as process:
        asleep = f"{sleeping} AND wait_event = 'PgSleep'"
        wait_until(lambda: source.execute(asleep).fetchone() == (1,), what="the statement")
        process.kill()
    wait_until(lambda: source.execute(sleeping).fetchone() == (0,), what="its end", deadline_s=30)


def test_an_error_in_one_line_is_not_long(source: Source) -> None:
    with pytest.raises(psycopg.Error) as caught:
        source.execute("SELECT %s::text::int", ["9" * 100_000])
    assert len(str(caught.value)) > 100_000
    assert len(in_one_line(caught.value)) < 1_100
    assert in_one_line(OSError("a\n  b")) == "a b"
