"""The HTTP port: the replies of each path, the limits, and the values of the metrics."""

from __future__ import annotations

import base64
import json
import re
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.client import RawClient
from tests.support.http import Series, fetch, scrape, send_raw, value
from tests.support.server import Server, free_port
from tests.support.waiting import wait_until

from millstream.server.metrics import metric_table
from millstream.server.metrics.http import HEADER_MAX
from millstream.server.metrics.http_port import CONNECTIONS_MAX


@pytest.fixture(scope="module")
def metrics_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    port = str(free_port())
    server = Server(tmp_path_factory.mktemp("metrics") / "data", {"metrics-port": port}).start()
    yield server
    server.kill()


@pytest.fixture
def port(metrics_server: Server) -> int:
    metrics_server.reset()
    with metrics_server.client() as client:
        client.call("CONFIG", "SET", "metrics-streams", "*", "metrics-streams-max", "1000",
                    "metrics-consumers", "no")  # fmt: skip
    return int(metrics_server.directives["metrics-port"])


@pytest.fixture
def client(metrics_server: Server, port: int) -> Iterator[RawClient]:
    with metrics_server.client() as connection:
        yield connection


def fresh(port: int, good: Callable[[Series], bool]) -> Series:
    """A page for which this holds; a page may be a second old."""
    pages: list[Series] = []

    def look() -> bool:
        pages.append(scrape(port))
        return good(pages[-1])

    wait_until(look, what="the metrics")
    return pages[-1]


# ---------------------------------------------------------------- paths


def test_paths_and_methods(port: int) -> None:
    assert fetch(port, "/healthz").status == 200
    assert json.loads(fetch(port, "/readyz").body) == {"status": "ready"}
    assert b'href="/metrics"' in fetch(port, "/").body
    assert fetch(port, "/metrics?name=value").status == 200
    assert fetch(port, "/other").status == 404
    refused = fetch(port, "/metrics", "POST", b"body")
    assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD")
    assert fetch(port, "/metrics", "GET", b"body").status == 400


def test_head_has_the_size_and_no_body(port: int) -> None:
    answer = fetch(port, "/healthz", "HEAD")
    assert (answer.status, answer.body) == (200, b"")
    assert int(answer.headers["content-length"]) == len(fetch(port, "/healthz").body)


def test_the_type_is_that_of_the_text_format(port: int) -> None:
    kind = fetch(port, "/metrics").headers["content-type"]
    assert kind == "text/plain; version=0.0.4; charset=utf-8"


def test_several_requests_on_one_connection(port: int) -> None:
    """The second is sent before the first is answered."""
    head = b" HTTP/1.1\r\nHost: x\r\n"
    data = b"GET /healthz" + head + b"\r\nGET /readyz" + head + b"Connection: close\r\n\r\n"
    answer = send_raw(port, data)
    assert answer.count(b"HTTP/1.1 200") == 2
    assert answer.endswith(b'{"status": "ready"}\n')


# ---------------------------------------------------------------- broken and hostile clients


@pytest.mark.parametrize(
    "data",
    [
        b"*1\r\n$4\r\nPING\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET /\xff\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_invalid_http_is_refused_and_closed(port: int, data: bytes) -> None:
    assert b" 200 " not in send_raw(port, data)
    assert fetch(port, "/healthz").status == 200


def test_invalid_http_after_head_is_refused_and_closed(port: int, metrics_server: Server) -> None:
    """The error has a body, which only the answer to HEAD lacks."""
    answer = send_raw(port, b"HEAD /healthz HTTP/1.1\r\nHost: x\r\n\r\n\x16\x03\x01\r\n\r\n")
    assert answer.count(b"HTTP/1.1 ") == 2
    assert answer.endswith(b"\r\n\r\nthis is not valid HTTP\n")
    assert "Traceback" not in metrics_server.log


def test_a_long_header_is_refused_and_closed(port: int) -> None:
    long = b"GET / HTTP/1.1\r\nX: " + b"x" * 4 * HEADER_MAX
    assert b" 200 " not in send_raw(port, long)
    assert fetch(port, "/healthz").status == 200


def test_connections_beyond_the_limit_are_closed(port: int) -> None:
    held = [socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS_MAX)]
    try:
        for sock in held:
            sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert sock.recv(12) == b"HTTP/1.1 200"
        assert send_raw(port, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n") == b""
    finally:
        for sock in held:
            sock.close()
    wait_until(lambda: send_raw(port, b"GET /healthz HTTP/1.0\r\n\r\n"), what="an answer")


def test_a_reader_that_stops_reading_gets_the_rest_later(port: int, client: RawClient) -> None:
    for number in range(300):
        client.call("XADD", f"{number:03}" + "x" * 150, "*", "f", "v")
    whole = fresh(port, lambda series: lengths_in(series) >= 300)
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert sock.recv(1)
        assert fetch(port, "/healthz").status == 200
        data = b"H"
        while part := sock.recv(1 << 16):
            data += part
    assert data.count(b"redis_stream_length{") == lengths_in(whole)


def lengths_in(series: Series) -> int:
    return sum(name == "redis_stream_length" for name, _ in series)


# ---------------------------------------------------------------- health


def test_ready_names_the_reason_of_refused_writes(port: int, client: RawClient) -> None:
    client.call("CONFIG", "SET", "maxmemory", "1")
    try:
        answer = wait_until(
            lambda: fetch(port, "/readyz"), lambda answer: answer.status == 503, "the refusal"
        )
        facts = json.loads(answer.body)
        assert facts["status"] == "writes refused"
        assert facts["reason"].startswith("OOM")
        assert fetch(port, "/healthz").status == 200
        fresh(port, lambda series: value(series, "millstream_writes_refused") == 1)
    finally:
        client.call("CONFIG", "SET", "maxmemory", "0")
    wait_until(lambda: fetch(port, "/readyz").status == 200, what="the end of the refusal")
    fresh(port, lambda series: value(series, "millstream_writes_refused") == 0)
    fresh(port, lambda series: value(series, "millstream_held_replies_age_seconds") == 0)


def test_a_port_in_use_prevents_the_start(tmp_path: Path, port: int) -> None:
    server = Server(tmp_path / "data", {"metrics-port": str(port)})
    with pytest.raises(AssertionError, match="did not start"):
        server.start()
    assert "choose another one with --metrics-port" in server.log


# ---------------------------------------------------------------- passwords


def with_password(name: str, password: str) -> dict[str, str]:
    token = base64.b64encode(f"{name}:{password}".encode()).decode()
    return {"Authorization": f"Basic {token}"}


def test_only_users_who_may_run_info_read_metrics(port: int, client: RawClient) -> None:
    client.call("ACL", "SETUSER", "scraper", "on", ">secret:1", "+info")
    client.call("ACL", "SETUSER", "app", "on", ">other", "+@read", "-info")
    client.call("ACL", "SETUSER", "left", "off", ">secret:1", "+info")
    client.call("CONFIG", "SET", "metrics-auth", "yes")
    try:
        refused = fetch(port, "/metrics")
        assert refused.status == 401
        assert refused.headers["www-authenticate"].startswith('Basic realm="millstream"')
        assert fetch(port, "/metrics", headers=with_password("scraper", "secret:1")).status == 200
        for name, password in (
            ("scraper", "secret"), ("app", "other"), ("left", "secret:1"), ("unknown", ""),
        ):  # fmt: skip
            found = fetch(port, "/metrics", headers=with_password(name, password))
            assert (found.status, b"redis_up" in found.body) == (401, False), name
        for header in (
            "Basic %%%",
            "Basic",
            "Bearer c2NyYXBlcjpzZWNyZXQ6MQ==",
            "Basic " + "A" * 64,
        ):
            assert fetch(port, "/metrics", headers={"Authorization": header}).status == 401
        assert fetch(port, "/readyz").status == fetch(port, "/healthz").status == 200
        stats = bytes(client.call("INFO", "stats"))  # type: ignore[arg-type]
        denied = int(stats.split(b"acl_access_denied_auth:")[1].split()[0])
        assert denied >= 3
    finally:
        client.call("CONFIG", "SET", "metrics-auth", "no")
    assert fetch(port, "/metrics").status == 200


# ---------------------------------------------------------------- figures


def test_figures_of_a_stream_and_its_groups(port: int, client: RawClient) -> None:
    for number in range(1, 6):
        client.call("XADD", "s", f"{number}000-0", "f", "v")
    client.call("XDEL", "s", "1000-0")
    client.call("XTRIM", "s", "MINID", "3000")
    client.call("XGROUP", "CREATE", "s", "g", "0")
    client.call("XGROUP", "CREATE", "s", "done", "$", "ENTRIESREAD", "5")
    client.call("XREADGROUP", "GROUP", "g", "c", "COUNT", "1", "STREAMS", "s", ">")
    place = {"db": "db0", "stream": "s"}
    series = fresh(port, lambda series: value(series, "redis_stream_length", **place) == 3)
    wanted = {
        "redis_stream_groups": 2,
        "redis_stream_last_generated_id": 5000,
        "redis_stream_first_entry_id": 3000,
        "redis_stream_last_entry_id": 5000,
        "redis_stream_max_deleted_entry_id": 1000,
        "millstream_stream_blocks": 1,
        "millstream_stream_entries_deleted_total": 1,
        "millstream_stream_entries_evicted_total": 1,
        "millstream_stream_first_entry_timestamp_seconds": 3,
    }
    assert {name: value(series, name, **place) for name in wanted} == wanted
    in_group = {
        "redis_stream_group_messages_pending": 1,
        "redis_stream_group_consumers": 1,
        "redis_stream_group_last_delivered_id": 3000,
        "millstream_group_blocked_readers": 0,
        "millstream_group_entries_missed_total": 0,
    }
    assert {name: value(series, name, **place, group="g") for name in in_group} == in_group
    age = "millstream_group_oldest_unacked_age_seconds"
    old = value(series, age, **place, group="g")
    assert old is not None
    assert old > 1e9  # the IDs are of 1970
    assert value(series, age, **place, group="done") == 0
    assert value(series, "redis_stream_group_lag", **place, group="done") == 0
    assert value(series, "redis_stream_group_entries_read", **place, group="done") == 5


def test_an_unknown_lag_is_absent(port: int, client: RawClient) -> None:
    for number in range(1, 6):
        client.call("XADD", "s", f"{number}-0", "f", "v")
    client.call("XGROUP", "CREATE", "s", "unknown", "3-0")
    place = {"db": "db0", "stream": "s", "group": "unknown"}
    series = fresh(port, lambda s: value(s, "redis_stream_group_consumers", **place) == 0)
    assert value(series, "redis_stream_group_lag", **place) is None
    assert value(series, "redis_stream_group_entries_read", **place) is None


def test_entries_trimmed_before_a_group_read_them(port: int, client: RawClient) -> None:
    client.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
    client.call("XGROUP", "CREATE", "s", "new", "$")
    client.call("CONFIG", "RESETSTAT")
    client.call("TPOLICY", "s", "MAXLEN", "2", "EXACT")
    for _ in range(5):
        client.call("XADD", "s", "*", "f", "v")
    client.call("XGROUP", "SETID", "s", "new", "$")
    place, name = {"db": "db0", "stream": "s"}, "millstream_group_entries_missed_total"
    series = fresh(port, lambda series: value(series, name, **place, group="g") == 3)
    assert value(series, name, **place, group="new") == 3
    assert value(series, "millstream_missed_entries_total") == 6


def test_redeliveries_are_counted_by_cause(port: int, client: RawClient) -> None:
    def counted(series: Series) -> list[float | None]:
        name = "millstream_redeliveries_total"
        return [value(series, name, cause=cause) for cause in ("retry", "claim")]

    retries, claims = counted(scrape(port))
    assert retries is not None
    assert claims is not None
    client.call("TAPPEND", "s", "f", "v")
    first = client.call("TREAD", "s", "0", "10", "GROUP", "g", "0", "RETRY", "1", "100000")
    assert isinstance(first, list)
    wait_until(
        lambda: client.call("TREAD", "s", "0", "10", "GROUP", "g", "0", "RETRY", "50000", "100000"),
        what="the retry",
    )
    client.call("XGROUP", "CREATE", "s", "x", "0")
    client.call("XREADGROUP", "GROUP", "x", "a", "STREAMS", "s", ">")
    client.call("XAUTOCLAIM", "s", "x", "b", "0", "0")
    client.call("XAUTOCLAIM", "s", "x", "b", "0", "0", "JUSTID")  # is no delivery
    client.call("XREADGROUP", "GROUP", "x", "c", "CLAIM", "0", "STREAMS", "s", ">")
    fresh(port, lambda series: counted(series) == [retries + 1, claims + 2])


def test_blocked_readers_of_a_group(port: int, client: RawClient, metrics_server: Server) -> None:
    client.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
    place = {"db": "db0", "stream": "s", "group": "g"}
    with metrics_server.client() as reader:
        reader.send("XREADGROUP", "GROUP", "g", "c", "BLOCK", "0", "STREAMS", "s", ">")
        fresh(port, lambda s: value(s, "millstream_group_blocked_readers", **place) == 1)
        client.call("XADD", "s", "*", "f", "v")
        reader.read()
    fresh(port, lambda s: value(s, "millstream_group_blocked_readers", **place) == 0)


def test_histograms_count_ticks_holds_and_syncs(port: int, client: RawClient) -> None:
    names = ("tick", "reply_hold", "journal_sync")
    before = scrape(port)
    client.call("XADD", "s", "*", "f", "v")  # appendfsync is always

    def grew(series: Series) -> bool:
        pairs = [
            (value(before, f"millstream_{name}_seconds_count"),
             value(series, f"millstream_{name}_seconds_count"))
            for name in names
        ]  # fmt: skip
        return all(old is not None and new is not None and new > old for old, new in pairs)

    series = fresh(port, grew)
    for name in names:
        assert value(series, f"millstream_{name}_seconds_sum") > 0  # type: ignore[operator]


def test_hostile_names_stay_apart(port: int, client: RawClient) -> None:
    names = [b"", b"\xff", b"\\xff", b'"', b"\n", b"\\", b"\x00", b"x" * 5000, b"x" * 5001,
             "é".encode() * 200, b"</script>", b"a,b=c}"]  # fmt: skip
    for name in names:
        client.call("XADD", name, "*", "f", "v")
        client.call("XGROUP", "CREATE", name, name or b"g", "0")
    series = fresh(
        port,
        lambda series: (
            sum(name == "redis_stream_group_consumers" for name, _ in series) == len(names)
        ),
    )
    assert sum(name == "redis_stream_length" for name, _ in series) == len(names)


def test_patterns_limits_and_consumers(port: int, client: RawClient) -> None:
    for name in ("a1", "a2", "a3", "b1"):
        client.call("XADD", name, "*", "f", "v")
    for number in range(12):
        client.call("XGROUP", "CREATE", "a1", f"g{number:02}", "0")
    client.call("XREADGROUP", "GROUP", "g00", "worker", "COUNT", "1", "STREAMS", "a1", ">")
    client.call("CONFIG", "SET", "metrics-streams", "a*", "metrics-streams-max", "1",
                "metrics-consumers", "yes")  # fmt: skip
    series = fresh(port, lambda s: value(s, "millstream_metrics_streams_left_out") == 2)
    assert [dict(where)["stream"] for name, where in series if name == "redis_stream_length"] == [
        "a1"
    ]
    assert sum(name == "redis_stream_group_consumers" for name, _ in series) == 10
    assert value(series, "millstream_metrics_groups_left_out") == 2
    place = {"db": "db0", "stream": "a1", "group": "g00", "consumer": "worker"}
    assert value(series, "redis_stream_group_consumer_messages_pending", **place) == 1
    client.call("CONFIG", "SET", "metrics-streams", "")
    fresh(port, lambda s: not any(name == "redis_stream_length" for name, _ in s))


def test_scrapers_get_the_same_page_while_streams_change(port: int, client: RawClient) -> None:
    for number in range(300):
        client.call("XADD", f"s{number}", "*", "f", "v")
        client.call("XGROUP", "CREATE", f"s{number}", "g", "0")
    problems: list[BaseException] = []

    def look() -> None:
        try:
            for _ in range(5):
                scrape(port)  # each sample once
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(300):
        client.call("DEL", f"s{number}")
        client.call("XADD", f"t{number}", "*", "f", "v")
    for thread in threads:
        thread.join()
    assert problems == []


# ---------------------------------------------------------------- INFO

KNOWN = {row.field for row in metric_table.INFO_ROWS} | set(
    " ".join(metric_table.INFO_LEFT_OUT.values()).split()
)
# Fields that stand for one thing each: a replica, a database, a command, an error, an address.
NUMBERED = re.compile(r"(slave|db|listener)\d+|(cmdstat|errorstat|latency_percentiles_usec)_.*")


def unknown_fields(server: Server) -> set[str]:
    """The fields of the real reply that are no metric and have no reason to be left out."""
    with server.client() as connection:
        text = bytes(connection.call("INFO", "everything"))  # type: ignore[arg-type]
    fields = re.findall(rb"^([^#:\r\n]+):", text, re.MULTILINE)
    assert len(fields) > 150
    return {field for field in map(bytes.decode, fields) if not NUMBERED.fullmatch(field)} - KNOWN


def is_linked(series: Series) -> bool:
    return any(name == "redis_master_link_up" and up for (name, _), up in series.items())


def test_the_replies_of_info_have_no_field_without_a_metric(
    port: int, metrics_server: Server, new_server: Callable[..., Server]
) -> None:
    other = str(free_port())
    replica = new_server(
        "replica",
        {
            "replicaof": f"127.0.0.1 {metrics_server.port}",
            "appendonly": "no",
            "metrics-port": other,
        },
    ).start()
    up = fresh(int(other), is_linked)
    primary = fresh(port, lambda series: value(series, "redis_connected_slaves") == 1)
    assert unknown_fields(metrics_server) == unknown_fields(replica) == set()
    assert value(up, "millstream_repl_kept_data_total") is not None
    assert value(up, "millstream_discarded_data_folders") == 0
    assert value(primary, "millstream_config_replicas_required") == 0
    assert value(primary, "millstream_failover_in_progress") == 0


def test_folders_with_discarded_data_are_counted(port: int, metrics_server: Server) -> None:
    folder = metrics_server.directory / "discarded-20260101-000000"
    folder.mkdir()
    (folder / "base-1.msnap").write_bytes(b"x" * 1000)
    try:
        series = fresh(port, lambda s: value(s, "millstream_discarded_data_folders") == 1)
        assert value(series, "millstream_discarded_data_bytes") == 1000
        made_s = value(series, "millstream_discarded_data_timestamp_seconds")
        assert made_s == pytest.approx(folder.stat().st_mtime, abs=1)
    finally:
        shutil.rmtree(folder)
