"""The directives of TLS and of Unix sockets."""

from __future__ import annotations

import re

from millstream.server.config.apply import certificates
from millstream.server.config.kinds import TEXT, YES_NO, Kind, integer, network, one_of

PROTOCOLS = ("TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3")
PERMISSIONS_MAX = 0o777


def _parse_protocols(text: str, current: object) -> str:
    known = {name.lower(): name for name in PROTOCOLS}
    words = text.lower().split()
    if not all(word in known for word in words):
        raise ValueError(f"argument must be some of {' '.join(PROTOCOLS)}")
    return " ".join(known[word] for word in words)


def _parse_permissions(text: str, current: object) -> int:
    if not re.fullmatch("[0-7]+", text) or int(text, 8) > PERMISSIONS_MAX:
        raise ValueError("argument must be an octal number up to 777")
    return int(text, 8)


PROTOCOL_LIST = Kind(_parse_protocols, str, " ".join(PROTOCOLS), many=True)
PERMISSIONS = Kind(_parse_permissions, lambda mode: f"{mode:o}", "octal number up to 777")


class UnixDirectives:
    """`Config.unix`: the attribute `socket` is the directive `unixsocket`."""

    PART, PREFIX = "unix", "unix"

    socket: str = network("", TEXT, "path of a Unix socket to listen on; empty: none")
    socketperm: int = network(
        0, PERMISSIONS, "permissions of the Unix socket; 0: those given by the umask"
    )


class TlsDirectives:
    """`Config.tls`: the attribute `port` is the directive `tls-port`."""

    PART, PREFIX = "tls", "tls_"

    port: int = network(0, integer(0, 65535), "port for TLS; 0: none")
    cert_file: str = network(
        "", TEXT, "the server's certificate with its chain, in PEM", apply=certificates
    )
    key_file: str = network("", TEXT, "the certificate's key, in PEM", apply=certificates)
    key_file_pass: str = network(
        "", TEXT, "password of tls-key-file, if it is encrypted", apply=certificates
    )
    client_cert_file: str = network(
        "", TEXT,
        "certificate for connections that this server makes (tls-replication), in PEM; empty: "
        "tls-cert-file", apply=certificates,
    )  # fmt: skip
    client_key_file: str = network(
        "", TEXT, "the key of tls-client-cert-file, in PEM", apply=certificates
    )
    client_key_file_pass: str = network(
        "", TEXT, "password of tls-client-key-file, if it is encrypted", apply=certificates
    )
    replication: bool = network(
        False, YES_NO,
        "use TLS to the primary. Its certificate must be signed by tls-ca-cert-file",
        apply=certificates,
    )  # fmt: skip
    ca_cert_file: str = network(
        "", TEXT,
        "certificates that sign those of clients and of the primary, in PEM", apply=certificates,
    )  # fmt: skip
    ca_cert_dir: str = network(
        "", TEXT, "directory of such certificates, named by their hashes", apply=certificates
    )
    auth_clients: str = network(
        "yes", one_of("no", "yes", "optional"),
        "whether TLS clients need a certificate: `optional` checks one that a client sends",
        apply=certificates,
    )  # fmt: skip
    auth_clients_user: str = network(
        "off", one_of("off", "cn"),
        "`cn`: a client with a certificate is logged in as the user named by its common name",
        apply=certificates,
    )  # fmt: skip
    protocols: str = network(
        "", PROTOCOL_LIST, "versions of TLS; empty: 1.2 and 1.3", apply=certificates
    )
    ciphers: str = network(
        "", TEXT, "ciphers of TLS 1.2, in OpenSSL's form; empty: Python's", apply=certificates
    )
    prefer_server_ciphers: bool = network(
        False, YES_NO, "prefer the server's order of ciphers", apply=certificates
    )
    dh_params_file: str = network(
        "", TEXT, "parameters of the Diffie-Hellman exchange, in PEM", apply=certificates
    )
    session_caching: bool = network(
        True, YES_NO,
        "let clients resume sessions, which halves the cost of a handshake", apply=certificates,
    )  # fmt: skip
