"""Files with secrets that every user of the machine can read: passwords in configuration files and
in the aclfile, and the keys of certificates."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from millstream.server.config.directives import Config
from millstream.server.config.lines import words_of


def has_password(rules: Sequence[str]) -> bool:
    """True if a rule of a user is a password or its hash."""
    return any(rule[:1] in (">", "#") for rule in rules)


def exposure_warnings(config: Config) -> list[str]:
    """A sentence for each file that contains a secret and that others can read."""
    found = {}
    aclfile = Path(config.located(config.aclfile))
    for path, content in _files(config):
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
        except OSError:
            continue  # reading the file reports the error
        if mode & stat.S_IROTH and (path != aclfile or _defines_passwords(path)):
            found[str(path)] = (
                f"{path} contains {content}, and every user of this machine can read it (mode"
                f" {mode:04o}): chmod 600 {path}"
            )
    return list(found.values())


def _files(config: Config) -> Iterator[tuple[Path, str]]:
    for name in config.files_with_passwords:
        yield Path(name), "passwords"
    for name, content in (
        (config.aclfile, "passwords of users"),
        (config.tls.key_file, "the key of a certificate"),
        (config.tls.client_key_file, "the key of a certificate"),
        (config.cluster.etcd_password_file, "the password of etcd"),
        (config.cluster.etcd_key, "the key of a certificate"),
    ):
        if name:
            yield Path(config.located(name)), content


def _defines_passwords(aclfile: Path) -> bool:
    try:
        lines = aclfile.read_bytes().splitlines()
        return any(has_password(words_of(line)[2:]) for line in lines if line[:1] != b"#")
    except (OSError, ValueError):
        return False  # reading the users reports the error
