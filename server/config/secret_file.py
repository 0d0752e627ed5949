"""The file of cluster-secret-file."""

from __future__ import annotations

import os
import stat

from millstream.errors import StartError, counted
from millstream.server.config.directives import Config

SECRET_MIN, SECRET_MAX = 16, 512  # bytes
FILE_MAX_BYTES = 4096
MAKE = "`openssl rand -hex 32` makes a secret"


def read_secret(config: Config) -> bytes:
    """The secret. StartError if the file cannot be used."""
    path = config.located(config.cluster.secret_file)
    try:
        text, found = _read(path)
    except OSError as problem:
        raise StartError(f"cluster-secret-file: cannot read {path}: {problem.strerror}") from None
    secret = text.strip()
    reason = _problem_of(path, secret, found)
    if reason:
        raise StartError(f"cluster-secret-file: {path} {reason}")
    return secret


def _read(path: str) -> tuple[bytes, os.stat_result]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        return file.read(FILE_MAX_BYTES + 1) if stat.S_ISREG(found.st_mode) else b"", found


def _problem_of(path: str, secret: bytes, found: os.stat_result) -> str:
    """The reason why a file with this text cannot be used; "" if it can."""
    if not stat.S_ISREG(found.st_mode):
        return "is not a file"
    exposed = stat.S_IRGRP | stat.S_IWGRP | stat.S_IROTH | stat.S_IWOTH
    if found.st_uid == 0 and os.geteuid():
        exposed &= ~stat.S_IRGRP  # the credentials of systemd, for example
    if found.st_mode & exposed:
        mode = stat.S_IMODE(found.st_mode)
        return f"can be read or changed by other users (mode {mode:04o}): chmod 600 {path}"
    if found.st_size > FILE_MAX_BYTES or len(secret.splitlines()) > 1:
        return "needs one line, the secret"
    if not secret:
        return f"is empty: {MAKE}"
    if not SECRET_MIN <= len(secret) <= SECRET_MAX:
        size = counted(len(secret), "character")
        return f"has {size}, and a secret has {SECRET_MIN} to {SECRET_MAX}: {MAKE}"
    return ""
