"""The file with the secret of a cluster, and warnings about nodes that have another one."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.errors import CommandError, StartError
from millstream.server.cluster.cluster_secret import ClusterSecret
from millstream.server.cluster.peers import WRONG_SECRET, Peers
from millstream.server.cluster.rare_warnings import AGAIN_S, SUBJECTS_MAX, RareWarnings
from millstream.server.config.directives import Config
from millstream.server.config.loading import load
from millstream.server.config.secret_file import SECRET_MAX, SECRET_MIN
from millstream.server.config_check import check_config

OWN = "own secret of nodes"


def configured(folder: Path, text: str = OWN, mode: int = 0o600) -> Config:
    path = folder / "secret"
    path.write_text(text)
    path.chmod(mode)
    return load(None, ["--dir", str(folder), "--cluster-secret-file", "secret"])


def test_the_secret_in_the_file_replaces_that_in_the_store(tmp_path: Path) -> None:
    secret = ClusterSecret(configured(tmp_path, f"\n {OWN}\t\n"))
    secret.take_stored(b"of the store")
    assert (secret.current(), secret.is_given) == (OWN.encode(), True)

    secret = ClusterSecret(Config())
    assert (secret.current(), secret.is_given, secret.renew()) == (b"", False, False)
    secret.take_stored(b"of the store")
    assert secret.current() == b"of the store"


@pytest.mark.parametrize(
    ("text", "mode", "reason"),
    [
        ("", 0o600, "is empty: `openssl rand -hex 32` makes a secret"),
        (" \n", 0o600, "is empty"),
        ("short", 0o600, f"has 5 characters, and a secret has {SECRET_MIN} to {SECRET_MAX}"),
        ("x" * (SECRET_MAX + 1), 0o600, f"has {SECRET_MAX + 1} characters"),
        ("x" * 5000, 0o600, "needs one line"),
        (f"{OWN}\n{OWN}", 0o600, "needs one line"),
        (OWN, 0o640, "can be read or changed by other users (mode 0640): chmod 600"),
        (OWN, 0o604, "can be read or changed by other users (mode 0604)"),
        (OWN, 0o620, "can be read or changed by other users (mode 0620)"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, text: str, mode: int, reason: str) -> None:
    config = configured(tmp_path, text, mode)
    where = re.escape(f"cluster-secret-file: {tmp_path / 'secret'} {reason}")
    for start in (ClusterSecret, lambda config: check_config(config, None)):
        with pytest.raises(StartError, match=where):
            start(config)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    config = configured(tmp_path)
    path = tmp_path / "secret"
    path.unlink()
    with pytest.raises(StartError, match=f"cannot read {path}: No such file"):
        ClusterSecret(config)
    os.mkfifo(path, 0o600)  # a read would wait
    with pytest.raises(StartError, match=f"{path} is not a file"):
        ClusterSecret(config)


def test_the_group_may_read_a_file_of_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As systemd passes credentials on to a unit with a user."""
    config = configured(tmp_path, mode=0o440)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    true_stat = os.fstat
    owner = 0
    monkeypatch.setattr(
        os, "fstat", lambda file: SimpleNamespace(
            st_mode=true_stat(file).st_mode, st_uid=owner, st_size=true_stat(file).st_size
        ),
    )  # fmt: skip
    assert ClusterSecret(config).current() == OWN.encode()
    (tmp_path / "secret").chmod(0o444)
    with pytest.raises(StartError, match="mode 0444"):
        ClusterSecret(config)
    (tmp_path / "secret").chmod(0o440)
    owner = 1000
    with pytest.raises(StartError, match="mode 0440"):
        ClusterSecret(config)


def test_a_file_is_read_again(tmp_path: Path) -> None:
    secret = ClusterSecret(configured(tmp_path))
    assert not secret.renew()
    configured(tmp_path, "short")
    with pytest.raises(StartError, match="5 characters"):
        secret.renew()
    assert secret.current() == OWN.encode()
    configured(tmp_path, "the next secret of nodes")
    assert secret.renew()
    assert secret.current() == b"the next secret of nodes"


def test_a_warning_is_repeated_after_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 5.0
    warnings = RareWarnings(lambda: now_s)

    def warn(*subjects: str) -> list[str]:
        caplog.clear()
        for subject in subjects:
            warnings.warn(subject, "about %s", subject)
        return [record.message for record in caplog.records]

    assert warn("a", "a", "b", "a") == ["about a", "about b"]
    now_s += AGAIN_S - 1
    assert warn("a", "b", "c") == ["about c"]
    now_s += 1
    assert warn("a", "b", "c") == ["about a", "about b"]
    many = [f"n{number}" for number in range(3 * SUBJECTS_MAX)]
    assert len(warn(*many)) == len(many)
    assert len(warnings._due_s) == SUBJECTS_MAX


def test_a_node_says_who_has_another_secret(caplog: pytest.LogCaptureFixture) -> None:
    unused: Any = None
    peers = Peers(lambda: b"own", unused, unused, bytes, None)
    other: Any = SimpleNamespace(id=7, address="10.0.0.3:4711")
    for _ in range(3):
        with pytest.raises(CommandError) as refused:
            peers.admit(other, b"other")
        assert refused.value.message == WRONG_SECRET
    (said,) = [record.message for record in caplog.records]
    assert "a client at 10.0.0.3:4711 has sent another secret" in said
    assert "give all nodes the same cluster-secret-file" in said
    assert not peers.admitted
    peers.admit(other, b"own")
    assert peers.admitted == {7}
