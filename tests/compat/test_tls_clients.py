"""Clients that log in as a restricted user over TLS: redis-py, ioredis, node-redis."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from tests.support.certificates import Authority
from tests.support.node import Program
from tests.support.server import Server, free_port

LIBRARIES = ["ioredis", "ioredis-5", "redis", "redis-5"]
USER = (
    "user ann on >s3cret ~orders* resetchannels -@all +@stream +@connection +info +client|setinfo"
)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def url(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server's TLS port, with the user and the password."""
    folder, port = tmp_path_factory.mktemp("tls"), free_port()
    users = folder / "users.acl"
    users.write_text(f"{USER}\n")
    given = {"tls-port": str(port), "tls-auth-clients": "no", "aclfile": str(users)}
    server = Server(folder / "data", {**authority.directives(), **given})
    server.start()
    yield f"rediss://ann:s3cret@127.0.0.1:{port}"
    server.stop()


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("protocol", [2, 3], ids=["RESP2", "RESP3"])
def test_node(
    library: str, protocol: int, url: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVER_URL", url)
    monkeypatch.setenv("NODE_EXTRA_CA_CERTS", str(authority.file))
    key = f"orders:{library}:{protocol}"
    if library.startswith("ioredis"):
        calls: list[list[Any]] = [
            ["xadd", key, "1-1", "item", "tea"],
            ["xlen", key],
            ["xlen", "other"],
            ["call", "FLUSHALL"],
        ]
    else:
        calls = [
            ["xAdd", key, "1-1", {"item": "tea"}],
            ["xLen", key],
            ["xLen", "other"],
            ["flushAll"],
        ]
    with Program("converse.cjs", library, 1, protocol) as program:
        program.send(calls)
        program.end()
        added, length, no_key, no_command = program.hear()
    assert (added, length) == ("1-1", 1)
    assert "NOPERM No permissions to access a key" in no_key["error"]
    assert "NOPERM User ann has no permissions to run the 'flushall' command" in no_command["error"]


@pytest.mark.parametrize("protocol", [2, 3], ids=["RESP2", "RESP3"])
def test_redis_py(protocol: int, url: str, authority: Authority) -> None:
    options: dict[str, Any] = {"ssl_ca_certs": str(authority.file), "protocol": protocol}
    with redis.Redis.from_url(url, decode_responses=True, **options) as client:
        assert client.xadd(f"orders:py:{protocol}", {"item": "tea"}, id="1-1") == "1-1"
        with pytest.raises(redis.exceptions.NoPermissionError, match="access a key"):
            client.xlen("other")
    wrong = url.replace("s3cret", "wrong")
    with (
        redis.Redis.from_url(wrong, **options) as client,
        pytest.raises(redis.exceptions.AuthenticationError),
    ):
        client.ping()
    with redis.Redis.from_url(url) as client, pytest.raises(redis.exceptions.ConnectionError):
        client.ping()  # the authority is not trusted


def test_redis_py_with_asyncio(url: str, authority: Authority) -> None:
    async def talk() -> list[Any]:
        options: dict[str, Any] = {"ssl_ca_certs": str(authority.file)}
        async with redis.asyncio.Redis.from_url(url, **options) as client:
            waiting = asyncio.create_task(client.xread({"orders:aio": "0"}, block=0))
            await client.xadd("orders:aio", {"item": "tea"}, id="1-1")
            await waiting
            return list(await client.xrange("orders:aio"))

    assert asyncio.run(talk()) == [(b"1-1", {b"item": b"tea"})]


def test_the_tools(url: str, authority: Authority, tmp_path: Path) -> None:
    from click.testing import CliRunner

    from millstream.__main__ import main

    trusted = f"{url}?ssl_ca_certs={authority.file}"
    done = CliRunner().invoke(main, ["health", trusted])
    assert (done.exit_code, done.output) == (0, "PONG\n")
    with redis.Redis.from_url(url, ssl_ca_certs=str(authority.file)) as client:
        client.xadd("orders:tail", {"item": "tea"}, id="1-1")
    words = ["tail", "orders:tail", "--url", trusted, "--from", "0", "--count", "1", "--json"]
    done = CliRunner().invoke(main, words)
    assert (done.exit_code, done.output) == (0, '{"id": "1-1", "fields": {"item": "tea"}}\n')
