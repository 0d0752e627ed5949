"""etcd as the store of a cluster: its endpoints, users and errors.

A request goes to the endpoint that answered last. If that one does not answer within TIMEOUT_S, it
goes to the next one: a member of etcd without a majority would answer after 7 s. All endpoints
together have twice that time, so that the loss of etcd is noticed soon. So a request may be carried
out twice. A transaction whose second attempt did not find what it compares with may have
been carried out the first time; that is Unreachable, too.

A leader of etcd that has lost its majority, or was stopped, keeps leases alive until it notices
(3.4.23). So a keepalive counts only if a read, which needs a majority, has the same term later.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit

from millstream.host_names import check_host
from millstream.server.cluster.store import etcd_requests as requests
from millstream.server.cluster.store.etcd_connection import (
    Endpoint,
    NoAnswer,
    NotSent,
    Reply,
    reason_of,
    send,
)
from millstream.server.cluster.store.etcd_requests import (
    UNAUTHENTICATED,
    UNCLEAR,
    Call,
    EtcdError,
    Fields,
    UnexpectedReply,
)
from millstream.server.cluster.store.store import (
    Change,
    Changes,
    Commit,
    Compare,
    Contents,
    Grant,
    LeaseEnded,
    Refused,
    Unreachable,
)

TIMEOUT_S = 2.0  # for an endpoint; all together have twice that
LEAST_S = 0.5  # for an endpoint, however many there are
ENDPOINTS_MAX = 16
KEEPING_ATTEMPTS = 3
DEFAULT_PORT = 2379
HAS_LEADER = {"Grpc-Metadata-hasleader": "true"}  # a watch ends 4 s after its member was cut off

FAILURES = (NotSent, NoAnswer, UnexpectedReply)

Outcome = TypeVar("Outcome")


class Login(NamedTuple):
    """A user of etcd."""

    name: str
    password: str


def prefix_of(name: str) -> str:
    """The keys of a cluster begin with this."""
    return f"/millstream/{name}/"


def parse_endpoints(text: str, authority: ssl.SSLContext | None = None) -> list[Endpoint]:
    """The endpoints in a list with commas, such as `http://10.0.0.1:2379,http://10.0.0.2:2379`.
    `authority` is the TLS for those with https. ValueError if one is wrong."""
    urls = [word for word in text.replace(",", " ").split() if word]
    if not urls:
        raise ValueError("needs the URL of etcd, for example http://127.0.0.1:2379")
    if len(urls) > ENDPOINTS_MAX:
        raise ValueError(f"has {len(urls)} URLs; {ENDPOINTS_MAX} are possible")
    return [_parse(url, authority) for url in urls]


def _parse(url: str, authority: ssl.SSLContext | None) -> Endpoint:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        port = parts.port or DEFAULT_PORT
    except ValueError:
        raise ValueError(f"the port in {url} is not a number up to 65535") from None
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"{url} is not a URL of etcd: it has to begin with http:// or https://")
    if parts.username is not None or parts.password is not None:
        raise ValueError("the URL of etcd has a user: give the user and the password separately")
    if parts.path not in ("", "/") or parts.query or parts.fragment or not parts.hostname:
        raise ValueError(f"{url} is not a URL of etcd, such as http://127.0.0.1:2379")
    check_host(parts.hostname)
    host = parts.hostname if ":" in parts.hostname else parts.hostname.encode("idna").decode()
    tls = None
    if parts.scheme == "https":
        tls = authority or ssl.create_default_context()
    return Endpoint(url, host, port, tls)


def tls_context(authority: str, certificate: str = "", key: str = "") -> ssl.SSLContext:
    """The TLS that trusts the authorities in a file, or those of the system (""), and shows the
    certificate of this client, if there is one. ValueError if a file cannot be used."""
    path = authority
    try:
        context = ssl.create_default_context(cafile=authority or None)
        if certificate:
            for path in (certificate, key):
                with open(path, "rb"):  # the error of the next call names no file
                    pass
            context.load_cert_chain(certificate, key, password=_refuse_password)
    except ssl.SSLError as problem:
        if path == authority:
            raise ValueError(f"{path} has no certificate in PEM") from None
        raise ValueError(
            f"{certificate} and {key} are not a certificate and its key in PEM: "
            f"{reason_of(problem)}"
        ) from None
    except OSError as problem:
        raise ValueError(f"cannot read {path}: {problem.strerror}") from None
    return context


def _refuse_password() -> str:
    raise ValueError("the key of this client of etcd has a password: store it without one")


class EtcdStore:
    """The values of one cluster in etcd."""

    def __init__(self, name: str, endpoints: Sequence[Endpoint], login: Login | None) -> None:
        self._prefix = prefix_of(name)
        self._endpoints = list(endpoints)  # in the order in which they are asked
        self._login = login
        self._token = ""

    async def read(self) -> Contents:
        call = requests.read_all(self._prefix)
        return await self._ask(call, partial(requests.contents_of, prefix=self._prefix))

    async def commit(self, compares: Sequence[Compare], changes: Sequence[Change]) -> Commit:
        call = requests.transaction(self._prefix, compares, changes)
        return await self._ask(call, requests.commit_of)

    async def grant(self, ttl_s: int) -> Grant:
        return await self._ask(requests.grant_lease(ttl_s), requests.grant_of)

    async def keep_alive(self, lease: int) -> float | None:
        for _ in range(KEEPING_ATTEMPTS):
            kept = await self._ask(requests.keep_lease(lease), requests.kept_of)
            term = await self._ask(requests.confirm_leader(), requests.term_of)
            if kept.term == term:
                return kept.ttl_s
        raise Unreachable("etcd has no lasting leader")

    async def revoke(self, lease: int) -> None:
        with contextlib.suppress(LeaseEnded):
            await self._ask(requests.revoke_lease(lease), requests.revision_of)

    async def watch(self, revision: int) -> AsyncGenerator[Changes, None]:
        endpoint = self._endpoints[0]
        call = requests.watch_after(self._prefix, revision)
        try:
            async with (
                self._send(endpoint, call, HAS_LEADER) as reply,
                aclosing(reply.lines()) as lines,
            ):
                async for line in lines:
                    changes = self._changes_in(line)
                    if changes is not None:
                        yield changes
        except EtcdError as problem:
            self._clear_token(problem)
            if problem.code not in UNCLEAR | {UNAUTHENTICATED}:
                raise _refusal(endpoint, problem) from None
            failure: Exception = problem
        except FAILURES as problem:
            failure = problem
        else:
            failure = NoAnswer("it has ended the watch")
        self._put_last(endpoint)
        raise Unreachable(_told([(endpoint, failure)]))

    def _changes_in(self, line: bytes) -> Changes | None:
        """The changes in a message of a watch."""
        return requests.parsed(
            partial(requests.changes_of, prefix=self._prefix), requests.reply_of(line)
        )

    # One request

    async def _ask(self, call: Call, parse: Callable[[Fields], Outcome]) -> Outcome:
        """The outcome of a request, from the first endpoint that answers."""
        failures: list[tuple[Endpoint, Exception]] = []
        is_unclear = False  # an endpoint may have carried it out, but has not answered
        times = _Times(len(self._endpoints))
        for endpoint in list(self._endpoints):
            limit_s = times.next_s()
            try:
                outcome = requests.parsed(parse, await self._ask_one(endpoint, call, limit_s))
            except FAILURES as problem:
                failures.append((endpoint, problem))
                is_unclear |= not isinstance(problem, NotSent)
                self._put_last(endpoint)
                continue
            except EtcdError as problem:
                failures.append((endpoint, problem))
                if problem.code not in UNCLEAR:
                    if is_unclear:
                        break
                    raise _refusal(endpoint, problem) from None
                is_unclear = True
                self._put_last(endpoint)
                continue
            if is_unclear and isinstance(outcome, Commit) and not outcome.done:
                break
            return outcome
        raise Unreachable(_told(failures))

    async def _ask_one(self, endpoint: Endpoint, call: Call, limit_s: float) -> Fields:
        """The reply of an endpoint. An old token is replaced once."""
        try:
            return await self._reply(endpoint, call, limit_s)
        except EtcdError as problem:
            if not self._clear_token(problem):
                raise
        return await self._reply(endpoint, call, limit_s)

    async def _reply(self, endpoint: Endpoint, call: Call, limit_s: float) -> Fields:
        async with self._send(endpoint, call, {}, limit_s) as reply:
            return await _fields_of(reply, limit_s)

    @asynccontextmanager
    async def _send(
        self,
        endpoint: Endpoint,
        call: Call,
        headers: Mapping[str, str],
        limit_s: float = TIMEOUT_S,
    ) -> AsyncIterator[Reply]:
        if self._login is not None and not self._token:
            await self._authenticate(endpoint, self._login, limit_s)
        token = {"Authorization": self._token} if self._token else {}
        async with send(endpoint, call, {**headers, **token}, limit_s) as reply:
            yield reply

    # The user

    async def _authenticate(self, endpoint: Endpoint, login: Login, limit_s: float) -> None:
        """Get a token, unless etcd has no users."""
        call = requests.authenticate(*login)
        try:
            async with send(endpoint, call, {}, limit_s) as reply:
                self._token = requests.token_of(await _fields_of(reply, limit_s))
        except (NoAnswer, UnexpectedReply) as problem:
            raise NotSent(str(problem)) from None
        except EtcdError as problem:
            if problem.message != requests.NO_AUTHENTICATION:
                raise

    def _clear_token(self, problem: EtcdError) -> bool:
        """Forget the token if etcd has refused it; true if another one may replace it."""
        is_old = bool(self._token) and (
            problem.code == UNAUTHENTICATED or problem.message == requests.OLD_AUTHENTICATION
        )
        if is_old:
            self._token = ""
        return is_old

    def _put_last(self, endpoint: Endpoint) -> None:
        self._endpoints.remove(endpoint)
        self._endpoints.append(endpoint)


class _Times:
    """The time that each endpoint in turn may take for one request."""

    def __init__(self, endpoints: int) -> None:
        self._left = endpoints
        self._end_s = 0.0  # of all of them

    def next_s(self) -> float:
        """For the next endpoint: TIMEOUT_S for the first, then its share of what is left."""
        left, self._left = self._left, self._left - 1
        now_s = asyncio.get_running_loop().time()
        if not self._end_s:
            self._end_s = now_s + 2 * TIMEOUT_S
            return TIMEOUT_S
        return max(LEAST_S, min(TIMEOUT_S, (self._end_s - now_s) / left))


async def _fields_of(reply: Reply, limit_s: float) -> Fields:
    """All of a reply that is no stream. NoAnswer if it takes longer than this."""
    try:
        async with asyncio.timeout(limit_s):
            return requests.reply_of(await reply.content())
    except TimeoutError:
        raise NoAnswer(f"no answer in {round(limit_s, 1):g} s") from None


def _refusal(endpoint: Endpoint, problem: EtcdError) -> Refused:
    if problem.message == requests.NO_LEASE:
        return LeaseEnded("the lease has ended")
    advice = ": it needs a user and a password" if problem.message == requests.NO_USER else ""
    return Refused(f"etcd at {endpoint.url}: {problem.message}{advice}")


def _told(failures: Sequence[tuple[Endpoint, Exception]]) -> str:
    reasons = "; ".join(f"{endpoint.url}: {problem}" for endpoint, problem in failures)
    return f"etcd cannot be reached: {reasons}"
