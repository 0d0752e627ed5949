"""The comparison with NATS, against a server in this process that speaks NATS' protocol."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from bench import nats_logs, report
from bench.__main__ import choose, parse
from bench.figures import OURS, REDIS, BenchError, Goal, Reading
from bench.harness import Harness, Plan, Row
from bench.nats_logs import NatsLog, OurLog, find_nats, in_windows
from bench.nats_rows import NATS_ROWS, NatsHarness
from bench.nats_wire import Message, NatsClient, published, published_with
from bench.report import Compared
from bench.rows import ROWS
from bench.server import Server
from tests.unit.test_bench import StandIn

JSON = dict[str, Any]


class JetStream:
    """One stream with its consumers, as the requests of the rows see it."""

    def __init__(self) -> None:
        self.entries: list[bytes] | None = None
        self.ids: list[bytes] = []
        self.next_of: dict[str, int] = {}
        self.acknowledged = 0
        self.refuses = False
        self.begins = 0

    def answers(self, subject: str, header: bytes, body: bytes) -> Iterator[tuple[str, bytes]]:
        """(header or reply subject, body) of each message that a publication is answered with."""
        words = subject.split(".")
        if subject == nats_logs.SUBJECT:
            yield "", self.store(header, body)
        elif words[:2] == ["$JS", "ACK"]:
            self.acknowledged += 1
            yield "", b""
        elif words[2:4] == ["DIRECT", "GET"]:
            wanted = json.loads(body)
            for number in range(wanted["seq"], wanted["seq"] + wanted["batch"]):
                yield f"NATS/1.0\r\nNats-Sequence: {number}\r\n\r\n", self.stored[number - 1]
            yield "NATS/1.0 204 EOB\r\n\r\n", b""
        elif words[2:5] == ["CONSUMER", "MSG", "NEXT"]:
            for _ in range(json.loads(body)["batch"]):
                number = self.next_of[words[6]] = self.next_of[words[6]] + 1
                reply = f"$JS.ACK.{words[5]}.{words[6]}.1.{number}.{number}.0.0"
                yield reply, self.stored[number - 1]
        else:
            yield "", json.dumps(self.api(words[2], words[3], words[-1])).encode()

    @property
    def stored(self) -> list[bytes]:
        assert self.entries is not None
        return self.entries

    def store(self, header: bytes, body: bytes) -> bytes:
        if self.refuses:
            return b'{"error":{"code":503,"description":"no space"},"stream":"bench","seq":0}'
        self.stored.append(body)
        self.ids.append(header)
        return b'{"stream":"bench","seq":%d}' % len(self.stored)

    def api(self, kind: str, action: str, name: str) -> JSON:
        match kind, action:
            case "STREAM", "CREATE":
                self.entries = []
            case "STREAM", "DELETE":
                self.entries = None
            case "STREAM", "NAMES":
                return {"streams": None if self.entries is None else ["bench"]}
            case "STREAM", "INFO":
                return {"state": {"messages": len(self.stored)}}
            case "CONSUMER", "NAMES":
                return {"consumers": list(self.next_of)}
            case "CONSUMER", "CREATE":
                self.next_of[name] = self.begins
            case "CONSUMER", "DELETE":
                del self.next_of[name]
            case "CONSUMER", "INFO":
                return {"ack_floor": {"stream_seq": self.acknowledged}}
            case _:
                return {"error": {"code": 400, "description": f"{kind}.{action}"}}
        return {}


class Connection(socketserver.StreamRequestHandler):
    """A connection of a client, which gets a PING before each message."""

    server: FakeNats

    def handle(self) -> None:
        self.wfile.write(self.server.greeting)
        for line in self.rfile:
            words = line.split()
            if words[0] == b"PING":
                self.wfile.write(self.server.pong)
            elif words[0] == b"PONG":
                self.server.pongs += 1
            elif words[0] in {b"PUB", b"HPUB"}:
                self.answer([word.decode() for word in words])

    def answer(self, words: list[str]) -> None:
        data = self.rfile.read(int(words[-1]) + 2)[:-2]
        size = int(words.pop(-2)) if words[0] == "HPUB" else 0
        answers = list(self.server.stream.answers(words[1], data[:size], data[size:]))
        if len(words) == 3:
            return
        for first, body in answers:
            if first.startswith("NATS/1.0"):
                header = first.encode()
                line = f"HMSG {words[2]} 1 {len(header)} {len(header) + len(body)}\r\n"
                sent = header + body
            else:
                line, sent = f"MSG {words[2]} 1 {first} {len(body)}\r\n", body
            self.wfile.write(b"PING\r\n" + line.encode() + sent + b"\r\n")


class FakeNats(socketserver.ThreadingTCPServer):
    daemon_threads = True
    greeting = b'INFO {"version":"9.9.9","headers":true}\r\n'
    pong = b"PONG\r\n"

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Connection)
        self.stream = JetStream()
        self.pongs = 0
        self.port = int(self.server_address[1])


@pytest.fixture
def fake() -> Iterator[FakeNats]:
    with FakeNats() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def log(fake: FakeNats) -> NatsLog:
    server = SimpleNamespace(port=fake.port, settle=lambda: None, cpu_ns=lambda: 0)
    server.wait_until_asleep = lambda seen_ns: None
    made = NatsLog(cast(Server, server), "memory")
    made.clear()
    return made


# the protocol


def test_a_publication_names_its_size_and_its_inbox() -> None:
    assert published("b", b"abc") == b"PUB b 3\r\nabc\r\n"
    assert published("b", b"", "inbox.1") == b"PUB b inbox.1 0\r\n\r\n"


def test_a_publication_with_headers_has_two_sizes() -> None:
    made = published_with("b", {"Nats-Msg-Id": "7"}, b"abc", "inbox.1")
    header = b"NATS/1.0\r\nNats-Msg-Id: 7\r\n\r\n"
    assert (
        made == b"HPUB b inbox.1 %d %d\r\n" % (len(header), len(header) + 3) + header + b"abc\r\n"
    )


def test_only_a_header_without_an_entry_has_a_status() -> None:
    assert Message("b", "", b"NATS/1.0 503\r\n\r\n", b"").status == b"503"
    assert Message("b", "", b"NATS/1.0\r\nA: 503\r\n\r\n", b"x").status == b""


def test_the_version_is_in_the_greeting(fake: FakeNats) -> None:
    with NatsClient(fake.port) as client:
        assert client.version == "9.9.9"


@pytest.mark.parametrize(
    ("greeting", "pong", "message"),
    [
        (b"-ERR 'no'\r\n", b"", "not a NATS server"),
        (FakeNats.greeting, b"-ERR 'Authorization Violation'\r\n", "Authorization Violation"),
        (FakeNats.greeting, b"MSG b 1 0\r\n\r\n", "unexpected message"),
    ],
)
def test_a_server_that_refuses_is_an_error(
    fake: FakeNats, greeting: bytes, pong: bytes, message: str
) -> None:
    fake.greeting, fake.pong = greeting, pong
    with pytest.raises(BenchError, match=message):
        NatsClient(fake.port)


def test_the_client_answers_a_ping(fake: FakeNats) -> None:
    with NatsClient(fake.port) as client:
        client.request("STREAM.NAMES", {})
        client.ping()
        assert fake.pongs == 1


def test_a_request_that_fails_is_an_error(fake: FakeNats) -> None:
    with NatsClient(fake.port) as client, pytest.raises(BenchError, match=r"STREAM\.PURGE"):
        client.request("STREAM.PURGE.bench", {})


@pytest.mark.parametrize(
    "answer", [b"", b"MSG in 1 5\r\nab", b"HMSG in 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"]
)
def test_an_answer_without_an_entry_is_an_error(answer: bytes) -> None:
    server = StandIn([answer])
    client = NatsClient.__new__(NatsClient)
    client._socket = nats_logs.Client(server.port)._socket
    client._reader = client._socket.makefile("rb")
    client.send(b"PUB b 0\r\n\r\n")
    with pytest.raises(BenchError):
        client.skip_confirmations(1)
    client.close()
    server.close()


# the logs


def test_windows_repeat_their_entries_in_turn() -> None:
    assert list(in_windows([b"a", b"b", b"c"], 2, 3)) == [b"ab", b"ca", b"bc"]


def test_nats_gets_every_entry_in_order(fake: FakeNats, log: NatsLog) -> None:
    log.publish([b"a", b"b", b"c"], 4, 2)
    assert fake.stream.stored == [b"a", b"b", b"c", b"a", b"b", b"c", b"a", b"b"]
    assert log.length() == 8
    log.clear()
    assert log.length() == 0


def test_each_entry_published_once_has_an_id(fake: FakeNats, log: NatsLog) -> None:
    log.publish_once(b"a", 5, 2)
    assert len(set(fake.stream.ids)) == 10
    assert all(b"Nats-Msg-Id: p-" in header for header in fake.stream.ids)


def test_a_refused_entry_is_an_error(fake: FakeNats, log: NatsLog) -> None:
    fake.stream.refuses = True
    with pytest.raises(BenchError, match="no space"):
        log.publish([b"a"], 2, 1)


def test_nats_is_read_as_a_range_and_in_order(log: NatsLog) -> None:
    log.publish([b"a"], 50, 1)
    log.read_ranges(10, 20, 3)
    log.follow(10, 5)


def test_a_read_of_wrong_entries_is_an_error(fake: FakeNats, log: NatsLog) -> None:
    log.publish([b"a"], 50, 1)
    fake.stream.begins = 7
    with pytest.raises(BenchError, match="wrong entries"):
        log.follow(10, 2)


def test_a_group_of_nats_acknowledges_every_entry(fake: FakeNats, log: NatsLog) -> None:
    log.publish([b"a"], 40, 1)
    log.new_group()
    log.consume(10, 4)
    assert fake.stream.acknowledged == 40
    log.new_group()
    with pytest.raises(BenchError, match="acknowledgements"):
        log.consume(10, 2)


def test_a_waiting_reader_of_nats_gets_the_entry(fake: FakeNats, log: NatsLog) -> None:
    fake.stream.stored.extend([b"a"] * 3)
    log.wake(b"b", 3)
    assert fake.stream.stored == [b"a", b"a", b"a", b"b", b"b", b"b"]


@pytest.mark.parametrize("found", [b"*0\r\n", b"*1\r\n*2\r\n$3\r\n8-1\r\n*0\r\n"])
def test_our_range_of_wrong_entries_is_an_error(found: bytes) -> None:
    server = StandIn([found])
    log = OurLog(cast(Server, SimpleNamespace(port=server.port)))
    log._id_at = lambda number: "7-1"  # type: ignore[method-assign]
    with pytest.raises(BenchError, match="wrong entries"):
        log.read_ranges(0, 1, 1)
    server.close()


def test_our_group_must_acknowledge_every_entry() -> None:
    taken = b"*1\r\n*2\r\n$3\r\nkey\r\n*1\r\n*2\r\n$3\r\n7-1\r\n*0\r\n"
    server = StandIn([taken, b":0\r\n"])
    log = OurLog(cast(Server, SimpleNamespace(port=server.port)))
    with pytest.raises(BenchError, match="not as many acknowledged"):
        log.consume(1, 1)
    server.close()


# the rows and the command line


def test_a_missing_nats_server_is_named() -> None:
    with pytest.raises(BenchError, match=r"no program no-such-nats; .*make bench NATS=1"):
        find_nats("no-such-nats")


def test_the_nats_server_is_found_in_the_virtualenv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nats-server"
    program.write_text("")
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    assert find_nats() == str(program)


def test_settings_of_nats_name_its_sync_and_its_directory(tmp_path: Path) -> None:
    server = nats_logs.NatsServer.__new__(nats_logs.NatsServer)
    server.port, server._command, server._directives = 4333, ["nats-server"], ["always"]
    server._directory = tmp_path
    settings = tmp_path / "nats.conf"
    assert server._words() == ["nats-server", "--config", str(settings)]
    text = settings.read_text()
    assert "127.0.0.1:4333" in text
    assert f'store_dir: "{tmp_path / "data"}", sync_interval: always' in text


def test_rows_with_nats_are_chosen_by_their_peer() -> None:
    assert choose(parse(["--peer", "nats", "--quick"])) == NATS_ROWS
    assert not {row.name for row in NATS_ROWS} & {row.name for row in ROWS}
    assert len({row.name for row in NATS_ROWS}) == len(NATS_ROWS)
    assert all(len(row.title) <= 32 for row in NATS_ROWS)


def test_a_row_with_nats_needs_its_harness() -> None:
    harness = Harness([], [], {}, 0, Plan(quick=True, rounds=1))
    with pytest.raises(BenchError, match="--peer nats"):
        NATS_ROWS[0].measure(harness)


def test_a_comparison_with_nats_has_no_chart() -> None:
    with pytest.raises(SystemExit):
        parse(["--peer", "nats", "--chart"])


def test_rounds_with_nats_divide_by_the_operations(log: NatsLog) -> None:
    times_ns = iter(range(0, 10_000, 500))
    server = SimpleNamespace(settle=lambda: None, cpu_ns=lambda: next(times_ns))
    log.server = cast(Server, server)
    harness = NatsHarness([], [], {}, 0, Plan(quick=True, rounds=2))
    done: list[int] = []
    lanes = harness.measure({REDIS: log}, 50, lambda _, count: done.append(count))
    assert done == [5, 50, 50]
    assert [reading.cost for reading in lanes[REDIS]] == [10.0, 10.0]


def test_goals_count_in_a_report_with_nats() -> None:
    lanes = {REDIS: [Reading(10)], OURS: [Reading(5)]}
    outcome = report.Outcome(Row("a", "S", "a", lambda _: {}, Goal(ratio=2.1)), lanes)
    assert outcome.verdict(Compared.NATS) == "no"
    assert report.row_json(outcome, Compared.NATS)["goal"]["ratio"] == 2.1
    made = report.as_json([outcome], report.machine_facts({REDIS: "2.15"}), {}, Compared.NATS, 1.0)
    assert "NATS 2.15, millstream" in report.machine_line(made)
