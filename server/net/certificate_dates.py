"""Expiry dates of the certificates that clients of tls-port do not see: those of authorities, and
the one for the link to a primary. `Tls` has the date of the certificate of tls-port."""

from __future__ import annotations

import re
import ssl
import time
from pathlib import Path

from millstream.server.config.directives import Config
from millstream.server.net.tls_contexts import (
    NO_CHECK_TIME,
    date_of,
    expires_s,
    handshake_in_memory,
    link_files,
    load_certificate,
    make_link_context,
)

_HASHED_NAME = r"[0-9a-f]{8}\.[0-9]+"  # OpenSSL reads no other file of a folder
FILES_MAX = 1000  # of tls-ca-cert-dir


def expiry_dates(config: Config) -> dict[str, int]:
    """Unix times by directive, of the first certificate of tls-ca-cert-file and of tls-ca-cert-dir
    that expires, and of the one for the link to a primary. Empty without TLS."""
    if not (config.tls.port or config.tls.replication):
        return {}
    files: dict[str, list[Path]] = {}
    if config.tls.ca_cert_file:
        files["tls-ca-cert-file"] = [Path(config.located(config.tls.ca_cert_file))]
    if config.tls.ca_cert_dir:
        files["tls-ca-cert-dir"] = _hashed_files(Path(config.located(config.tls.ca_cert_dir)))
    found = {directive: _first_s(paths) for directive, paths in files.items()}
    if config.tls.replication and config.tls.client_cert_file:
        found["tls-client-cert-file"] = _link_expires_s(config)
    elif config.tls.replication and not config.tls.port:
        found["tls-cert-file"] = _link_expires_s(config)
    return {directive: until_s for directive, until_s in found.items() if until_s}


def expiry_warnings(dates: dict[str, int]) -> list[str]:
    """A sentence about each directive with a certificate that has expired."""
    now_s = time.time()
    return [
        f"{directive}: a certificate has expired on {date_of(until_s)}"
        for directive, until_s in dates.items()
        if until_s < now_s
    ]


def _hashed_files(folder: Path) -> list[Path]:
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError:
        return []
    return [folder / name for name in names if re.fullmatch(_HASHED_NAME, name)][:FILES_MAX]


def _first_s(paths: list[Path]) -> int:
    """The earliest expiry date in these files; 0 without one. OpenSSL ignores a file of a folder
    that it cannot read."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for path in paths:
        try:
            context.load_verify_locations(path)
        except (ssl.SSLError, OSError):
            continue
    return min((expires_s(one) for one in context.get_ca_certs()), default=0)


def _link_expires_s(config: Config) -> int:
    """A handshake in memory with a server that trusts this one certificate; 0 if it fails."""
    link, files = make_link_context(config), link_files(config)
    if link is None or files is None:
        return 0
    link.verify_mode = ssl.CERT_NONE
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_certificate(asking, files)
    asking.verify_mode = ssl.CERT_REQUIRED
    asking.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | NO_CHECK_TIME
    asking.load_verify_locations(files.certificate)
    try:
        found = handshake_in_memory(asking, link, of_client=True).getpeercert()
    except ssl.SSLError:
        return 0
    return expires_s(found) if found else 0
