"""TLS and Unix sockets: only TLS records leave a TLS port, and certificates decide who may
connect."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import re
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import redis
import uvloop
from tests.support.certificates import Authority, openssl
from tests.support.resp import Simple, encode_command
from tests.support.server import Server, free_port
from tests.support.waiting import wait_until

import millstream.client
from millstream.errors import StartError
from millstream.pipeline.server_connection import Address
from millstream.server.config.directives import DIRECTIVES, Config
from millstream.server.monitor.failed_handshakes import FAILED_HANDSHAKES
from millstream.server.net import tls_handshake
from millstream.server.net.certificate_dates import expiry_dates, expiry_warnings
from millstream.server.net.listeners import Listeners
from millstream.server.net.tls_contexts import make_tls

NewServer = Callable[..., Server]
RECORD_TYPES = {20, 21, 22, 23}  # change cipher, alert, handshake, data
RECORD_MAX = 16384 + 256


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server_files(authority: Authority) -> dict[str, str]:
    return authority.directives()


def config_of(directives: dict[str, str]) -> Config:
    config = Config(tls_port=1)
    for name, value in directives.items():
        DIRECTIVES[name.replace("_", "-")].set_in(config, value)
    return config


class TlsServer:
    """A server with a TLS port, and connections to it."""

    def __init__(self, new_server: NewServer, directives: dict[str, str]) -> None:
        self.port = free_port()
        self.server: Server = new_server("data", {**directives, "tls-port": str(self.port)})
        self.server.start()

    def redis(self, authority: Authority, **options: Any) -> redis.Redis:
        return redis.Redis(
            port=options.pop("port", self.port),
            ssl=True,
            ssl_ca_certs=str(authority.file),
            decode_responses=True,
            **options,
        )


@pytest.fixture
def open_server(new_server: NewServer, server_files: dict[str, str]) -> TlsServer:
    """Clients need no certificate."""
    return TlsServer(new_server, {**server_files, "tls-auth-clients": "no"})


class Recorder:
    """A proxy that keeps what the server sends."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.sent: list[bytearray] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                kept = bytearray()
                self.sent.append(kept)
                self._pump(client, server, bytearray())
                self._pump(server, client, kept)

    def _pump(self, source: socket.socket, target: socket.socket, kept: bytearray) -> None:
        def run() -> None:
            with contextlib.suppress(OSError):
                while data := source.recv(65536):
                    kept.extend(data)
                    target.sendall(data)
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_WR)

        threading.Thread(target=run, daemon=True).start()

    def close(self) -> None:
        self._listener.close()


def records(data: bytes) -> Iterator[int]:
    """The types of all TLS records; AssertionError for any other byte."""
    at = 0
    while at + 5 <= len(data):
        kind, major = data[at], data[at + 1]
        size = int.from_bytes(data[at + 3 : at + 5], "big")
        assert kind in RECORD_TYPES, data[at : at + 50]
        assert major == 3
        assert size <= RECORD_MAX
        yield kind
        at += 5 + size


def test_only_tls_records_leave_the_port(open_server: TlsServer, authority: Authority) -> None:
    """Pipelines, long replies to a slow reader, messages of channels, reads that wait, refusals."""
    recorder = Recorder(open_server.port)
    client = open_server.redis(authority, port=recorder.port)
    other = open_server.redis(authority, port=recorder.port)
    pipeline = client.pipeline(transaction=False)
    for number in range(2000):
        pipeline.execute_command("XADD", "s", f"{number + 1}-0", "f", "v" * 500)
    assert len(pipeline.execute()) == 2000
    assert len(client.xrange("s")) == 2000
    heard = client.pubsub()
    heard.subscribe("news")
    waiting = threading.Thread(target=lambda: other.xread({"t": "$"}, block=0))
    waiting.start()
    with open_server.server.client() as plain:
        plain.wait_blocked(1)
        for number in range(100):
            plain.call("PUBLISH", "news", f"message {number}")
        plain.call("XADD", "t", "*", "f", "v")
        got = []
        while len(got) < 100:
            message = heard.get_message(ignore_subscribe_messages=True, timeout=5)
            assert message is None or message["type"] == "message"
            got += [message] if message else []
        waiting.join()
        slow = slow_reader(recorder.port, authority)
        plain.call("CONFIG", "SET", "maxclients", "1")
        with pytest.raises(redis.ConnectionError):
            open_server.redis(authority, port=recorder.port).ping()
    total = read_all(slow, 500 * 2000 * 5)
    assert total > 500 * 2000 * 5
    recorder.close()
    sent = [bytes(data) for data in recorder.sent]
    assert len(sent) >= 4
    for data in sent:
        assert 23 in set(records(data))
        assert b"vvvvvvvv" not in data
        assert b"message" not in data


def slow_reader(port: int, authority: Authority) -> ssl.SSLSocket:
    """A client that asks for 5 MB and does not read yet."""
    context = ssl.create_default_context(cafile=str(authority.file))
    connection = context.wrap_socket(
        socket.create_connection(("127.0.0.1", port)), server_hostname="127.0.0.1"
    )
    connection.sendall(encode_command([b"PING"]))
    assert connection.recv(100) == b"+PONG\r\n"  # it is accepted
    connection.sendall(encode_command([b"XRANGE", b"s", b"-", b"+"]) * 5)
    return connection


def read_all(connection: ssl.SSLSocket, at_least: int) -> int:
    total = 0
    while total <= at_least:
        data = connection.recv(65536)
        assert data, f"closed after {total} bytes"
        total += len(data)
    return total


def test_clients_need_a_certificate(
    new_server: NewServer, server_files: dict[str, str], authority: Authority, tmp_path: Path
) -> None:
    server = TlsServer(new_server, server_files)
    certificate, key = authority.issue("alice")
    foreign = Authority(tmp_path, "foreign").issue("alice")
    pair = {"ssl_certfile": str(certificate), "ssl_keyfile": str(key)}
    assert server.redis(authority, **pair).ping()
    with pytest.raises((redis.ConnectionError, ssl.SSLError, OSError)):
        server.redis(authority).ping()
    with pytest.raises((redis.ConnectionError, ssl.SSLError, OSError)):
        server.redis(authority, ssl_certfile=str(foreign[0]), ssl_keyfile=str(foreign[1])).ping()
    found = re.search(
        r"tls      127\.0\.0\.1:\d+: a client's handshake has failed: peer did not return a cert",
        server.server.log,
    )
    assert found, server.server.log
    with server.redis(authority, **pair) as counted:
        assert counted.info("stats")["tls_handshake_failures"] >= 2
    admin = server.redis(authority, **pair)
    admin.config_set("tls-auth-clients", "optional")
    wait_until(lambda: can_ping(server.redis(authority)), what="a client without certificate")


def can_ping(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except (redis.ConnectionError, OSError):
        return False


def test_a_certificate_names_the_user(
    new_server: NewServer, server_files: dict[str, str], authority: Authority
) -> None:
    server = TlsServer(new_server, {**server_files, "tls-auth-clients-user": "CN"})
    with server.server.client() as plain:
        assert plain.call("ACL", "SETUSER", "alice", "on", "+@all", "~a*") == Simple("OK")
        assert plain.call("CONFIG", "SET", "requirepass", "secret") == Simple("OK")
    found = {}
    for name in ("alice", "unknown"):
        certificate, key = authority.issue(name)
        pair = {"ssl_certfile": str(certificate), "ssl_keyfile": str(key)}
        client = server.redis(authority, **pair, protocol=2)
        try:
            found[name] = client.execute_command("ACL WHOAMI")
        except redis.AuthenticationError:
            found[name] = None
    assert found == {"alice": "alice", "unknown": None}


def test_a_new_certificate_without_a_restart(
    open_server: TlsServer, authority: Authority, tmp_path: Path, server_files: dict[str, str]
) -> None:
    old = open_server.redis(authority)
    assert old.ping()
    other = Authority(tmp_path, "other")
    certificate, key = other.issue("server")
    with pytest.raises(redis.ResponseError, match=r"is not the key of the certificate"):
        old.config_set("tls-cert-file", str(certificate))
    assert old.config_get("tls-cert-file") == {"tls-cert-file": server_files["tls-cert-file"]}
    assert open_server.redis(authority).ping()
    old.execute_command("CONFIG SET", "tls-cert-file", str(certificate), "tls-key-file", str(key))
    wait_until(lambda: can_ping(open_server.redis(other)), what="the new certificate")
    assert not can_ping(open_server.redis(authority))
    assert old.ping()  # existing connections continue


def test_a_refused_change_does_not_read_the_earlier_files(
    open_server: TlsServer, authority: Authority, tmp_path: Path
) -> None:
    """The earlier certificate is still in use when its file has been damaged since."""
    client = open_server.redis(authority)
    certificate, key = (tmp_path / "server.crt", tmp_path / "server.key")
    for name, path in (("cert", certificate), ("key", key)):
        shutil.copy(client.config_get()[f"tls-{name}-file"], path)
    client.execute_command(
        "CONFIG SET", "tls-cert-file", str(certificate), "tls-key-file", str(key)
    )
    certificate.write_text("nonsense")
    with pytest.raises(redis.ResponseError, match=r"nowhere\.crt: No such file or directory"):
        client.config_set("tls-cert-file", str(tmp_path / "nowhere.crt"))
    assert client.config_get("tls-cert-file") == {"tls-cert-file": str(certificate)}
    with pytest.raises(redis.ResponseError, match=r"server\.crt has no certificate in PEM"):
        client.config_set("tls-session-caching", "no")
    assert can_ping(open_server.redis(authority))


def test_a_certificate_that_cannot_be_used_is_not_current(
    server_files: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its expiry would be shown. The next one is used again."""

    def fail(self: socket.socket) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    async def run() -> None:
        config = config_of({**server_files, "tls-auth-clients": "no"})
        config.port, config.tls.port = 0, free_port()
        listeners = Listeners(config, asyncio.Protocol)
        listeners.bind()
        await listeners.listen()
        first = listeners.tls
        assert listeners.files_expire_s.keys() == {"tls-ca-cert-file"}
        with monkeypatch.context() as patched:
            patched.setattr(socket.socket, "dup", fail)
            listeners.renew()
            assert listeners.tls is first  # until it is used
            await renewed(listeners)
        assert listeners.tls is first
        assert listeners.wanted_tls is first
        assert "the new certificate is not used: [Errno 24]" in caplog.text
        listeners.renew()
        second = listeners.wanted_tls
        assert second is not first
        listeners.renew()
        listeners.use(second)  # as CONFIG SET does when a later directive is refused
        await renewed(listeners)
        assert listeners.tls is second
        listeners.close()

    async def renewed(listeners: Listeners) -> None:
        assert listeners._renewal is not None
        await listeners._renewal

    asyncio.run(run())


def _refuse_arguments(*_arguments: object) -> None:
    """Takes other arguments than uvloop's class."""


@pytest.mark.parametrize("found", [None, _refuse_arguments], ids=["absent", "another"])
def test_tls_works_with_another_uvloop(
    authority: Authority, server_files: dict[str, str], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture, found: Callable[..., None] | None,
) -> None:  # fmt: skip
    """Without the internal class that counts handshakes that time out."""

    async def run() -> None:
        config = config_of({**server_files, "tls-auth-clients": "no"})
        config.port, config.tls.port = 0, free_port()
        listeners = Listeners(config, lambda: Greeting())
        listeners.bind()
        await listeners.listen()
        context = ssl.create_default_context(cafile=str(authority.file))
        for _ in range(2):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", config.tls.port, ssl=context
            )
            assert await reader.readexactly(5) == b"hello"
            writer.close()
            listeners.renew()
            assert listeners._renewal is not None
            await listeners._renewal
        listeners.close()

    if found is None:
        monkeypatch.delattr("uvloop.loop.SSLProtocol")
    else:
        monkeypatch.setattr("uvloop.loop.SSLProtocol", found)
    uvloop.run(run())
    assert caplog.text.count("handshakes that take too long are ended, but not counted") == 1


class Greeting(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        transport.write(b"hello")


def test_an_aborted_socket_has_not_timed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error has the class of the loop's own error for a handshake that takes too long."""
    noted: list[str] = []
    monkeypatch.setattr(FAILED_HANDSHAKES, "note_peer", lambda reason, peer: noted.append(reason))

    async def end(problem: Exception) -> None:
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ended.set_exception(problem)
        tls_handshake._end(Mock(), ("127.0.0.1", 1), 10.0, ended)

    asyncio.run(end(ConnectionAbortedError(errno.ECONNABORTED, "Software caused an abort")))
    assert noted == []
    asyncio.run(end(ConnectionAbortedError("SSL handshake is taking longer than 10 seconds")))
    assert noted == ["it has not ended within 10 seconds"]


def test_sighup_reads_the_files_again(
    new_server: NewServer, authority: Authority, tmp_path: Path
) -> None:
    first, second = Authority(tmp_path, "first"), Authority(tmp_path, "second")
    log = tmp_path / "server.log"
    directives = first.directives()
    server = TlsServer(new_server, {**directives, "tls-auth-clients": "no", "logfile": str(log)})
    certificate, key = second.issue("renewed")
    Path(directives["tls-cert-file"]).write_text("nonsense")
    server.server.signal(signal.SIGHUP)
    error = "has no certificate in PEM; the earlier certificates stay in use"
    wait_until(lambda: error in log.read_text(), what="the error")
    assert server.redis(first).ping()
    shutil.copy(certificate, directives["tls-cert-file"])
    shutil.copy(key, directives["tls-key-file"])
    log.rename(tmp_path / "rotated.log")
    server.server.signal(signal.SIGHUP)
    wait_until(lambda: can_ping(server.redis(second)), what="the new certificate")
    assert log.exists()


def test_redis_cli_our_client_and_urls(open_server: TlsServer, authority: Authority) -> None:
    done = subprocess.run(
        ["redis-cli", "-p", str(open_server.port), "--tls", "--cacert", authority.file, "PING"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "PONG\n"
    url = f"rediss://127.0.0.1:{open_server.port}?ssl_ca_certs={authority.file}"
    with millstream.client.connect(url) as client:
        assert client.ping()
    with Address(url, None, None, None, 5).open() as connection:  # as Spark and cdc connect
        assert connection.call("ECHO", "hello") == b"hello"


def test_sessions_are_resumed(open_server: TlsServer, authority: Authority) -> None:
    context = ssl.create_default_context(cafile=str(authority.file))
    session = None
    for resumed in (False, True):
        plain = socket.create_connection(("127.0.0.1", open_server.port))
        with context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as client:
            client.sendall(encode_command([b"PING"]))
            assert client.recv(100) == b"+PONG\r\n"
            assert client.session_reused == resumed
            session = client.session


def test_a_client_without_tls_gets_no_reply(open_server: TlsServer) -> None:
    """Text, and a client that sends nothing, end without a reply in text; others are served."""
    with socket.create_connection(("127.0.0.1", open_server.port)) as client:
        client.sendall(b"PING\r\n" * 10)
        data = client.recv(1000)
        assert b"PONG" not in data
    assert "handshake has failed: the client does not use TLS" in open_server.server.log
    with open_server.server.client() as plain:
        assert plain.call("PING") == Simple("PONG")


GARBAGE = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01" + b"\xff" * 70_000,  # a record that is too long
    b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00",  # a hello that ends at once
    b"\x80\x2e\x01\x00\x02",  # SSL 2
    b"\x15\x03\x01\x00\x02\x02\x28",  # an alert
]


def hello() -> bytes:
    """The first bytes of a real handshake."""
    outgoing = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(
        ssl.MemoryBIO(), outgoing, server_hostname="localhost"
    )
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def test_hostile_bytes_disturb_no_client(open_server: TlsServer, authority: Authority) -> None:
    """Garbage in place of a handshake, in the middle of one, and after one."""
    good = open_server.redis(authority)
    chance = random.Random(7)
    beginning = hello()
    noise = [chance.randbytes(chance.randrange(1, 5000)) for _ in range(40)]
    changed = []
    for _ in range(40):
        bytes_ = bytearray(beginning)
        bytes_[chance.randrange(len(bytes_))] ^= 1 << chance.randrange(8)
        changed.append(bytes(bytes_))
    cut = [beginning[: chance.randrange(len(beginning))] for _ in range(20)]
    twice = [beginning + beginning, beginning + b"PING\r\n" * 1000]
    for data in [*GARBAGE, *noise, *changed, *cut, *twice]:
        client = socket.create_connection(("127.0.0.1", open_server.port))
        with client, contextlib.suppress(ConnectionError):
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            while client.recv(65536):
                pass
    context = ssl.create_default_context(cafile=str(authority.file))
    for data in noise[:10]:
        plain = socket.create_connection(("127.0.0.1", open_server.port))
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as encrypted:
            encrypted.sendall(b"PING\r\n")
            assert encrypted.recv(100) == b"+PONG\r\n"
            with (
                contextlib.suppress(OSError),
                socket.socket(fileno=os.dup(encrypted.fileno())) as raw,
            ):
                raw.sendall(data)  # not encrypted
                while raw.recv(65536):
                    pass
    assert good.ping()
    assert len(good.client_list()) == 1
    assert "Traceback" not in open_server.server.log


def test_silent_clients_do_not_stay(open_server: TlsServer, authority: Authority) -> None:
    """A handshake that does not begin, or does not continue, ends after ten seconds. The log has
    the addresses of some of these clients, and INFO counts all."""
    with open_server.redis(authority) as counted:
        before = counted.info("stats")["tls_handshake_failures"]
    silent = [socket.create_connection(("127.0.0.1", open_server.port)) for _ in range(50)]
    for client in silent[25:]:
        client.sendall(hello()[:20])
    assert open_server.redis(authority).ping()
    for client in silent:
        client.settimeout(30)
        with contextlib.suppress(ConnectionError):
            assert client.recv(100) == b""
    with open_server.redis(authority) as counted:
        wait_until(
            lambda: counted.info("stats")["tls_handshake_failures"],
            lambda count: count >= before + len(silent),
            "a count of all",
        )
    addresses = {f"127.0.0.1:{client.getsockname()[1]}" for client in silent}
    line = r"tls +(\S+): a client's handshake has failed: it has not ended within 10 seconds"
    found = set(re.findall(line, open_server.server.log))
    assert 5 <= len(found & addresses) < len(silent)
    for client in silent:
        client.close()


def change(directives: dict[str, str], **changes: str) -> dict[str, str]:
    return {**directives, **{name.replace("_", "-"): value for name, value in changes.items()}}


def test_each_error_names_the_file(
    authority: Authority, server_files: dict[str, str], tmp_path: Path
) -> None:
    _, key = authority.issue("another")
    locked, locked_key = authority.issue("locked", password="secret")
    nonsense = tmp_path / "nonsense"
    nonsense.write_text("nonsense")
    wrong = {
        "tls-cert-file: cannot read /none: No such file": {"tls_cert_file": "/none"},
        "tls-key-file: cannot read /none: No such file": {"tls_key_file": "/none"},
        f"tls-cert-file: {nonsense} has no certificate": {"tls_cert_file": str(nonsense)},
        f"tls-key-file: {nonsense} has no key": {"tls_key_file": str(nonsense)},
        f"tls-key-file: {key} is not the key of": {"tls_key_file": str(key)},
        f"tls-ca-cert-file: {nonsense} has no": {"tls_ca_cert_file": str(nonsense)},
        "tls-ca-cert-dir: /none is not a folder": {"tls_ca_cert_dir": "/none"},
        f"tls-dh-params-file: {nonsense} has no": {"tls_dh_params_file": str(nonsense)},
        "tls-ciphers: OpenSSL knows none": {"tls_ciphers": "nonsense"},
        "tls-auth-clients needs tls-ca-cert-file": {"tls_ca_cert_file": ""},
        "tls-port needs tls-cert-file and": {"tls_key_file": ""},
        f"tls-key-file: {locked_key} has no key in PEM that tls-key-file-pass opens": {
            "tls_cert_file": str(locked), "tls_key_file": str(locked_key), "tls_key_file_pass": "x",
        },
    }  # fmt: skip
    for message, changes in wrong.items():
        with pytest.raises(StartError) as caught:
            make_tls(config_of(change(server_files, **changes)))
        assert str(caught.value).startswith(message)
    changes = {"tls_cert_file": str(locked), "tls_key_file": str(locked_key)}
    assert make_tls(config_of(change(server_files, **changes, tls_key_file_pass="secret")))
    assert make_tls(config_of(change(server_files, tls_protocols="TLSv1.3"))).expires_s > 0
    assert make_tls(config_of(change(server_files, tls_protocols="TLSv1.2"))).expires_s > 0
    rsa = tmp_path / "rsa.key", tmp_path / "rsa.crt"
    openssl(
        *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=rsa", "-days", "2"),
        *("-keyout", str(rsa[0]), "-out", str(rsa[1])),
    )
    changes = {"tls_cert_file": str(rsa[1]), "tls_key_file": str(rsa[0])}
    with pytest.raises(StartError, match="no handshake succeeds"):
        make_tls(config_of(change(
            server_files, **changes, tls_protocols="TLSv1.2", tls_ciphers="ECDHE-ECDSA-AES128-SHA"
        )))  # fmt: skip


def test_a_wrong_certificate_prevents_the_start(
    new_server: NewServer, server_files: dict[str, str]
) -> None:
    changes = {"tls-port": str(free_port()), "tls-cert-file": "/none"}
    server = new_server("data", {**server_files, **changes})
    with pytest.raises(AssertionError, match="tls-cert-file: cannot read /none"):
        server.start()
    assert server.exit_code == 1


# Links between servers


def test_a_replica_follows_over_tls(
    new_server: NewServer, authority: Authority, server_files: dict[str, str]
) -> None:
    """Both have no port without TLS, and ask for certificates, which is the default."""
    own = {**server_files, "port": "0"}
    primary_port, replica_port = free_port(), free_port()
    primary = new_server("primary", {**own, "tls-port": str(primary_port)})
    follow = {"replicaof": f"127.0.0.1 {primary_port}", "tls-replication": "yes"}
    replica = new_server("replica", {**own, **follow, "tls-port": str(replica_port)})
    certificate, key = authority.issue("client")
    options = {"ssl_certfile": str(certificate), "ssl_keyfile": str(key), "ssl": True}
    with contextlib.ExitStack() as stack:
        clients = {}
        for name, server, port in (
            ("primary", primary, primary_port),
            ("replica", replica, replica_port),
        ):
            server.port = port
            server.launch()
            clients[name] = redis.Redis(
                port=port, ssl_ca_certs=str(authority.file), decode_responses=True, **options
            )
            stack.callback(clients[name].close)
            wait_until(lambda client=clients[name]: can_ping(client), what=f"the {name}")
        clients["primary"].xadd("s", {"large": "x" * 3_000_000})
        clients["primary"].set("after", "1")
        wait_until(lambda: clients["replica"].get("after") == "1", what="the data on the replica")
        assert clients["replica"].xlen("s") == 1
        assert clients["primary"].execute_command("WAITAOF", 0, 1, 10_000) == [1, 1]
        (shown,) = clients["primary"].execute_command("ROLE")[2]
        assert shown[1] == str(replica_port)  # where Sentinel would look for it


def test_a_replica_does_not_trust_another_authority(
    new_server: NewServer, open_server: TlsServer, tmp_path: Path
) -> None:
    other = Authority(tmp_path, "other")
    follow = {"replicaof": f"127.0.0.1 {open_server.port}", "tls-replication": "yes"}
    replica = new_server("replica", {**follow, "tls-ca-cert-file": str(other.file)}).start()
    sentence = "its certificate is not trusted: "
    wait_until(lambda: sentence in replica.log, what="a refused link")
    assert "; tls-ca-cert-file names the authority" in replica.log
    assert replica.log.count("no link to the primary") == 1
    with replica.client() as client:
        assert client.info("replication")["master_link_status"] == "down"


def test_a_link_that_cannot_use_tls_logs_the_reason(
    new_server: NewServer, authority: Authority, server_files: dict[str, str], tmp_path: Path
) -> None:
    """The port without TLS, and then a primary that does not trust the replica's certificate."""
    primary = TlsServer(new_server, server_files)
    other = Authority(tmp_path, "other")
    certificate, key = other.issue("replica")
    files = {"tls-ca-cert-file": str(authority.file), "tls-client-cert-file": str(certificate)}
    files["tls-client-key-file"] = str(key)
    directives = {**files, "tls-replication": "yes"}
    directives["replicaof"] = f"127.0.0.1 {primary.server.port}"
    replica = new_server("replica", directives).start()
    sentence = "this port does not speak TLS; tls-replication needs the tls-port of the primary"
    wait_until(lambda: sentence in replica.log, what="the first reason")
    with replica.client() as client:
        client.call("REPLICAOF", "127.0.0.1", str(primary.port))
    sentence = "the primary may not trust the certificate of this server, which tls-client-cert"
    wait_until(lambda: sentence in replica.log, what="the second reason")


def test_a_tls_port_is_not_trusted_without_tls_replication(
    new_server: NewServer, open_server: TlsServer, authority: Authority
) -> None:
    """It can be switched on later: the next attempt uses TLS."""
    metrics_port = free_port()
    follow = {"replicaof": f"127.0.0.1 {open_server.port}", "metrics-port": str(metrics_port)}
    replica = new_server("replica", follow).start()
    with replica.client() as client:
        reply = client.call("CONFIG", "SET", "tls-replication", "yes")
        assert "tls-replication needs tls-ca-cert-file" in str(reply)
        assert client.call("CONFIG", "GET", "tls-replication") == [b"tls-replication", b"no"]
        assert client.info("replication")["master_link_status"] == "down"
        sentence = "closed without an answer; a port with TLS needs tls-replication yes"
        wait_until(lambda: sentence in replica.log, what="the reason")
        client.call("CONFIG", "SET", "tls-ca-cert-file", authority.file, "tls-replication", "yes")
        wait_until(
            lambda: client.info("replication")["master_link_status"] == "up", what="the link"
        )
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics") as page:
        shown = page.read().decode()
    assert 'tls_file_expiry_timestamp_seconds{directive="tls-ca-cert-file"}' in shown


def unix_command(path: Path, *words: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(encode_command(list(words)))
        return client.recv(65536)


def test_unix_socket(new_server: NewServer, tmp_path: Path) -> None:
    path = tmp_path / "m.sock"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()  # its file stays
    server = new_server("data", {"unixsocket": str(path), "unixsocketperm": "700"}).start()
    assert unix_command(path, b"PING") == b"+PONG\r\n"
    assert path.stat().st_mode & 0o777 == 0o700
    line = unix_command(path, b"CLIENT", b"LIST").decode()
    assert f"addr={path}:0 laddr={path}:0" in line
    assert f"name=unix,bind={path}" in unix_command(path, b"INFO", b"server").decode()
    second = new_server("second", {"unixsocket": str(path)})
    with pytest.raises(AssertionError, match="another program is listening there"):
        second.start()
    assert unix_command(path, b"PING") == b"+PONG\r\n"
    server.stop()
    assert not path.exists()
    path.write_text("a file")
    third = new_server("third", {"unixsocket": str(path)})
    with pytest.raises(AssertionError, match="the file exists and is not a socket"):
        third.start()


def test_port_0_opens_no_port_with_a_unix_socket(new_server: NewServer, tmp_path: Path) -> None:
    path = tmp_path / "m.sock"
    server = new_server("data", {"unixsocket": str(path)})
    server.directives |= {"port": "0"}
    server._launch(0)
    try:
        wait_until(lambda: server.is_alive() and path.exists() and answers(path), what="PING")
        info = unix_command(path, b"INFO", b"server").decode()
        assert "tcp_port:0\r\n" in info
        assert "name=tcp" not in info
    finally:
        server.stop()


def answers(path: Path) -> bool:
    try:
        return unix_command(path, b"PING") == b"+PONG\r\n"
    except OSError:
        return False


def test_metrics_over_tls_use_the_newest_certificate(
    new_server: NewServer, authority: Authority, server_files: dict[str, str]
) -> None:
    port = free_port()
    directives = {"metrics-port": str(port), "metrics-tls": "yes", "tls-auth-clients": "no"}
    server = TlsServer(new_server, {**server_files, **directives}).server
    trusting = ssl.create_default_context(cafile=str(authority.file))

    def served() -> tuple[str, bytes]:
        """The name in the certificate, and the beginning of the answer."""
        plain = socket.create_connection(("127.0.0.1", port), 10)
        with trusting.wrap_socket(plain, server_hostname="127.0.0.1") as secured:
            secured.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            certificate: dict[str, Any] = secured.getpeercert() or {}
            subject = dict(pair for row in certificate["subject"] for pair in row)
            return subject["commonName"], secured.recv(15)

    assert served() == ("server", b"HTTP/1.1 200 OK")
    certificate, key = authority.issue("renewed")
    with server.client() as client:
        client.call("CONFIG", "SET", "tls-cert-file", str(certificate), "tls-key-file", str(key))
    wait_until(lambda: served()[0] == "renewed", what="the new certificate")
    assert "metrics  https://" in server.log


def test_the_expiry_of_each_certificate_is_known(authority: Authority) -> None:
    certificate, key = authority.issue("early", days=1)
    directives = authority.directives("late") | {
        "tls-client-cert-file": str(certificate), "tls-client-key-file": str(key),
        "tls-replication": "yes",
    }  # fmt: skip
    late_s = make_tls(config_of(directives)).expires_s
    config = config_of(directives)
    found = expiry_dates(config)
    assert found.keys() == {"tls-ca-cert-file", "tls-client-cert-file"}
    assert abs(found["tls-ca-cert-file"] - late_s) < 4000
    assert abs(late_s - found["tls-client-cert-file"] - 86400) < 4000
    config.tls.client_cert_file = ""
    assert expiry_dates(config).keys() == {"tls-ca-cert-file"}
    config.tls.port = 0  # only the link to a primary uses TLS
    assert expiry_dates(config)["tls-cert-file"] == late_s
    config.tls.replication = False
    assert expiry_dates(config) == {}


@pytest.mark.parametrize("port", [1, 0])
def test_the_expiry_of_a_folder_of_authorities_is_known(
    authority: Authority, tmp_path: Path, port: int
) -> None:
    (tmp_path / "0123abcd.0").write_bytes(authority.file.read_bytes())
    (tmp_path / "0123abcd.1").write_bytes(authority.issue("short", days=1)[0].read_bytes())
    (tmp_path / "README").write_text("no certificate")
    directives = change(
        authority.directives("late"), tls_ca_cert_file="", tls_ca_cert_dir=str(tmp_path),
        tls_replication="yes",
    )  # fmt: skip
    config = config_of(directives)
    config.tls.port = port
    dates = expiry_dates(config)
    assert abs(dates["tls-ca-cert-dir"] - time.time() - 2 * 86400) < 4000
    assert expiry_warnings(dates) == []
    assert expiry_warnings({"tls-ca-cert-dir": 86400}) == [
        "tls-ca-cert-dir: a certificate has expired on 1970-01-02"
    ]


def test_metrics_over_tls_need_a_tls_port(new_server: NewServer) -> None:
    server = new_server("data", {"metrics-port": str(free_port()), "metrics-tls": "yes"})
    with pytest.raises(AssertionError, match="did not start"):
        server.start()
    assert "metrics-tls uses the certificate of tls-port" in server.log
