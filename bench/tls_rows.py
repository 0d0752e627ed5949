"""Rows over TLS 1.3: appends with a P-256 certificate and without client certificates.

The certificate is made with the openssl program for each run.
"""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from bench.datasets import SENSOR_ENTRY
from bench.figures import Lanes
from bench.harness import JOURNAL_OFF, Harness
from bench.server import OWN_TLS_PORT


@cache
def certificate() -> tuple[str, str]:
    """A certificate that signs itself, for 127.0.0.1, and its key."""
    folder = Path(tempfile.mkdtemp(prefix="millstream-bench-tls-"))
    atexit.register(shutil.rmtree, folder, True)
    file, key = folder / "server.crt", folder / "server.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1",
         "-days", "2", "-keyout", str(key), "-out", str(file)],
        check=True, capture_output=True,
    )  # fmt: skip
    return str(file), str(key)


def appends(harness: Harness, pipeline: int, full: int, quick: int) -> Lanes:
    """As Harness.appends, over TLS."""
    file, key = certificate()
    files = ("--tls-cert-file", file, "--tls-key-file", key, "--tls-ca-cert-file", file)
    directives = (*JOURNAL_OFF, *files, "--tls-auth-clients", "no", "--tls-port", OWN_TLS_PORT)
    return harness.appends(
        SENSOR_ENTRY, pipeline, full, quick, directives=directives, authority=file
    )
