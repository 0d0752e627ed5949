"""Opening the store of a cluster with what directives or options say."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NamedTuple

from millstream.errors import StartError
from millstream.server.cluster.store.etcd_store import (
    EtcdStore,
    Login,
    parse_endpoints,
    tls_context,
)
from millstream.server.config.directives import Config
from millstream.server.config.store_directives import CLUSTER_NAME


class StoreSettings(NamedTuple):
    """The name of the cluster; the URLs of etcd; its user, or ""; the file with the password; the
    file with the authorities of its certificates, or "" for those of the system; the files with the
    certificate of this client and its key, or ""."""

    name: str
    urls: str
    user: str = ""
    password_file: str = ""
    authority_file: str = ""
    certificate_file: str = ""
    key_file: str = ""


def check_name(name: str) -> None:
    """ValueError if a cluster cannot have this name."""
    if not CLUSTER_NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is not a valid name of a cluster: use 1 to 64 letters, digits, -, _ and "
            "dots, and begin with a letter or a digit"
        )


def open_store(settings: StoreSettings) -> EtcdStore:
    """The store; nothing is sent yet. ValueError if a setting is wrong."""
    check_name(settings.name)
    endpoints = parse_endpoints(settings.urls, _tls_of(settings))
    if bool(settings.user) != bool(settings.password_file):
        raise ValueError("give both the user of etcd and the file with its password")
    login = None
    if settings.user:
        login = Login(settings.user, _password_in(Path(settings.password_file)))
    return EtcdStore(settings.name, endpoints, login)


def _tls_of(settings: StoreSettings) -> ssl.SSLContext | None:
    certificate, key = settings.certificate_file, settings.key_file
    if bool(certificate) != bool(key):
        raise ValueError("give both the certificate of this client of etcd and its key")
    if certificate and "https://" not in settings.urls:
        raise ValueError("a certificate of a client of etcd needs a URL with https://")
    if not certificate and not settings.authority_file:
        return None
    return tls_context(settings.authority_file, certificate, key)


def configured_store(config: Config) -> EtcdStore:
    """The store of the directives. StartError if one is wrong."""
    cluster = config.cluster
    try:
        return open_store(
            StoreSettings(
                cluster.name,
                cluster.etcd,
                cluster.etcd_user,
                config.located(cluster.etcd_password_file),
                config.located(cluster.etcd_cacert),
                config.located(cluster.etcd_cert),
                config.located(cluster.etcd_key),
            )
        )
    except ValueError as problem:
        raise StartError(f"cluster-etcd: {problem}") from None


def _password_in(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as problem:
        raise ValueError(f"cannot read {path}: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text in UTF-8") from None
    lines = text.splitlines()
    if len(lines) != 1 or not lines[0]:
        raise ValueError(f"{path} has {len(lines)} lines; it needs one, the password of etcd")
    return lines[0]
