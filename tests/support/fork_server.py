"""Starts servers by forking a process that has already imported the server.

Importing takes about 0.1 s of CPU time, and a test run starts many hundred servers.
This file is the program that forks; `forking.py` starts it and talks to it. A forked server runs
`millstream-server` from its first line: arguments, configuration, data directory, signals, exit
code. Only the imports are done.

A request on the control socket is a JSON object with `arguments` and `directory`, and two file
descriptors: the log, and a socket on which the process ID and later the exit code are sent as
lines. The end of the control socket ends this program, and with it all servers.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import selectors
import signal
import socket
import sys
from typing import NamedTuple

_PR_SET_PDEATHSIG = 1
REQUEST_LIMIT_BYTES = 1 << 16
FIRST_OWN_FD = 3


class Start(NamedTuple):
    """The request of a start: the command line, the working directory, and the log's descriptor."""

    arguments: list[str]
    directory: str
    log: int


class ForkServer:
    """The loop of the program: forks on request, and reports ends."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.reports: dict[int, socket.socket] = {}

    def run(self) -> Start | None:
        """In the process of a server, what to start; None when no test can ask any more."""
        woken, wake = os.pipe()
        for fd in (woken, wake):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        with selectors.DefaultSelector() as selector:
            selector.register(woken, selectors.EVENT_READ)
            selector.register(self.control, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if woken in ready:
                    os.read(woken, 4096)
                    self.report_ends()
                if self.control in ready:
                    request, fds, _, _ = socket.recv_fds(self.control, REQUEST_LIMIT_BYTES, 2)
                    if not request:
                        return None
                    log, report = fds
                    start = Start(**json.loads(request), log=log)
                    if self.is_forked(start, socket.socket(fileno=report)):
                        return start

    def is_forked(self, start: Start, report: socket.socket) -> bool:
        """True in the new process."""
        pid = os.fork()
        if pid == 0:
            report.close()
            return True
        os.close(start.log)
        self.reports[pid] = report
        send_line(report, pid)
        return False

    def report_ends(self) -> None:
        for pid in list(self.reports):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                with self.reports.pop(pid) as report:
                    send_line(report, os.waitstatus_to_exitcode(status))

    def close(self) -> None:
        self.control.close()
        for report in self.reports.values():
            report.close()


def send_line(report: socket.socket, number: int) -> None:
    # A test that has forgotten the server no longer wants to know.
    with contextlib.suppress(BrokenPipeError):
        report.sendall(b"%d\n" % number)


def become_server(start: Start, parent_pid: int) -> None:
    """Make this process what a program is that was just started."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for fd in (1, 2):
        os.dup2(start.log, fd)
    os.closerange(FIRST_OWN_FD, os.sysconf("SC_OPEN_MAX"))
    os.chdir(start.directory)
    sys.argv = start.arguments


def main() -> None:
    from millstream.commands.table.loader import load_table
    from millstream.server import life  # noqa: F401  what `millstream-server` imports
    from millstream.server import main as program

    load_table()
    gc.collect()
    gc.freeze()  # or a collection in each server copies the pages of all these objects
    fork_server, own_pid = ForkServer(socket.socket(fileno=int(sys.argv[1]))), os.getpid()
    start = fork_server.run()
    fork_server.close()
    if start is not None:
        become_server(start, own_pid)
        program.server_main()


if __name__ == "__main__":
    main()
