"""Many writers on few connections."""

from __future__ import annotations

import os
import threading
from typing import Any

from tests.client.apis import Api
from tests.client.conftest import url_of
from tests.support.server import Server

from millstream.client import connect

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


def test_writers_of_many_threads_append_exactly_once(server: Server) -> None:
    with connect(url_of(server), client_name=NAME) as many, connect(url_of(server)) as ms:

        def write(number: int) -> None:
            with many.writer("s", f"w{number}") as writer:
                for n in range(40):
                    writer.append({"writer": number, "n": n})

        threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert connections(ms) <= 8
        found = [(record["writer"], int(record["n"])) for record in ms.trange("s")]
        for number in range(8):
            assert [n for writer, n in found if writer == str(number)] == list(range(40))


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
