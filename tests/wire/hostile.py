"""Harmful or broken clients: each attack against one live server, watched by another client.

`python -m tests.wire.hostile` runs them at full size and prints, for each, the longest that a PING
of another client took meanwhile and by how much the server's memory grew at most; it fails where a
PING took more than the attack's bound (a second for most) or memory passed the other bound.
`tests/wire/test_hostile.py` runs the same attacks small, and asks for the memory and the answers
alone. Names of attacks on the command line choose some of them.
"""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.client import ConnectionClosed, RawClient
from tests.support.resp import Error, Simple, encode_command
from tests.support.server import Server
from tests.support.waiting import wait_until

MEGABYTE = 1 << 20
PAGE_BYTES = resource.getpagesize()
PING_MAX_S = 1.0
LIMIT_CLIENTS = 1_000
RECEIVE_BYTES = 4096  # of a socket that hardly reads

DIRECTIVES = {
    "appendfsync": "everysec",
    "maxclients": "12000",
    "client-output-buffer-limit": "normal 0 0 0 pubsub 8mb 2mb 60",
}


@dataclass(frozen=True)
class Sizes:
    """The size of each attack."""

    idle_clients: int
    storm_clients: int
    half_requests: int
    stream_entries: int
    range_reads: int
    message_bytes: int
    listeners: int
    pipelined: int
    nested: int
    words: int
    value_bytes: int


FULL = Sizes(
    idle_clients=10_000,
    storm_clients=5_000,
    half_requests=2_000,
    stream_entries=500_000,
    range_reads=50,
    message_bytes=256 * MEGABYTE,
    listeners=50,
    pipelined=1_000_000,
    nested=100_000,
    words=1_000_000,
    value_bytes=100 * MEGABYTE,
)
SMALL = Sizes(
    idle_clients=500,
    storm_clients=1_500,
    half_requests=200,
    stream_entries=20_000,
    range_reads=20,
    message_bytes=24 * MEGABYTE,
    listeners=10,
    pipelined=50_000,
    nested=5_000,
    words=100_000,
    value_bytes=20 * MEGABYTE,
)


# ---------------------------------------------------------------- what the attackers do


def connect(port: int, receive_bytes: int = 0) -> socket.socket:
    made = socket.socket()
    if receive_bytes:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    made.settimeout(30)
    made.connect(("127.0.0.1", port))
    return made


@contextlib.contextmanager
def sockets(port: int, count: int, receive_bytes: int = 0) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as opened:
        yield [opened.enter_context(connect(port, receive_bytes)) for _ in range(count)]


def push_out(attacker: socket.socket, data: bytes, patience_s: float = 0.5) -> int:
    """Send what the server takes, until it takes nothing for a while or has closed the connection;
    how much that was. Nothing is read."""
    view, sent = memoryview(data), 0
    attacker.setblocking(False)
    with contextlib.suppress(ConnectionError):
        while sent < len(view) and select.select([], [attacker], [], patience_s)[1]:
            sent += attacker.send(view[sent : sent + MEGABYTE])
    return sent


def answer(attacker: socket.socket) -> bytes:
    """The bytes that the server sends until it closes the connection."""
    attacker.settimeout(30)
    pieces = []
    with contextlib.suppress(ConnectionError):
        while piece := attacker.recv(1 << 16):
            pieces.append(piece)
    return b"".join(pieces)


def fill_stream(client: RawClient, entries: int) -> None:
    for start in range(0, entries, 5000):
        count = min(5000, entries - start)
        client.pipeline([("XADD", "hostile", "*", "sensor", "01", "temperature", "35.6")] * count)


# ---------------------------------------------------------------- the attacks


def accept_storm(server: Server, sizes: Sizes) -> None:
    """Many more connections at once than maxclients allows."""
    with server.client() as admin:
        before = admin.call("CONFIG", "GET", "maxclients")
        assert isinstance(before, list)
        assert admin.call("CONFIG", "SET", "maxclients", str(LIMIT_CLIENTS)) == Simple("OK")
        try:
            with sockets(server.port, sizes.storm_clients) as storm:
                refused = [one for one in storm if has_been_refused(one)]
                # The admin and the watcher have their places among the first thousand.
                assert len(refused) >= sizes.storm_clients - LIMIT_CLIENTS
                assert int(admin.info("clients")["connected_clients"]) <= LIMIT_CLIENTS
        finally:
            assert admin.call("CONFIG", "SET", "maxclients", str(before[1].decode())) == Simple(
                "OK"
            )


def has_been_refused(attacker: socket.socket) -> bool:
    """True if the server answers in Redis' words that there are too many; it serves the others."""
    attacker.settimeout(30)
    with contextlib.suppress(ConnectionError):
        attacker.sendall(b"PING\r\n")
    try:
        reply = attacker.recv(1024)
    except ConnectionError:
        return True
    assert reply in (b"+PONG\r\n", b"-ERR max number of clients reached\r\n"), reply
    return reply != b"+PONG\r\n"


def idle_clients(server: Server, sizes: Sizes) -> None:
    """Connections that send nothing."""
    with sockets(server.port, sizes.idle_clients), server.client() as client:
        wait_until(
            lambda: int(client.info("clients")["connected_clients"]),
            lambda count: count >= sizes.idle_clients,
            "all idle clients",
            deadline_s=30,
        )


def half_requests(server: Server, sizes: Sizes) -> None:
    """Slow loris: many connections, each of which sends its request byte by byte."""
    request = encode_command(("SET", "loris", "x" * 20))
    with sockets(server.port, sizes.half_requests) as attackers:
        for byte in request[:-1]:
            for attacker in attackers:
                attacker.send(bytes([byte]))


def announced_bulk(server: Server, sizes: Sizes) -> None:
    """The longest value announced on many connections, and hardly anything sent."""
    with sockets(server.port, sizes.half_requests) as attackers:
        for attacker in attackers:
            attacker.sendall(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870912\r\nabc")


def announced_words(server: Server, sizes: Sizes) -> None:
    """The longest request announced, and nothing sent; one word more than there can be."""
    with sockets(server.port, sizes.half_requests) as attackers:
        for attacker in attackers:
            attacker.sendall(b"*2147483647\r\n$1\r\na\r\n")
    with connect(server.port) as attacker:
        attacker.sendall(b"*2147483648\r\n")
        assert answer(attacker) == b"-ERR Protocol error: invalid multibulk length\r\n"


def unread_ranges(server: Server, sizes: Sizes) -> None:
    """Clients that ask for a whole stream again and again and read nothing."""
    requests = encode_command(("XRANGE", "hostile", "-", "+")) * sizes.range_reads
    with sockets(server.port, 8, RECEIVE_BYTES) as attackers:
        for attacker in attackers:
            attacker.sendall(requests)
        settle(server)


def unread_history(server: Server, sizes: Sizes) -> None:
    """A client that is given a whole stream as a group's reader, and reads nothing."""
    with server.client() as client:
        client.call("XGROUP", "CREATE", "hostile", "crowd", "0")
    count = str(sizes.stream_entries)
    read = ("XREADGROUP", "GROUP", "crowd", "one", "COUNT", count, "STREAMS", "hostile")
    with sockets(server.port, 4, RECEIVE_BYTES) as attackers:
        for attacker in attackers:
            attacker.sendall(encode_command((*read, ">")) + encode_command((*read, "0")))
        settle(server)
    with server.client() as client:
        client.call("XGROUP", "DESTROY", "hostile", "crowd")


def unread_messages(server: Server, sizes: Sizes) -> None:
    """Subscribers that read nothing, while others publish."""
    flood_listeners(server, sizes, encode_command(("SUBSCRIBE", "news")))


def crowd_of_listeners(server: Server, sizes: Sizes) -> None:
    """Many subscribers that read nothing, and a publisher that sends as fast as it can."""
    message = "x" * 10_000
    count = sizes.message_bytes // (2 * len(message))
    request = encode_command(("PUBLISH", "crowd", message))
    with (
        sockets(server.port, sizes.listeners, RECEIVE_BYTES) as attackers,
        connect(server.port) as publisher,
    ):
        for attacker in attackers:
            attacker.sendall(encode_command(("SUBSCRIBE", "crowd")))
            assert attacker.recv(1)
        sender = threading.Thread(target=publisher.sendall, args=(request * count,), daemon=True)
        sender.start()
        answers = 0
        while answers < count:
            piece = publisher.recv(MEGABYTE)
            assert piece, "the server closed the connection"
            answers += piece.count(b"\n")
        sender.join()
        with server.client() as client:
            assert int(client.info("clients")["connected_clients"]) < sizes.listeners


def unread_monitor(server: Server, sizes: Sizes) -> None:
    """MONITOR, unread, while others work."""
    flood_listeners(server, sizes, b"MONITOR\r\n", limit="normal 8mb 2mb 60")


def flood_listeners(server: Server, sizes: Sizes, request: bytes, limit: str = "") -> None:
    message = "x" * 10_000
    with server.client() as publisher, sockets(server.port, 5, RECEIVE_BYTES) as attackers:
        if limit:
            set_limit(publisher, limit)
        for attacker in attackers:
            attacker.sendall(request)
            assert attacker.recv(1)
        for _ in range(sizes.message_bytes // (100 * len(message))):
            publisher.pipeline([("PUBLISH", "news", message)] * 100)
        if limit:
            set_limit(publisher, "normal 0 0 0")
        assert int(publisher.info("clients")["connected_clients"]) < 5


def set_limit(client: RawClient, limit: str) -> None:
    assert client.call("CONFIG", "SET", "client-output-buffer-limit", limit) == Simple("OK")


def deep_pipeline(server: Server, sizes: Sizes) -> None:
    """Requests without end from clients that read no answer."""
    requests = encode_command(("ECHO", "x" * 100)) * sizes.pipelined
    with sockets(server.port, 4, RECEIVE_BYTES) as attackers:
        for attacker in attackers:
            push_out(attacker, requests)


def greedy_pipeline(server: Server, sizes: Sizes) -> None:
    """One client that sends as fast as it can, and reads: others have their turns."""
    one = encode_command(("XADD", "greedy", "MAXLEN", "~", "1000", "*", "field", "value"))
    with connect(server.port) as attacker:
        request = one * sizes.pipelined
        sender = threading.Thread(target=attacker.sendall, args=(request,), daemon=True)
        sender.start()
        lines = 0
        while lines < 2 * sizes.pipelined:
            piece = attacker.recv(MEGABYTE)
            assert piece, "the server closed the connection"
            lines += piece.count(b"\n")
        sender.join()


def inline_garbage(server: Server, sizes: Sizes) -> None:
    """Lines without end, and bytes that mean nothing."""
    with connect(server.port) as attacker:
        push_out(attacker, b"a" * (64 * 1024 + 1))
        assert answer(attacker) == b"-ERR Protocol error: too big inline request\r\n"
    for garbage in (bytes(range(256)) * 1024, b"*1\r\n" * 100_000, b"\0" * 300_000, b'"' * 9000):
        with connect(server.port) as attacker:
            push_out(attacker, garbage, patience_s=0.1)
            attacker.close()
    with connect(server.port) as attacker:
        push_out(attacker, b"\r\n" * 2_000_000)


def nested_multi(server: Server, sizes: Sizes) -> None:
    """MULTI within MULTI, a long queue, EXEC within nothing."""
    with connect(server.port) as attacker:
        requests = b"MULTI\r\n" * sizes.nested + b"EXEC\r\nEXEC\r\nQUIT\r\n"
        sender = threading.Thread(target=attacker.sendall, args=(requests,), daemon=True)
        sender.start()
        reply = answer(attacker)
        sender.join()
        assert reply.startswith(b"+OK\r\n-ERR MULTI calls can not be nested\r\n"), reply[:100]
        assert reply.endswith(b"-ERR EXEC without MULTI\r\n+OK\r\n"), reply[-100:]


def many_words(server: Server, sizes: Sizes) -> None:
    """Requests of very many words."""
    with server.client() as client:
        assert client.call("DEL", *["k"] * sizes.words) == 0
        assert isinstance(
            client.call("XADD", "words", "*", *["f", "v"] * (sizes.words // 2)), bytes
        )
        assert client.call("DEL", "words") == 1
        assert isinstance(client.call("UNKNOWN", *["k"] * sizes.words), Error)


def large_value(server: Server, sizes: Sizes) -> None:
    """A long value set, read, and read by a client that does not read the reply."""
    value = b"x" * sizes.value_bytes
    with server.client() as client, connect(server.port, RECEIVE_BYTES) as attacker:
        assert client.call("SET", "large", value) == Simple("OK")
        attacker.sendall(encode_command(("GET", "large")) * 10)
        assert client.call("GET", "large") == value
        assert client.call("DEL", "large") == 1


def settle(server: Server) -> None:
    """Wait until the server has run its requests: a PING of a new client is answered."""
    with server.client() as client:
        assert client.call("PING") == Simple("PONG")


@dataclass(frozen=True)
class Attack:
    """An attack, the bytes by which the memory of the server may grow, and the time that a PING
    may take in a run at full size."""

    run: Callable[[Server, Sizes], None]
    most_bytes: Callable[[Sizes], int]
    ping_max_s: float = PING_MAX_S

    @property
    def name(self) -> str:
        return self.run.__name__.replace("_", "-")


def megabytes(count: int) -> Callable[[Sizes], int]:
    return lambda sizes: count * MEGABYTE


ATTACKS = [
    Attack(accept_storm, megabytes(48)),
    Attack(idle_clients, lambda sizes: 16 * MEGABYTE + sizes.idle_clients * 8192),
    Attack(half_requests, lambda sizes: 16 * MEGABYTE + sizes.half_requests * 8192),
    Attack(announced_bulk, lambda sizes: 16 * MEGABYTE + sizes.half_requests * 8192),
    Attack(announced_words, lambda sizes: 16 * MEGABYTE + sizes.half_requests * 8192),
    Attack(unread_ranges, megabytes(48)),
    Attack(unread_history, lambda sizes: 48 * MEGABYTE + 100 * sizes.stream_entries),
    Attack(unread_messages, megabytes(96)),  # five times the limit of 8 MB, and some
    Attack(crowd_of_listeners, megabytes(96), ping_max_s=0.5),
    Attack(unread_monitor, megabytes(96)),
    Attack(deep_pipeline, megabytes(48)),
    Attack(greedy_pipeline, megabytes(48)),
    Attack(inline_garbage, megabytes(32)),
    Attack(nested_multi, megabytes(32)),
    Attack(many_words, lambda sizes: 32 * MEGABYTE + 128 * sizes.words),
    Attack(large_value, lambda sizes: 32 * MEGABYTE + 4 * sizes.value_bytes),
]


# ---------------------------------------------------------------- the observer


def rss_bytes(server: Server) -> int:
    return int(Path(f"/proc/{server.pid}/statm").read_text().split()[1]) * PAGE_BYTES


class Watcher(threading.Thread):
    """Another client: PINGs, and looks at the server's memory, until it is stopped."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._client = RawClient(server.port, timeout_s=60)
        self._done = threading.Event()
        self.failure: BaseException | None = None
        self.longest_s = 0.0
        self.pings = 0
        self.first_bytes = self.most_bytes = rss_bytes(server)

    def run(self) -> None:
        try:
            while not self._done.wait(0.005):
                begun_s = time.perf_counter()
                assert self._client.call("PING") == Simple("PONG")
                self.longest_s = max(self.longest_s, time.perf_counter() - begun_s)
                self.pings += 1
                self.most_bytes = max(self.most_bytes, rss_bytes(self._server))
        except (OSError, ConnectionClosed, AssertionError) as failure:
            self.failure = failure

    @property
    def grown_bytes(self) -> int:
        return self.most_bytes - self.first_bytes

    def __enter__(self) -> Watcher:
        self.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._done.set()
        self.join()
        self._client.close()


def ready(server: Server, sizes: Sizes) -> None:
    """The data that the attacks read."""
    allow_files()
    with server.client() as client:
        if client.call("EXISTS", "hostile") == 0:
            fill_stream(client, sizes.stream_entries)


def allow_files() -> None:
    """As many sockets as the machine lets this process open."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def watched(attack: Attack, server: Server, sizes: Sizes) -> Watcher:
    """Run one attack; what another client saw. The server is alive and answers after it."""
    with Watcher(server) as watcher:
        attack.run(server, sizes)
        settle(server)
    if watcher.failure is not None:
        raise AssertionError(f"a client during {attack.name} was harmed") from watcher.failure
    return watcher


def main(names: list[str]) -> int:
    chosen = [attack for attack in ATTACKS if not names or attack.name in names]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder) / "data", DIRECTIVES).start()
        try:
            ready(server, FULL)
            print(f"{'attack':18} {'longest PING':>13} {'memory grew':>12} {'at most':>9}")
            for attack in chosen:
                seen, most_bytes = watched(attack, server, FULL), attack.most_bytes(FULL)
                good = seen.longest_s <= attack.ping_max_s and seen.grown_bytes <= most_bytes
                failed += not good
                print(
                    f"{attack.name:18} {seen.longest_s * 1000:10.1f} ms"
                    f" {seen.grown_bytes / MEGABYTE:9.1f} MB {most_bytes / MEGABYTE:6.0f} MB"
                    f"{'' if good else '  TOO MUCH'}",
                    flush=True,
                )
        finally:
            server.kill()
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
