"""TLS contexts from the directives, checked before they are used. `Listeners` renews them.

Python's ssl names no file in its errors, so each file is looked at alone. A context is tried out by
a handshake with itself in memory, which proves that key, certificate and ciphers fit and gives the
day on which the certificate expires.
"""

from __future__ import annotations

import ssl
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from millstream.errors import StartError
from millstream.server.config.directives import Config
from millstream.server.config.tls_directives import PROTOCOLS
from millstream.server.monitor.log import LOGGER
from millstream.server.net.tls_handshake import ServerSide

HANDSHAKE_S = 10.0
HANDSHAKE_STEPS = 10  # more than any version of TLS takes
NO_CHECK_TIME = 0x200000  # X509_V_FLAG_NO_CHECK_TIME: an expired certificate only gets a warning
DEFAULT_PROTOCOLS = "TLSv1.2 TLSv1.3"
VERSIONS = {
    "TLSv1": ssl.TLSVersion.TLSv1,
    "TLSv1.1": ssl.TLSVersion.TLSv1_1,
    "TLSv1.2": ssl.TLSVersion.TLSv1_2,
    "TLSv1.3": ssl.TLSVersion.TLSv1_3,
}
LEAVING_OUT = {
    "TLSv1": ssl.OP_NO_TLSv1,
    "TLSv1.1": ssl.OP_NO_TLSv1_1,
    "TLSv1.2": ssl.OP_NO_TLSv1_2,
    "TLSv1.3": ssl.OP_NO_TLSv1_3,
}
CLIENT_CERTIFICATES = {"no": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "yes": ssl.CERT_REQUIRED}


class Tls(NamedTuple):
    """A context for a server, and when its certificate expires (Unix time)."""

    context: ssl.SSLContext
    expires_s: int

    def log(self) -> None:
        """Say how long the certificate is valid."""
        warning = self.warning()
        if warning:
            LOGGER.warning("tls      %s", warning)
        else:
            LOGGER.info("tls      the certificate is valid until %s", date_of(self.expires_s))

    def warning(self) -> str:
        """A sentence about an expired certificate; empty if the certificate is valid."""
        if self.expires_s >= time.time():
            return ""
        return f"the certificate has expired on {date_of(self.expires_s)}"


def date_of(unix_s: int) -> str:
    """A day in UTC."""
    return time.strftime("%Y-%m-%d", time.gmtime(unix_s))


def make_tls(config: Config) -> Tls:
    """The context of the directives as they are now. StartError names directive and file."""
    if not config.tls.cert_file or not config.tls.key_file:
        raise StartError("tls-port needs tls-cert-file and tls-key-file")
    if config.tls.auth_clients != "no" and not (config.tls.ca_cert_file or config.tls.ca_cert_dir):
        raise StartError(
            "tls-auth-clients needs tls-ca-cert-file or tls-ca-cert-dir; `tls-auth-clients no` "
            "accepts clients without a certificate"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _set_protocols(context, config.tls.protocols or DEFAULT_PROTOCOLS)
    _set_options(context, config)
    load_certificate(context, _server_files(config))
    _load_authorities(context, config)
    until_s = _tried_out(context, config)
    context.verify_mode = CLIENT_CERTIFICATES[config.tls.auth_clients]
    context.sslobject_class = ServerSide
    return Tls(context, until_s)


def make_link_context(config: Config) -> ssl.SSLContext | None:
    """The context for connections to the primary; None without tls-replication. As in Redis, the
    primary needs a certificate of the authority, for any name. StartError names directive and
    file."""
    if not config.tls.replication:
        return None
    if not (config.tls.ca_cert_file or config.tls.ca_cert_dir):
        raise StartError("tls-replication needs tls-ca-cert-file or tls-ca-cert-dir")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    _set_protocols(context, config.tls.protocols or DEFAULT_PROTOCOLS)
    if config.tls.ciphers:
        _set_ciphers(context, config.tls.ciphers)
    files = link_files(config)
    if files is not None:
        load_certificate(context, files)
    _load_authorities(context, config)
    return context


class Files(NamedTuple):
    """A certificate and its key, and what the names of their directives begin with."""

    prefix: str
    certificate: str
    key: str
    password: str


def _server_files(config: Config) -> Files:
    return Files(
        "tls-",
        config.located(config.tls.cert_file),
        config.located(config.tls.key_file),
        config.tls.key_file_pass,
    )


def link_files(config: Config) -> Files | None:
    """The files that a primary sees; None if there are none."""
    if config.tls.client_cert_file:
        return Files(
            "tls-client-",
            config.located(config.tls.client_cert_file),
            config.located(config.tls.client_key_file),
            config.tls.client_key_file_pass,
        )
    return _server_files(config) if config.tls.cert_file else None


def _set_protocols(context: ssl.SSLContext, names: str) -> None:
    wanted = [name for name in PROTOCOLS if name in names.split()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the operator asks for an old version
        context.minimum_version = VERSIONS[wanted[0]]
        context.maximum_version = VERSIONS[wanted[-1]]
        for name in PROTOCOLS:
            if name not in wanted:
                context.options |= LEAVING_OUT[name]


def _set_options(context: ssl.SSLContext, config: Config) -> None:
    if config.tls.ciphers:
        _set_ciphers(context, config.tls.ciphers)
    if config.tls.prefer_server_ciphers:
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    else:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    if not config.tls.session_caching:
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
    if config.tls.dh_params_file:
        path = config.located(config.tls.dh_params_file)
        _readable("tls-dh-params-file", path)
        try:
            context.load_dh_params(path)
        except (ssl.SSLError, OSError):
            raise StartError(f"tls-dh-params-file: {path} has no parameters in PEM") from None


def _set_ciphers(context: ssl.SSLContext, names: str) -> None:
    try:
        context.set_ciphers(names)
    except ssl.SSLError:
        raise StartError("tls-ciphers: OpenSSL knows none of these ciphers") from None


def _readable(directive: str, path: str) -> None:
    try:
        Path(path).read_bytes()
    except OSError as problem:
        raise StartError(f"{directive}: cannot read {path}: {problem.strerror}") from None


def load_certificate(context: ssl.SSLContext, files: Files) -> None:
    """StartError names directive and file."""
    prefix, certificate, key, password = files
    _readable(f"{prefix}cert-file", certificate)
    _readable(f"{prefix}key-file", key)
    _check_certificates(f"{prefix}cert-file", certificate)
    try:
        # A function, so that OpenSSL never asks for a password on the terminal.
        context.load_cert_chain(certificate, key, password=lambda: password)
    except ssl.SSLError as problem:
        if problem.reason == "KEY_VALUES_MISMATCH":
            raise StartError(
                f"{prefix}key-file: {key} is not the key of the certificate in {certificate}"
            ) from None
        raise StartError(
            f"{prefix}key-file: {key} has no key in PEM that {prefix}key-file-pass opens"
        ) from None
    except ValueError as problem:
        raise StartError(f"{prefix}key-file-pass: {problem}") from None


def _check_certificates(directive: str, path: str) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError:
        raise StartError(f"{directive}: {path} has no certificate in PEM") from None


def _load_authorities(context: ssl.SSLContext, config: Config) -> None:
    file = config.located(config.tls.ca_cert_file)
    folder = config.located(config.tls.ca_cert_dir)
    if file:
        _readable("tls-ca-cert-file", file)
        _check_certificates("tls-ca-cert-file", file)
    if folder and not Path(folder).is_dir():
        raise StartError(f"tls-ca-cert-dir: {folder} is not a folder")
    if file or folder:
        context.load_verify_locations(file or None, folder or None)


def _tried_out(context: ssl.SSLContext, config: Config) -> int:
    """A handshake in memory with a client that trusts this one certificate; when it expires."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | NO_CHECK_TIME
    certificate = config.located(config.tls.cert_file)
    trusting.load_verify_locations(certificate)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        trusting.minimum_version = context.minimum_version
    try:
        client = handshake_in_memory(context, trusting)
    except ssl.SSLCertVerificationError as problem:
        raise StartError(f"tls-cert-file: {certificate}: {problem.verify_message}") from None
    except ssl.SSLError as problem:
        raise StartError(
            "tls-protocols, tls-ciphers and the certificate do not match: no handshake succeeds "
            f"({problem.reason})"
        ) from None
    found = client.getpeercert()
    assert found is not None
    return expires_s(found)


def expires_s(certificate: Mapping[str, object]) -> int:
    """The Unix time at which a certificate of the ssl module expires."""
    return int(ssl.cert_time_to_seconds(str(certificate["notAfter"])))


def handshake_in_memory(
    server: ssl.SSLContext, client: ssl.SSLContext, *, of_client: bool = False
) -> ssl.SSLObject:
    """The end that has the other's certificate (the client, or the server for `of_client`) after
    a handshake without sockets; SSLError when there is none."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    open_ends = list(ends)
    for _ in range(HANDSHAKE_STEPS):
        for end in list(open_ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            open_ends.remove(end)
    if open_ends:
        raise ssl.SSLError("the handshake does not end")
    return ends[of_client]


def common_name(peer: ssl.SSLObject) -> str | None:
    """The common name of a client's certificate; None if there is no certificate or name."""
    certificate = peer.getpeercert() or {}
    subject = certificate.get("subject", ())
    assert isinstance(subject, tuple)
    names = [str(pair[1]) for part in subject for pair in part if pair[0] == "commonName"]
    return names[0] if names else None
