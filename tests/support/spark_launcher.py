"""Starts a Python process of Spark by having it forked, if `spark_fork_server.py` can do so.

`spark_workers.py` writes this file, after a first line that names the interpreter, to an executable
that Spark starts as its Python. Anything other than a daemon of the PySpark that the fork server
has imported runs in the interpreter, as without this program. It imports little, because a run of
the tests starts it hundreds of times.
"""

import _signal
import _socket
import marshal
import os
import sys

SOCKET_VARIABLE = "MILLSTREAM_SPARK_FORK_SERVER"
DAEMON = ["-m", "pyspark.daemon"]


def forked() -> tuple[int, _socket.socket] | None:
    """The process ID of the daemon, and a socket that ends with it; None if it is not forked."""
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        connection.connect(os.environ[SOCKET_VARIABLE])
        request = marshal.dumps((sys.argv[2:], dict(os.environ), os.getcwd()))
        descriptors = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (0, 1, 2))
        rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptors)]
        connection.sendmsg([len(request).to_bytes(4, "little")], rights)
        while request:
            request = request[connection.send(request) :]
        pid = int.from_bytes(connection.recv(4), "little")
    except (KeyError, OSError):
        return None
    return (pid, connection) if pid else None


def main() -> None:
    daemon = forked() if sys.argv[1:3] == DAEMON else None
    if daemon is None:
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
    pid, connection = daemon

    def hand_on(number: int, frame: object) -> None:
        try:
            os.kill(pid, number)
        finally:
            os._exit(1)

    _signal.signal(_signal.SIGTERM, hand_on)
    for fd in (0, 1, 2):  # Spark waits for their end
        os.close(fd)
    connection.recv(1)


main()
