"""The client over TLS with a user, over a Unix socket, and with a replica: as over TCP, also when
connections break."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from redis.exceptions import AuthenticationError
from redis.exceptions import ConnectionError as RedisConnectionError
from tests.client.apis import Api, take
from tests.client.proxy import Proxy
from tests.support.certificates import Authority
from tests.support.server import Server, free_port

USER = "user ann on >s3cret ~* resetchannels -@all +@read +@write +@connection +config|get +info"
COUNT = 60


class Place(NamedTuple):
    """A server, a proxy before it, and the URL and options of a connection through the proxy."""

    proxy: Proxy
    url: str
    options: dict[str, Any]


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Authority, int]]:
    """A server with a TLS port and a user, and the authority of its certificate."""
    folder, port = tmp_path_factory.mktemp("secure"), free_port()
    authority = Authority(folder)
    users = folder / "users.acl"
    users.write_text(f"{USER}\n")
    given = {"tls-port": str(port), "tls-auth-clients": "no", "aclfile": str(users)}
    server = Server(folder / "data", {**authority.directives(), **given}).start()
    yield server, authority, port
    server.stop()


@pytest.fixture(params=["TCP", "Unix socket", "TLS and a user"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "TLS and a user":
        server, authority, port = request.getfixturevalue("secure")
        proxy = Proxy(port)
        server.reset()
        url = f"rediss://ann:s3cret@127.0.0.1:{proxy.port}"
        found = Place(proxy, url, {"ssl_ca_certs": str(authority.file)})
    else:
        server = request.getfixturevalue("server")
        path = tmp_path / "socket" if request.param == "Unix socket" else None
        proxy = Proxy(server.port, path=path)
        url = proxy.url if path is None else f"unix://{path}"
        found = Place(proxy, url, {})
    yield found
    proxy.close()


def test_every_object_survives_broken_connections(api: Api, place: Place) -> None:
    """Each entry is written once, read once by the stream, and acknowledged by the consumer."""
    ms = api.connect(place.url, timeout=5, **place.options)
    with (
        ms.stream(["s", "t"], "earliest") as stream,
        ms.consumer("s", "g", retry=60, position="earliest") as consumer,
        ms.producer("t", "p", linger=0) as producer,
        ms.writer("s", "w") as writer,
    ):
        read, acknowledged = [], 0
        for n in range(COUNT):
            if n % 10 == 5:
                place.proxy.cut_all()
            writer.append({"n": n})
            if n % 10 == 7:
                place.proxy.cut_all()
            producer.append({"n": n})
            producer.flush()
            read += [(record.shard, int(record["n"])) for record in take(stream, 2)]
            acknowledged += consumer.ack(take(consumer, 1)[0])
    for key in ("s", "t"):
        assert [n for shard, n in read if shard == key] == list(range(COUNT))
    assert acknowledged == COUNT
    assert ms.xlen("s") == ms.xlen("t") == COUNT


def test_a_wrong_password_ends_at_once(api: Api, secure: tuple[Server, Authority, int]) -> None:
    _, authority, port = secure
    url = f"rediss://ann:wrong@127.0.0.1:{port}"
    ms = api.connect(url, ssl_ca_certs=str(authority.file))
    for use in (
        lambda: ms.stream("s"),
        lambda: ms.consumer("s", "g"),
        lambda: ms.producer("s", "p"),
        lambda: ms.writer("s", "w").append({"n": 1}),
    ):
        with pytest.raises(AuthenticationError):
            use()


def test_an_authority_that_is_not_trusted_is_an_error(
    api: Api, secure: tuple[Server, Authority, int]
) -> None:
    _, _, port = secure
    ms = api.connect(f"rediss://ann:s3cret@127.0.0.1:{port}")
    with pytest.raises(RedisConnectionError, match="certificate"):
        ms.stream("s")


def test_a_stream_follows_a_replica_over_a_restart(
    api: Api, new_server: Callable[..., Server]
) -> None:
    primary = new_server("primary").start()
    given = {"replicaof": f"127.0.0.1 {primary.port}"}
    replica = new_server("replica", given).start()
    writes = api.connect(f"redis://127.0.0.1:{primary.port}")
    reads = api.connect(f"redis://127.0.0.1:{replica.port}")
    with writes.writer("s", "w") as writer:
        for n in range(3):
            writer.append({"n": n})
        writes.wait(1, 10_000)
        with reads.stream("s", "earliest", create=False) as stream:
            found = [record["n"] for record in take(stream, 3)]
            replica.kill()
            for n in range(3, 6):
                writer.append({"n": n})
            replica.start()
            found += [record["n"] for record in take(stream, 3)]
    assert found == [str(n) for n in range(6)]
