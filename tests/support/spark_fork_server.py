"""Starts Spark's Python processes by forking a process that has already imported what they need.

Spark starts several Python daemons for each JVM and lets them fork a process for nearly every step
of a data source. Each of these imports pandas, pyarrow, PySpark and millstream again, which takes
more CPU time than its work. `spark_launcher.py` is what Spark starts as its Python; it sends a
request with its arguments, environment, directory and standard streams, and this program forks a
daemon that continues as `python -m pyspark.daemon` would.

    python spark_fork_server.py SOCKET

It refuses a daemon of another PySpark, and ends when its standard input ends.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import marshal
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pyspark

_PR_SET_PDEATHSIG = 1
LENGTH_BYTES = 4
WORKERS = (
    "pyspark.worker",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.data_source_pushdown_filters",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.sql.worker.write_into_data_source",
)


class Request(NamedTuple):
    arguments: list[str]
    environment: dict[str, str]
    directory: str


def import_everything() -> None:
    import millstream.pipeline

    for name in ("pandas", "pyarrow", "pyspark_millstream", *WORKERS):
        importlib.import_module(name)
    for module in pkgutil.iter_modules(millstream.pipeline.__path__, "millstream.pipeline."):
        if not module.ispkg and not module.name.endswith("_cli"):
            importlib.import_module(module.name)


def receive(connection: socket.socket) -> tuple[Request, list[int]]:
    """A request with the descriptors of the standard streams."""
    length, fds, _, _ = socket.recv_fds(connection, LENGTH_BYTES, 3)
    with connection.makefile("rb") as stream:
        content = stream.read(int.from_bytes(length, "little"))
    return Request(*marshal.loads(content)), fds


def is_for_this_pyspark(request: Request) -> bool:
    """True if the daemon would import the PySpark that is imported here."""
    places = [Path(place) for place in request.environment.get("PYTHONPATH", "").split(os.pathsep)]
    holders = (place for place in places if is_archive(place) or (place / "pyspark").is_dir())
    first = next(holders, None)
    return first is None or (first / "pyspark").resolve() == Path(pyspark.__path__[0]).resolve()


def is_archive(place: Path) -> bool:
    return place.name.startswith("pyspark") and place.is_file()


def become_daemon(request: Request, fds: list[int], own_paths: list[str]) -> None:
    """Make this process what `python -m pyspark.daemon` is, and run it."""
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.chdir(request.directory)
    os.environ.clear()
    os.environ.update(request.environment)
    time.tzset()
    given = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    sys.path[:] = [request.directory, *given, *own_paths]
    sys.argv = request.arguments
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)


def serve(listening: socket.socket) -> tuple[Request, list[int]] | None:
    """In the process of a daemon, what it is to be; None when the tests have ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the exit codes are of no use
    with selectors.DefaultSelector() as selector:
        selector.register(listening, selectors.EVENT_READ)
        selector.register(sys.stdin, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if sys.stdin in ready:
                return None
            connection, _ = listening.accept()
            request, fds = receive(connection)
            pid = os.fork() if is_for_this_pyspark(request) else -1
            if pid == 0:
                listening.close()
                # The launcher waits for the end of this socket, and so for the end of the daemon.
                connection.sendall(os.getpid().to_bytes(LENGTH_BYTES, "little"))
                connection.detach()
                return request, fds
            if pid < 0:
                connection.sendall(bytes(LENGTH_BYTES))
            connection.close()
            for fd in fds:
                os.close(fd)


def main() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    own_paths = sys.path[1:]
    import_everything()
    gc.collect()
    gc.freeze()  # or a collection in each process copies the pages of all these objects
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(sys.argv[1])
        listening.listen(64)
        print("listening", flush=True)
        found = serve(listening)
    if found is not None:
        become_daemon(*found, own_paths)


if __name__ == "__main__":
    main()
