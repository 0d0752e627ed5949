"""Fixtures of the black-box tests: live servers, emptied between tests."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from tests.pipeline.installing import shared_wheel
from tests.support import order
from tests.support.client import RawClient
from tests.support.effort import examples
from tests.support.etcd import Etcd
from tests.support.replicas import Replicas
from tests.support.server import Server, redis_program
from tests.support.shards import Shards
from tests.support.spark_workers import forked_workers

ROOT = Path(__file__).resolve().parents[1]

# A busy machine is no fault: how long an example takes is not what these tests promise.
settings.register_profile("millstream", deadline=None, max_examples=examples(100))
settings.load_profile("millstream")


def pytest_configure() -> None:
    # A shell that starts the tests in the background has them ignore SIGINT. The programs that they
    # start would inherit this, and not end when a test interrupts them.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collecting ten thousand tests makes a million objects, which stay. The garbage collector need
    not look at them, neither meanwhile nor later: a full collection would take 0.2 s."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items[:] = order.longest_first(items, config.workerinput["workercount"])


@pytest.fixture(scope="session")
def _shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("shared") / "data")
    yield server
    if server.is_alive():
        server.kill()


def _play_ground(server: Server) -> Iterator[Server]:
    """The server, alive and empty; a crash fails the test in which it came, and no other."""
    if not server.is_alive():
        shutil.rmtree(server.directory, ignore_errors=True)
        server.start()
    server.reset()
    yield server
    assert server.is_alive(), f"the server died:\n{server.log[-5000:]}"


@pytest.fixture
def server(_shared_server: Server) -> Iterator[Server]:
    """The session's server, empty. Do not stop it: that is what `durable_server` is for."""
    yield from _play_ground(_shared_server)


@pytest.fixture
def client(server: Server) -> Iterator[RawClient]:
    """A RESP2 connection to `server`."""
    with server.client() as connection:
        yield connection


@pytest.fixture(scope="session")
def _shared_durable_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("durable") / "data")
    yield server
    if server.is_alive():
        server.kill()


@pytest.fixture
def durable_server(_shared_durable_server: Server) -> Iterator[Server]:
    """A server, empty, that the test may stop, kill and restart."""
    yield from _play_ground(_shared_durable_server)


@pytest.fixture
def new_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Makes servers that belong to one test: `new_server("name", directives, program, wrapper)`."""
    made: list[Server] = []

    def make(name: str = "data", *arguments: object, **settings: object) -> Server:
        server = Server(tmp_path / name, *arguments, **settings)  # type: ignore[arg-type]
        made.append(server)
        return server

    yield make
    for server in made:
        if server.is_alive():
            server.kill()


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[Replicas]:
    """Makes servers that follow each other."""
    made = Replicas(tmp_path)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shards]:
    """A cluster of three nodes on this machine, for the tests of one module."""
    made = Shards(tmp_path_factory.mktemp("shards") / "data", {"appendfsync": "no"})
    made.start()
    yield made
    assert made.stop() == 0


@pytest.fixture(scope="session")
def _shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("redis") / "data", program=redis_program())
    yield server
    if server.is_alive():
        server.kill()


@pytest.fixture
def redis_server(_shared_redis: Server) -> Iterator[Server]:
    """A real redis-server, empty."""
    yield from _play_ground(_shared_redis)


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """A real etcd. Each test has a cluster with a name of its own in it."""
    made = Etcd(tmp_path_factory.mktemp("etcd"))
    yield made.start()
    made.kill()


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, made once for all workers."""
    own = tmp_path_factory.getbasetemp()
    return shared_wheel(own.parent if "PYTEST_XDIST_WORKER" in os.environ else own)


@pytest.fixture(scope="session")
def spark_environment() -> Iterator[dict[str, str]]:
    """The environment of a process that starts Spark: its Java, and this Python, whose processes
    are forked. Tests are over before the better of Java's compilers has earned what it costs. Most
    classes come from an archive, if there is one that fits (scripts/spark_classes.py)."""
    home = subprocess.run(
        [ROOT / "scripts" / "need.sh", "java"], check=True, capture_output=True, text=True
    ).stdout.strip()
    quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    classes = Path(sys.prefix) / "spark-classes.jsa"
    if classes.exists():
        # A warning about an archive that does not fit must not go to standard output.
        quick += f" -XX:SharedArchiveFile={classes} -Xlog:disable -Xlog:all=warning:stderr"
    with forked_workers() as workers:
        yield {"JAVA_HOME": home, "JAVA_TOOL_OPTIONS": quick, **workers}
