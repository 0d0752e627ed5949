"""Etcd that fails, is cut off, or requires users and TLS; and servers that are not etcd."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.certificates import Authority
from tests.support.client import RawClient
from tests.support.etcd import UNCHECKED, Etcd
from tests.support.resp import Simple
from tests.support.server import Server, server_program
from tests.support.shards import free_range
from tests.support.waiting import wait_until

from millstream.__main__ import main
from millstream.server.cluster.store import etcd_connection, etcd_store
from millstream.server.cluster.store import etcd_requests as requests
from millstream.server.cluster.store.etcd_connection import NoAnswer
from millstream.server.cluster.store.etcd_store import (
    TIMEOUT_S,
    EtcdStore,
    Login,
    parse_endpoints,
    tls_context,
)
from millstream.server.cluster.store.store import (
    Change,
    Compacted,
    Compare,
    Contents,
    Refused,
    Unreachable,
)

OK = Simple("OK")
SMALL_MAX = 100_000  # bytes of a reply
numbers = count(1)
REFUSED = "it wants a certificate of the client that it trusts"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def store_at(urls: str, login: Login | None = None) -> EtcdStore:
    return EtcdStore(f"etcd{next(numbers)}", parse_endpoints(urls), login)


def post(url: str, path: str, fields: object, token: str = "") -> dict[str, Any]:
    request = Request(f"{url}/v3/{path}", json.dumps(fields).encode())
    if token:
        request.add_header("Authorization", token)
    with urlopen(request, timeout=10, context=UNCHECKED) as reply:
        return json.loads(reply.read())


@asynccontextmanager
async def endpoint(serve: Serve) -> AsyncIterator[str]:
    """The URL of a server in this process."""

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await serve(reader, writer)
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(run, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


def answers(content: bytes) -> Serve:
    """Sends this, and closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(content)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    return serve


def http(content: bytes, status: str = "200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(content), content)


# Each of these is an endpoint that etcd may be after. `serve` gets a request, without its content.
WRONG = {
    "closed": (b"", "connection was closed"),
    "no http": (b"-ERR unknown command\r\n\r\n", "illegal status line"),
    "a page": (http(b"<html>", "404 Not Found"), "it has answered b'<html>'"),
    "half": (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", "connection was closed"),
    "no revision": (http(b"{}"), "no revision"),
    "other types": (http(b'{"header":{"revision":"1"},"kvs":[{"key":5}]}'), "cannot be read"),
    "a list": (http(b"[]"), "it has answered"),
    "no leader": (
        http(b'{"error":"etcdserver: no leader","code":14}', "503 Service Unavailable"),
        "etcdserver: no leader",
    ),
    "timeout": (http(b'{"error":"etcdserver: request timed out","code":14}'), "timed out"),
    "stream error": (
        http(b'{"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader"}}'),
        "no leader",
    ),
    "too long": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"%x\r\n%s\r\n" % (SMALL_MAX + 1, b" " * (SMALL_MAX + 1)),
        "more than",
    ),
    "long head": (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 10_000, "too long|large|exceed"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_not_etcd_is_unreachable(
    name: str, etcd: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, reason = WRONG[name]
    monkeypatch.setattr(etcd_connection, "CONTENT_MAX", SMALL_MAX)

    async def body() -> None:
        async with endpoint(answers(content)) as url:
            with pytest.raises(Unreachable, match=reason):
                await store_at(url).read()
            if name not in ("no revision", "other types"):
                with pytest.raises(Unreachable, match=reason):
                    await store_at(url).keep_alive(5)
                with pytest.raises(Unreachable, match=reason):
                    await anext(store_at(url).watch(1))
            store = store_at(f"{url},{etcd.urls}")
            assert (await store.read()).values == {}

    asyncio.run(body())


def test_a_lost_reply_leaves_the_outcome_unknown(etcd: Etcd) -> None:
    """The first endpoint carries a transaction out and does not answer; the second one finds that
    its compare does not hold."""

    async def body() -> None:
        host, port = etcd.urls.removeprefix("http://").split(":")

        async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            content = await reader.read(65536)
            to_etcd, from_etcd = await asyncio.open_connection(host, int(port))
            head = b"POST /v3/kv/txn HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
            from_etcd.write(head % len(content) + content)
            await to_etcd.read(10)
            from_etcd.close()

        async with endpoint(swallow) as url:
            store = store_at(f"{url},{etcd.urls}")
            with pytest.raises(Unreachable, match="connection"):
                await store.commit([Compare("a", 0)], [Change("a", b"1")])
            assert (await store.read()).values["a"].data == b"1"
            assert not (await store.commit([Compare("a", 0)], [Change("a", b"2")])).done
            store = store_at(f"{url},{etcd.urls}")
            assert (await store.commit([], [Change("a", b"1")])).done

    asyncio.run(body())


def test_the_next_endpoint_is_asked(etcd: Etcd) -> None:
    async def body() -> None:
        async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()

        async with endpoint(hang) as hanging:
            refusing = f"http://127.0.0.1:{free_range(1)}"
            store = store_at(f"{refusing},{hanging},{etcd.urls}")
            begun_s = time.monotonic()
            assert (await store.commit([Compare("a", 0)], [Change("a", b"1")])).done
            assert TIMEOUT_S <= time.monotonic() - begun_s < 3 * TIMEOUT_S
            begun_s = time.monotonic()
            assert set((await store.read()).values) == {"a"}
            assert time.monotonic() - begun_s < TIMEOUT_S  # the order has changed
            with pytest.raises(Unreachable, match=r"Connect.*; .*no answer in 2 s"):
                await store_at(f"{refusing},{hanging}").read()

    asyncio.run(body())


@pytest.mark.parametrize(
    ("count", "limits"), [(1, [2.0]), (2, [2.0, 2.0]), (3, [2.0, 1.0, 1.0]), (6, [2.0, *5 * [0.5]])]
)
def test_the_loss_of_all_endpoints_is_noticed_soon(
    count: int, limits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All endpoints together have twice the time of one."""
    now_s = 100.0
    given: list[float] = []

    @asynccontextmanager
    async def hang(
        at: object, call: object, headers: object, limit_s: float
    ) -> AsyncIterator[None]:
        nonlocal now_s
        now_s += limit_s
        given.append(limit_s)
        raise NoAnswer("no answer")
        yield

    async def body() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s)
        monkeypatch.setattr(etcd_store, "send", hang)
        with pytest.raises(Unreachable):
            await store_at(",".join(f"http://h{number}" for number in range(count))).read()

    asyncio.run(body())
    assert given == pytest.approx(limits)


def test_a_watch_of_compacted_changes_ends(etcd: Etcd) -> None:
    async def body() -> None:
        store = store_at(etcd.urls)
        first = await store.commit([], [Change("a", b"1")])
        last = await store.commit([], [Change("a", b"2")])
        await asyncio.to_thread(post, etcd.urls, "kv/compaction", {"revision": str(last.revision)})
        with pytest.raises(Compacted):
            await anext(store.watch(first.revision - 1))

    asyncio.run(body())


def test_what_etcd_refuses_has_not_happened(etcd: Etcd) -> None:
    async def body() -> None:
        store = store_at(etcd.urls)
        with pytest.raises(Refused, match="request is too large"):
            await store.commit([], [Change("a", b"x" * 2_000_000)])
        with pytest.raises(Refused, match="duplicate key"):
            await store.commit([], [Change("a", b"1"), Change("a", b"2")])
        with pytest.raises(Refused, match="too many operations"):
            await store.commit([], [Change(str(number), b"") for number in range(129)])
        assert (await store.read()).values == {}
        large = b"x" * 1_000_000
        await store.commit([], [Change("a", large)])
        assert (await store.read()).values["a"].data == large

    asyncio.run(body())


def test_a_cluster_sees_only_its_own_values(etcd: Etcd) -> None:
    async def body() -> None:
        stores = [
            EtcdStore(name, parse_endpoints(etcd.urls), None) for name in ("own", "own2", "ow")
        ]
        for store in stores:
            await store.commit([Compare("a", 0)], [Change("a", b"1")])
        found = await stores[0].read()
        assert set(found.values) == {"a"}
        watch = stores[0].watch(found.revision)
        await stores[1].commit([], [Change("b", b"1")])
        await stores[0].commit([], [Change("c", b"1")])
        assert set((await anext(watch)).values) == {"c"}
        await watch.aclose()

    asyncio.run(body())


def etcd_with_tls(folder: Path, authority: Authority, options: dict[str, str]) -> Etcd:
    certificate, key = authority.issue("etcd")
    files = {"--cert-file": str(certificate), "--key-file": str(key)}
    return Etcd(folder / "etcd", options=files | options).start()


def test_users_and_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    etcd = etcd_with_tls(tmp_path, authority, {"--bcrypt-cost": "4"})  # the cheapest
    tls = tls_context(str(authority.file))
    root = Login("root", "secret word")

    def store(login: Login | None) -> EtcdStore:
        return EtcdStore("c", parse_endpoints(etcd.urls, tls), login)

    async def plain() -> None:
        with pytest.raises(Unreachable, match="its certificate is not trusted"):
            await store_at(etcd.urls).read()
        with pytest.raises(Unreachable):
            await store_at(etcd.urls.replace("https", "http")).read()
        await store(None).commit([], [Change("a", b"1")])
        assert set((await store(root).read()).values) == {"a"}  # while etcd has no users
        reader = Login("reader", "")
        for path, fields in (
            ("auth/user/add", root._asdict()),
            ("auth/user/grant", {"user": "root", "role": "root"}),
            ("auth/user/add", {**reader._asdict(), "password": "x"}),
            ("auth/role/add", {"name": "other"}),
            ("auth/role/grant", {
                "name": "other",
                "perm": {"permType": "READWRITE", "key": b64encode(b"/other").decode()},
            }),
            ("auth/user/grant", {"user": "reader", "role": "other"}),
            ("auth/enable", {}),
        ):  # fmt: skip
            post(etcd.urls, path, fields)

    async def with_users() -> None:
        with pytest.raises(Refused, match="user name is empty: it needs a user"):
            await store(None).read()
        with pytest.raises(Refused, match="authentication failed"):
            await store(Login("root", "wrong")).read()
        with pytest.raises(Refused, match="permission denied"):
            await store(Login("reader", "x")).read()
        with pytest.raises(Refused, match="permission denied"):
            await anext(store(Login("reader", "x")).watch(1))
        good = store(root)
        lease = await good.grant(5)
        assert await good.keep_alive(lease.id) == lease.ttl_s
        first = await good.read()
        await good.commit([Compare("b", 0)], [Change("b", b"1", lease.id)])
        assert set((await anext(good.watch(first.revision))).values) == {"b"}

        def end_tokens() -> None:
            login = root._asdict()
            token = post(etcd.urls, "auth/authenticate", login)["token"]
            post(etcd.urls, "auth/user/changepw", login, token)

        end_tokens()
        assert set((await good.read()).values) == {"a", "b"}
        end_tokens()
        with pytest.raises(Unreachable, match="invalid auth token"):
            await anext(good.watch(first.revision))
        assert set((await anext(good.watch(first.revision))).values) == {"b"}

    try:
        asyncio.run(plain())
        asyncio.run(with_users())
    finally:
        etcd.kill()


def test_certificates_of_clients(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    checks = {"--trusted-ca-file": str(authority.file), "--client-cert-auth": ""}
    etcd = etcd_with_tls(tmp_path, authority, checks)
    (tmp_path / "other").mkdir()
    own, other = (
        [str(file) for file in one.issue("node")]
        for one in (authority, Authority(tmp_path / "other"))
    )
    where = ["--name", "c", "--etcd", etcd.urls, "--etcd-cacert", str(authority.file)]

    def call(*words: str) -> str:
        done = CliRunner().invoke(main, ["cluster", *words, *where])
        return f"{done.exit_code} {done.output}"

    try:
        assert REFUSED in call("init", "--shards", "1")
        with_other = ["--etcd-cert", other[0], "--etcd-key", other[1]]
        assert REFUSED in call("init", "--shards", "1", *with_other)
        with_own = ["--etcd-cert", own[0], "--etcd-key", own[1]]
        assert call("init", "--shards", "1", "--members", "1", *with_own)[:2] == "0 "
        directives = {
            "cluster-name": "c", "cluster-etcd": etcd.urls, "cluster-shard": "s1",
            "cluster-etcd-cacert": f"../{authority.file.name}",
            "cluster-etcd-cert": f"../{Path(own[0]).name}",
            "cluster-etcd-key": f"../{Path(own[1]).name}",
        }  # fmt: skip
        file = tmp_path / "mill.conf"
        file.write_text("# mine\n")
        server = Server(tmp_path / "node", directives, [*server_program(), str(file)])
        server.start()
        with RawClient(server.port) as client:
            state = client.call("CLUSTER", "INFO")
            assert isinstance(state, bytes)
            assert b"cluster_etcd:ok" in state
            wait_until(lambda: client.call("ACL", "SETUSER", "ann", "on"), lambda told: told == OK)
            assert client.call("CONFIG", "SET", "maxmemory", "1gb") == OK
            assert client.call("CONFIG", "REWRITE") == OK
        server.stop()
        assert "maxmemory 1073741824" in file.read_text().splitlines()
        server.directives = {}  # those of the file are enough
        with server.start().client() as client:
            wait_until(lambda: client.call("SET", "a", "1"), lambda told: told == OK)
            assert client.call("ACL", "USERS") == [b"ann", b"default"]
        server.stop()
    finally:
        etcd.kill()


def test_a_member_without_a_majority(tmp_path: Path) -> None:
    """Reads and transactions there do not end in time, watches end, and nothing is wrong."""
    etcd = Etcd(tmp_path / "etcd", 3).start()
    cut_off, *others = etcd.members

    async def body() -> None:
        at_all, at_one = store_at(etcd.urls), store_at(cut_off.url)
        name = EtcdStore("three", parse_endpoints(cut_off.url), None)
        lease = await name.grant(30)
        first = await name.commit([], [Change("a", b"1", lease.id)])
        watch = asyncio.ensure_future(anext(name.watch(first.revision)))
        for member in others:
            member.suspend()
        calls = name.read(), name.commit([], [Change("a", b"2")]), name.keep_alive(lease.id)
        watches = watch, anext(name.watch(first.revision))
        outcomes = await asyncio.gather(*calls, *watches, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == 5 * [Unreachable]
        others[0].send(signal.SIGCONT)
        for store in (name, EtcdStore("three", parse_endpoints(etcd.urls), None)):
            value = (await _patiently(store)).values["a"]
            assert value.data in (b"1", b"2")
        assert await name.keep_alive(lease.id) == lease.ttl_s
        # The first endpoint hangs. What it gets is carried out late, and changes nothing.
        store = EtcdStore("three", parse_endpoints(f"{others[1].url},{cut_off.url}"), None)
        done = await store.commit([Compare("b", 0)], [Change("b", b"1")])
        assert done.done
        others[1].send(signal.SIGCONT)
        assert await _patiently(EtcdStore("three", parse_endpoints(others[1].url), None))
        assert (await store.read()).values["b"].version == done.revision
        assert (await at_all.read()).values == (await at_one.read()).values == {}

    async def _patiently(store: EtcdStore) -> Contents:
        while True:
            try:
                return await store.read()
            except Unreachable:
                await asyncio.sleep(0.1)

    try:
        asyncio.run(body())
    finally:
        etcd.kill()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "needs the URL"),
        ("ftp://a", "http://"),
        ("http://a:99999", "port"),
        ("http://u:p@a:1", "separately"),
        ("http://a/v3", "not a URL of etcd"),
        ("http://", "not a URL of etcd"),
        (",".join(["http://a"] * 17), "16"),
    ],
)
def test_wrong_urls_are_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_endpoints(text)


def test_urls_have_defaults() -> None:
    found = [(one.host, one.port) for one in parse_endpoints("a, https://[::1]:5 http://b")]
    assert found == [("a", 2379), ("::1", 5), ("b", 2379)]
    assert parse_endpoints("https://müller.example")[0].host == "xn--mller-kva.example"


NAMES = st.sampled_from([
    "header", "revision", "kvs", "key", "value", "mod_revision", "lease", "result", "events",
    "type", "kv", "TTL", "ID", "error", "code", "message", "grpc_code", "canceled",
    "cancel_reason", "compact_revision", "token", "succeeded",
])  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
PARSERS = (
    partial(requests.contents_of, prefix="/a/"), requests.commit_of, requests.grant_of,
    requests.kept_of, requests.term_of, requests.token_of, requests.revision_of,
    partial(requests.changes_of, prefix="/a/"),
)  # fmt: skip


@given(JSON.map(json.dumps).map(str.encode) | st.binary(max_size=20), st.sampled_from(PARSERS))
@example(b"[" * 100_000, requests.commit_of)
def test_any_reply_is_read_or_refused(content: bytes, parse: Callable[..., object]) -> None:
    with suppress(requests.UnexpectedReply, requests.EtcdError, Compacted):
        requests.parsed(parse, requests.reply_of(content))
