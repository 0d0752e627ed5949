"""Programs for Node.js, with the client libraries that tests/compat/node/package.json names.

The libraries are installed once, in the virtualenv, in a folder named after the requirements: a
changed package.json causes a new installation, and `make clean` removes all.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

FOLDER = Path(__file__).parent.parent / "compat" / "node"
INSTALL_DEADLINE_S = 100
PROGRAM_DEADLINE_S = 60


def tool(name: str) -> str:
    """The path of node or npm. Its absence is a failure, not a skip."""
    path = shutil.which(name)
    assert path, f"{name} is missing: apt-get install nodejs npm"
    return path


def libraries() -> Path:
    """The `node_modules` with the libraries, installed if it does not exist yet."""
    wanted = (FOLDER / "package.json").read_bytes()
    folder = Path(sys.prefix) / f"node-{hashlib.sha256(wanted).hexdigest()[:12]}"
    with (Path(sys.prefix) / "node.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        is_complete = folder / "complete"
        if not is_complete.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            (folder / "package.json").write_bytes(wanted)
            _npm("install", "--ignore-scripts", "--no-audit", "--no-fund", cwd=folder)
            is_complete.touch()
    return folder / "node_modules"


def _npm(*arguments: str, cwd: Path) -> None:
    done = subprocess.run(
        [tool("npm"), *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=INSTALL_DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, f"npm could not fetch the libraries:\n{done.stdout}{done.stderr}"


class Program:
    """A running program of tests/compat/node; a context that must end with exit code 0.

    The program prints results as lines of JSON, and reads a line when it must continue.
    """

    def __init__(self, name: str, *arguments: object) -> None:
        self._name = name
        self._process = subprocess.Popen(
            [tool("node"), str(FOLDER / name), *map(str, arguments)],
            env={**os.environ, "NODE_PATH": str(libraries())},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def hear(self) -> Any:
        """The next line of its output; None when it has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return json.loads(line) if line else None

    def send(self, what: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def end(self) -> None:
        """Close its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None and not isinstance(error, BrokenPipeError):
            self._process.kill()
        if self._process.stdin is not None and self._process.stdin.closed:
            self._process.stdin = None  # communicate() would flush it
        try:
            _, errors = self._process.communicate(timeout=PROGRAM_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            _, errors = self._process.communicate()
        assert self._process.returncode == 0, f"{self._name}: {error or ''}\n{errors}"
