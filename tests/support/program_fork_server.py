"""Starts `millstream cdc run` and `millstream dashboard` by forking a process that has already
imported them, and lets the first one fork the processes of its sources.

Importing takes half a second of CPU time for each, and the tests start them a hundred times.
`forking.py` starts this program with the name of the command. The command runs from its first line,
and a source's process from the first line of `source_process.main`, with pipes, a session and
signals as `subprocess.Popen` would give it.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

sys.path.append(str(Path(__file__).parents[2]))  # not in the path of a program

from tests.support.fork_server import ForkServer, become_server
from tests.support.waiting import wait_until

MODULE_OPTION, SOURCE_MODULE = "-m", "millstream.cdc.reader.source_process"
FORGOTTEN_S = 60.0


class ForkedSource:
    """The process of a source, with the part of `subprocess.Popen` that `run_sources` uses."""

    def __init__(
        self, command: Sequence[str], *, stdin: int, stdout: int, start_new_session: bool
    ) -> None:
        assert list(command[1:3]) == [MODULE_OPTION, SOURCE_MODULE]
        assert (stdin, stdout, start_new_session) == (subprocess.PIPE, subprocess.PIPE, True)
        (their_in, our_in), (our_out, their_out) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            become_source(their_in, their_out, command[3:])
        os.close(their_in)
        os.close(their_out)
        self.stdin: BinaryIO = os.fdopen(our_in, "wb")  # its end tells the source that `run` ended
        self.stdout: BinaryIO = os.fdopen(our_out, "rb")
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float = FORGOTTEN_S) -> int | None:
        try:
            return wait_until(self.poll, lambda code: code is not None, deadline_s=timeout)
        except AssertionError:
            raise subprocess.TimeoutExpired(SOURCE_MODULE, timeout) from None

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def become_source(given: int, taken: int, arguments: Sequence[str]) -> None:
    """Be the process of a source, until its end."""
    from millstream.cdc.reader import source_process

    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(given, 0)
        os.dup2(taken, 1)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
        source_process.main(list(arguments))
    except SystemExit as end:
        print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()  # the process ends before an exception is shown
    finally:
        sys.stderr.flush()
        os._exit(1)  # `main` ends the process itself if the source was read


def import_cdc() -> None:
    from millstream.cdc import cdc_cli, config_file  # noqa: F401
    from millstream.cdc.reader import run_sources, source_process  # noqa: F401

    run_sources.subprocess.Popen = ForkedSource  # type: ignore[misc, assignment]


def import_dashboard() -> None:
    import uvicorn  # noqa: F401

    from millstream.dashboard import app, dashboard_cli  # noqa: F401


IMPORTS = {"cdc": import_cdc, "dashboard": import_dashboard}


def main() -> None:
    from millstream import __main__ as program

    IMPORTS[sys.argv[2]]()
    gc.collect()
    gc.freeze()
    fork_server, own_pid = ForkServer(socket.socket(fileno=int(sys.argv[1]))), os.getpid()
    start = fork_server.run()
    fork_server.close()
    if start is not None:
        become_server(start, own_pid)
        program.main(start.arguments, prog_name="millstream")


if __name__ == "__main__":
    main()
