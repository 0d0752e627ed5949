"""The directives of TLS and of Unix sockets."""

from __future__ import annotations

import re
from functools import partial

from millstream.server.config.apply import certificates
from millstream.server.config.kinds import SECRET, TEXT, YES_NO, Kind, integer, network, one_of

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


tls = partial(network, apply=certificates)


class TlsDirectives:
    """`Config.tls`: the attribute `port` is the directive `tls-port`."""

    PART, PREFIX = "tls", "tls_"

    port: int = network(0, integer(0, 65535), "port for TLS; 0: none")
    cert_file: str = tls("", TEXT, "the server's certificate with its chain, in PEM")
    key_file: str = tls("", TEXT, "the certificate's key, in PEM")
    key_file_pass: str = tls("", SECRET, "password of tls-key-file, if it is encrypted")
    client_cert_file: str = tls(
        "", TEXT,
        "certificate for connections that this server makes (tls-replication), in PEM; empty: "
        "tls-cert-file",
    )  # fmt: skip
    client_key_file: str = tls("", TEXT, "the key of tls-client-cert-file, in PEM")
    client_key_file_pass: str = tls(
        "", SECRET, "password of tls-client-key-file, if it is encrypted"
    )
    replication: bool = tls(
        False, YES_NO, "use TLS to the primary. Its certificate must be signed by tls-ca-cert-file"
    )
    ca_cert_file: str = tls(
        "", TEXT, "certificates that sign those of clients and of the primary, in PEM"
    )
    ca_cert_dir: str = tls("", TEXT, "directory of such certificates, named by their hashes")
    auth_clients: str = tls(
        "yes", one_of("no", "yes", "optional"),
        "whether TLS clients need a certificate: `optional` checks one that a client sends",
    )  # fmt: skip
    auth_clients_user: str = tls(
        "off", one_of("off", "cn"),
        "`cn`: a client with a certificate is logged in as the user named by its common name",
    )  # fmt: skip
    protocols: str = tls("", PROTOCOL_LIST, "versions of TLS; empty: 1.2 and 1.3")
    ciphers: str = tls("", TEXT, "ciphers of TLS 1.2, in OpenSSL's form; empty: Python's")
    prefer_server_ciphers: bool = tls(False, YES_NO, "prefer the server's order of ciphers")
    dh_params_file: str = tls("", TEXT, "parameters of the Diffie-Hellman exchange, in PEM")
    session_caching: bool = tls(
        True, YES_NO, "let clients resume sessions, which halves the cost of a handshake"
    )
