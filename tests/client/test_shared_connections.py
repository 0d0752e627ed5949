"""Many writers on few connections."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from redis.credentials import CredentialProvider
from redis.exceptions import TimeoutError as RedisTimeoutError
from tests.client.apis import Api
from tests.client.conftest import url_of
from tests.client.proxy import Proxy
from tests.support.server import Server

from millstream.client import aio, connect
from millstream.client.aio.shared_connection import SharedConnection as OfTasks
from millstream.client.core.requests import command
from millstream.client.core.servers import ServerState
from millstream.client.core.sharing import may_share
from millstream.client.core.steps import Answer, Ask
from millstream.client.threads import lanes
from millstream.client.threads.lanes import Connections
from millstream.client.threads.shared_connection import SharedConnection as OfThreads

NAME = "many-writers"


def connections(ms: Any) -> int:
    """The number of connections of the client with the name."""
    return sum(row["name"] == NAME for row in ms.client_list())


def test_50_writers_need_one_connection(api: Api, ms: Any, server: Server) -> None:
    many = api.connect(url_of(server), client_name=NAME)
    writers = [many.writer("s", f"w{n}") for n in range(50)]
    for _ in range(2):
        for writer in writers:
            writer.append({"n": 1})
            writer.append_many([{"n": 2}, {"n": 3}])
    assert connections(ms) == 1
    assert ms.xlen("s") == 50 * 2 * 3
    for writer in writers:
        writer.close()


def test_the_last_writer_gives_the_connection_back(api: Api, server: Server) -> None:
    many = api.connect(url_of(server), max_connections=1)
    for _ in range(2):
        with many.writer("s", "a") as one, many.writer("s", "b") as other:
            one.append({"n": 1})
            other.append({"n": 2})
        assert many.xlen("s") > 0  # the pool has no other connection
    forgotten = many.writer("s", "a")
    forgotten.append({"n": 1})
    del forgotten, one, other
    assert many.xlen("s") == 5


WRITERS = 50
EACH = 10


def written_by_threads(url: str) -> list[int]:
    """All writers append at the same time, through one client. Returns their repeats."""
    with connect(url, client_name=NAME, timeout=2.0) as many:

        def write(number: int) -> int:
            with many.writer("s", f"w{number}") as writer:
                for n in range(EACH):
                    entry_id = writer.append({"writer": number, "n": n, "again": "no"})
                    [record] = many_read.trange("s", entry_id, entry_id)
                    assert (record["writer"], record["n"]) == (str(number), str(n))
                return int(writer.metrics()["repeats"])

        with connect(url, client_name="others") as many_read, ThreadPoolExecutor(WRITERS) as pool:
            return list(pool.map(write, range(WRITERS)))


def written_by_tasks(url: str) -> list[int]:
    async def write(many: Any, others: Any, number: int) -> int:
        async with many.writer("s", f"w{number}") as writer:
            for n in range(EACH):
                entry_id = await writer.append({"writer": number, "n": n, "again": "no"})
                [record] = await others.trange("s", entry_id, entry_id)
                assert (record["writer"], record["n"]) == (str(number), str(n))
            return int(writer.metrics()["repeats"])

    async def main() -> list[int]:
        async with (
            aio.connect(url, client_name=NAME, timeout=2.0) as many,
            aio.connect(url, client_name="others") as others,
        ):
            writers = [write(many, others, number) for number in range(WRITERS)]
            return list(await asyncio.gather(*writers))

    return asyncio.run(main())


WAYS = pytest.mark.parametrize("written", [written_by_threads, written_by_tasks])


def check_all_once(ms: Any) -> None:
    """Each entry is there once, in the order of its writer."""
    found = [(record["writer"], int(record["n"])) for record in ms.trange("s")]
    assert len(found) == WRITERS * EACH
    for number in range(WRITERS):
        assert [n for writer, n in found if writer == str(number)] == list(range(EACH))


@WAYS
def test_50_writers_at_the_same_time_need_one_connection(
    server: Server, written: Callable[[str], list[int]]
) -> None:
    with connect(url_of(server)) as ms:
        most = 0
        done = threading.Event()

        def count() -> None:
            nonlocal most
            with connect(url_of(server)) as observer:
                while not done.is_set():
                    most = max(most, connections(observer))

        counting = threading.Thread(target=count)
        counting.start()
        try:
            assert sum(written(url_of(server))) == 0
        finally:
            done.set()
            counting.join()
        assert most == 1
        check_all_once(ms)


@WAYS
def test_a_cut_between_shared_requests_doubles_nothing(
    server: Server, proxy: Proxy, written: Callable[[str], list[int]]
) -> None:
    proxy.cutting = (0, 6000)
    with connect(url_of(server)) as ms:
        assert sum(written(proxy.url)) > 0
        check_all_once(ms)


def test_a_long_value_takes_another_connection(api: Api, new_server: Callable[..., Server]) -> None:
    ms = api.connect(url_of(new_server().start()))
    ms.config_set("proto-max-bulk-len", 2**20)
    with ms.writer("s", "w") as writer, ms.writer("s", "long") as long_writer:
        writer.append({"n": 1})
        with pytest.raises(ValueError, match="proto-max-bulk-len"):
            long_writer.append({"n": "x" * (2**20 + 1)})
        writer.append({"n": 2})
        assert writer.metrics()["repeats"] == 0


# ---------------------------------------------------------------- replies and their requests


def echo(ms: Any, words: str) -> Ask:
    """An ask of two commands, whose replies show whose they are."""
    return Ask(ServerState(ms), [command("ECHO", words), command("ECHO", words * 2)])


def is_of(answer: Answer, words: str) -> bool:
    """True if the answer has replies; they must be its own."""
    if answer.error is not None:
        return False
    assert answer.replies == [words, words * 2]
    return True


def test_an_ask_that_waits_or_has_a_long_word_is_sent_alone() -> None:
    asks = [command("ECHO", "x"), command("TREAD", wait_s=1.0), command("ECHO", "x" * 2**20)]
    assert [may_share(Ask(ServerState(None), [one])) for one in asks] == [True, False, False]


@pytest.mark.parametrize("seed", range(4))
def test_tasks_get_the_replies_to_their_own_requests(
    server: Server, proxy: Proxy, seed: int
) -> None:
    """While connections are cut, tasks are cancelled, and requests cannot be packed."""
    chance = random.Random(seed)
    proxy.cutting = (0, 12_000)
    answered = cancelled = 0

    async def ask(ms: Any, number: int) -> None:
        nonlocal answered, cancelled
        for n in range(12):
            words = f"{number}:{n}:" + "x" * chance.randrange(200)
            if chance.random() < 0.05:
                wrong: Any = object()
                bad = Ask(ServerState(ms), [command("ECHO", wrong)])
                found = await OfTasks.of(ms).perform(bad)
                assert found.error is not None
                continue
            asking = asyncio.ensure_future(OfTasks.of(ms).perform(echo(ms, words)))
            if chance.random() < 0.2:
                for _ in range(chance.randrange(5)):
                    await asyncio.sleep(0)
                asking.cancel()
            with suppress(asyncio.CancelledError):
                found = await asking
                answered += is_of(found, words)
                continue
            cancelled += 1

    async def main() -> None:
        async with aio.connect(proxy.url, timeout=5.0) as ms:
            await asyncio.gather(*(ask(ms, number) for number in range(20)))
            shared = OfTasks.of(ms)
            async with asyncio.timeout(30):  # the replies to cancelled requests are still read
                while shared._reader is not None:
                    await asyncio.sleep(0.001)
            left = [*shared._waiting, *shared._sent, shared._connection]
            assert left == [None]

    asyncio.run(main())
    assert answered > 20
    assert cancelled > 5
    assert proxy.connections > 1


@pytest.mark.parametrize("seed", range(4))
def test_threads_get_the_replies_to_their_own_requests(
    server: Server, proxy: Proxy, seed: int
) -> None:
    proxy.cutting = (0, 12_000)
    answered = 0
    with connect(proxy.url, timeout=5.0) as ms, ThreadPoolExecutor(20) as pool:
        shared = Connections.shared(ms).of_threads(ms)
        assert shared is not None

        def ask(number: int) -> int:
            chance = random.Random(seed * 100 + number)
            count = 0
            for n in range(12):
                words = f"{number}:{n}:" + "x" * chance.randrange(200)
                if chance.random() < 0.05:
                    wrong: Any = object()
                    bad = Ask(ServerState(ms), [command("ECHO", wrong)])
                    assert shared.perform(bad).error is not None
                count += is_of(shared.perform(echo(ms, words)), words)
            return count

        answered = sum(pool.map(ask, range(20)))
        assert not shared._sent
        assert shared._loan is None
    assert answered > 20
    assert proxy.connections > 1


def answers_by_threads(url: str, stop: Callable[[], None], go_on: Callable[[], None]) -> list[Any]:
    """The answers to 20 requests before the server hangs, while it hangs, and after that."""
    with connect(url, timeout=0.5) as ms, ThreadPoolExecutor(20) as pool:
        shared = Connections.shared(ms).of_threads(ms)
        assert shared is not None

        def ask_all() -> list[Answer]:
            return list(pool.map(lambda n: shared.perform(echo(ms, str(n))), range(20)))

        rounds = [ask_all()]
        stop()
        try:
            rounds.append(ask_all())
        finally:
            go_on()
        return [*rounds, ask_all()]


def answers_by_tasks(url: str, stop: Callable[[], None], go_on: Callable[[], None]) -> list[Any]:
    async def main() -> list[Any]:
        async with aio.connect(url, timeout=0.5) as ms:

            async def ask_all() -> list[Answer]:
                asks = [OfTasks.of(ms).perform(echo(ms, str(n))) for n in range(20)]
                return list(await asyncio.gather(*asks))

            rounds = [await ask_all()]
            stop()
            try:
                rounds.append(await ask_all())
            finally:
                go_on()
            return [*rounds, await ask_all()]

    return asyncio.run(main())


@pytest.mark.parametrize("answers", [answers_by_threads, answers_by_tasks])
def test_a_server_that_hangs_ends_all_requests_on_the_connection(
    new_server: Callable[..., Server], answers: Callable[..., list[Any]]
) -> None:
    server = new_server().start()
    before, hanging, after = answers(
        url_of(server),
        lambda: server.signal(signal.SIGSTOP),
        lambda: server.signal(signal.SIGCONT),
    )
    assert all(is_of(answer, str(n)) for n, answer in enumerate(before))
    assert all(isinstance(answer.error, RedisTimeoutError) for answer in hanging)
    assert len({id(answer.error) for answer in hanging}) == 20  # each may be raised
    assert all(is_of(answer, str(n)) for n, answer in enumerate(after))


def test_threads_wait_for_one_failed_connection_together(
    new_server: Callable[..., Server],
) -> None:
    """They do not wait for a further attempt each."""
    server = new_server().start()
    server.signal(signal.SIGSTOP)
    try:
        with connect(url_of(server), timeout=0.5) as ms, ThreadPoolExecutor(20) as pool:
            shared = Connections.shared(ms).of_threads(ms)
            assert shared is not None
            answers = list(pool.map(lambda n: shared.perform(echo(ms, str(n))), range(20)))
            assert all(isinstance(answer.error, RedisTimeoutError) for answer in answers)
            assert len({id(answer.error) for answer in answers}) == 20
            assert shared._failed < 10
    finally:
        server.signal(signal.SIGCONT)


def test_a_writer_made_after_a_fork_has_its_own_connection(server: Server) -> None:
    with connect(url_of(server)) as many, many.writer("s", "parent") as writer:
        writer.append({"n": 1})
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with many.writer("s", "child") as own:
                    own.append({"n": 2})
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        writer.append({"n": 3})
        assert sorted(record["n"] for record in many.trange("s")) == ["1", "2", "3"]


# ---------------------------------------------------------------- what is not usual


def test_threads_that_begin_together_share_a_connection(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Barrier(2)

    class Late(OfThreads):
        def __init__(self, lender: Any) -> None:
            begun.wait(30)
            super().__init__(lender)

    monkeypatch.setattr(lanes, "SharedConnection", Late)
    with connect(url_of(server)) as ms, ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: Connections.shared(ms), range(2))
        assert one is other


class NoPassword(Exception):
    """An error that cannot be copied: its arguments are not those of its text."""

    def __init__(self, service: str, code: int) -> None:
        super().__init__(f"{service} replied {code}")


class Vault(CredentialProvider):
    def get_credentials(self) -> Any:
        raise NoPassword("vault", 503)

    async def get_credentials_async(self) -> Any:
        raise NoPassword("vault", 503)


def test_an_error_that_has_no_copy_ends_all_requests(server: Server) -> None:
    async def main() -> list[Any]:
        async with aio.connect(url_of(server), credential_provider=Vault()) as ms:
            writers = [ms.writer("s", f"w{n}", retry_for=0.1) for n in range(3)]
            appends = [writer.append({"n": 1}) for writer in writers]
            async with asyncio.timeout(30):
                return await asyncio.gather(*appends, return_exceptions=True)

    errors = asyncio.run(main())
    assert [str(error) for error in errors] == ["vault replied 503"] * 3


def test_a_number_of_too_many_digits_keeps_no_connection(server: Server) -> None:
    with (
        connect(url_of(server), max_connections=1) as ms,
        ThreadPoolExecutor(1) as pool,
    ):
        with ms.writer("s", "w") as writer, pytest.raises(ValueError, match="digits"):
            pool.submit(writer.append, {"n": 10**5000}).result()
        assert ms.xlen("s") == 0  # the pool has its only connection again


def test_a_long_memoryview_is_named(api: Api, new_server: Callable[..., Server]) -> None:
    ms = api.connect(url_of(new_server().start()))
    ms.config_set("proto-max-bulk-len", 2**20)
    long = memoryview(bytes(2**20 + 1))
    with ms.writer("s", "w") as writer, ms.producer("s", "p") as producer:
        with pytest.raises(ValueError, match="proto-max-bulk-len"):
            writer.append({"n": long})
        assert writer.metrics()["repeats"] == 0
        with pytest.raises(ValueError, match="proto-max-bulk-len"):
            producer.append({"n": long}).result(30)
        with suppress(ValueError):
            producer.flush()
