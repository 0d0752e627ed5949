"""Spark's Python processes, forked from one that has imported everything: the side of the tests."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
# Numpy's library would start threads, which do not survive a fork. Spark sets the others for its
# processes.
ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}


@contextmanager
def forked_workers() -> Iterator[dict[str, str]]:
    """The environment in which Spark has its Python processes forked, until the end."""
    # Not a directory of pytest: the path of a socket is limited to a hundred characters.
    with tempfile.TemporaryDirectory(prefix="millstream-spark-") as folder:
        launcher, socket = Path(folder) / "python3", Path(folder) / "socket"
        launcher.write_text(f"#!{sys.executable} -ISE\n{(HERE / 'spark_launcher.py').read_text()}")
        launcher.chmod(0o755)
        server = subprocess.Popen(
            [sys.executable, "-P", HERE / "spark_fork_server.py", socket],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | ENVIRONMENT,
        )
        with server:
            assert server.stdin is not None
            assert server.stdout is not None
            assert server.stdout.readline() == b"listening\n"
            yield {
                "PYSPARK_PYTHON": str(launcher),
                "MILLSTREAM_SPARK_FORK_SERVER": str(socket),
            }
            server.stdin.close()
