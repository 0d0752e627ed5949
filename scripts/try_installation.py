"""Tries an installation of millstream: starts a server, appends, kills it, starts it again, reads.

    PYTHON scripts/try_installation.py

PYTHON is the interpreter of the environment in which millstream is installed. Nothing else is
needed; wheels are tried with this script before they are published. It prints the seconds from the
first start until an entry is appended.
"""

import contextlib
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ENTRIES = 1000
DEADLINE_S = 60
PROGRAM = Path(sys.executable).with_name("millstream")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ask(port: int, request: bytes, end: bytes) -> bytes:
    """Send an inline request and read until the reply ends so. OSError if there is no server."""
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as connection:
        connection.sendall(request + b"\r\n")
        reply = b""
        while not reply.endswith(end):
            received = connection.recv(1 << 16)
            if not received:
                raise ConnectionError("the server closed the connection")
            reply += received
        return reply


@contextlib.contextmanager
def running(port: int, folder: Path):
    """A server that answers. It is killed at the end."""
    words = ["serve", "--port", str(port), "--dir", str(folder)]
    with subprocess.Popen([PROGRAM, *words], stdout=subprocess.PIPE, text=True) as process:
        try:
            for line in process.stdout:
                if " ready " in line:
                    break
            else:
                raise SystemExit("the server did not start")
            yield
        finally:
            process.kill()


def main() -> None:
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name) / "data", free_port()
        with running(port, folder):
            ask(port, b"XADD s 1-1 field value", b"$3\r\n1-1\r\n")
            served_s = time.monotonic() - started_s
            for number in range(2, ENTRIES + 1):
                ask(port, b"TAPPEND s n %d" % number, b"\r\n")
        with running(port, folder):
            assert ask(port, b"XLEN s", b"\r\n") == b":%d\r\n" % ENTRIES
            first = b"*2\r\n$5\r\nfield\r\n$5\r\nvalue\r\n"
            assert ask(port, b"XRANGE s 1-1 1-1", first).startswith(b"*1\r\n")
        subprocess.run([PROGRAM, "check", str(folder)], check=True)
    import millstream

    print(f"millstream {millstream.__version__} in {Path(millstream.__file__).parent}: ", end="")
    print(f"{served_s:.1f} s from the start to the first entry")


if __name__ == "__main__":
    main()
