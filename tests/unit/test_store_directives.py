"""Times and names in the directives of a node whose cluster has its map in etcd."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.support.certificates import Authority

from millstream.__main__ import main
from millstream.errors import StartError
from millstream.server.cluster.store.store_opening import configured_store
from millstream.server.config.exposed_secrets import exposure_warnings
from millstream.server.config.loading import load
from millstream.server.config.store_directives import NAME, SHARD, ZONE_NAME, duration

SECONDS, MILLISECONDS = duration("s", 2, 3600), duration("ms", 500, 600_000)


@pytest.mark.parametrize(
    ("text", "seconds", "milliseconds"),
    [("10", 10, None), ("5000", None, 5000), ("3s", 3, 3000), ("3000ms", 3, 3000), ("4S", 4, 4000)],
)
def test_times_may_have_units(text: str, seconds: int | None, milliseconds: int | None) -> None:
    for kind, value in ((SECONDS, seconds), (MILLISECONDS, milliseconds)):
        if value is not None:
            assert kind.parse(text, None) == value
            assert kind.parse(kind.show(value), None) == value


@pytest.mark.parametrize("text", ["", "1", "1500ms", "3601s", "x", "2.5", "2 s", "9" * 30 + "s"])
def test_wrong_times_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="argument"):
        SECONDS.parse(text, None)


def test_names_fit_into_keys_of_etcd() -> None:
    assert [NAME.parse(text, None) for text in ("", "prod-1.eu")] == ["", "prod-1.eu"]
    assert [SHARD.parse(text, None) for text in ("auto", "s1")] == ["auto", "s1"]
    for kind, text in (
        (NAME, "a/b"),
        (NAME, "-a"),
        (NAME, "a" * 65),
        (SHARD, "s/1"),
        (SHARD, "S1"),
        (ZONE_NAME, "west 1"),
        (ZONE_NAME, "z" * 65),
    ):
        with pytest.raises(ValueError, match="argument must be"):
            kind.parse(text, None)


WHERE = ["--cluster-name", "prod", "--cluster-etcd", "http://127.0.0.1:1"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (WHERE, ""),
        ([*WHERE, "--appendfsync", "everysec"], "needs appendonly yes and appendfsync always"),
        ([*WHERE, "--appendonly", "no"], "needs appendonly yes and appendfsync always"),
        ([*WHERE, "--replicaof", "a 1"], "replicaof cannot be given with cluster-name"),
        ([*WHERE, "--replicas-durable", "1"], "replicas-durable cannot be given with cluster-name"),
        ([*WHERE, "--min-slaves-to-write", "1"], "min-replicas-to-write cannot be given with"),
        (WHERE[:2], "cluster-etcd: needs the URL of etcd"),
        ([*WHERE, "--cluster-etcd-cert", "c"], "cluster-etcd: give both the certificate"),
    ],
)
def test_a_check_finds_what_a_node_refuses(words: list[str], reason: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["serve", "--check", "--dir", str(tmp_path), *words])
    assert done.exit_code == (1 if reason else 0), done.output
    assert reason in done.output


@pytest.mark.parametrize("is_there", [True, False])
def test_files_for_etcd_are_relative_to_the_data_directory(tmp_path: Path, is_there: bool) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("node")
    password = tmp_path / "password"
    password.write_text("secret\n")
    names = {
        "user": "node", "password-file": password.name, "cacert": authority.file.name,
        "cert": certificate.name, "key": key.name,
    }  # fmt: skip
    words = [word for name, value in names.items() for word in (f"--cluster-etcd-{name}", value)]
    where = ["--cluster-name", "prod", "--cluster-etcd", "https://127.0.0.1:1"]
    config = load(None, ["--dir", str(tmp_path), *where, *words])
    if is_there:
        configured_store(config)
        password.chmod(0o644)
        key.chmod(0o604)
        assert [line.split()[0] for line in exposure_warnings(config)] == [str(password), str(key)]
    else:
        authority.file.unlink()
        with pytest.raises(StartError, match=f"cannot read {authority.file}"):
            configured_store(config)


def test_etcd_and_a_shard_need_the_name_of_the_cluster() -> None:
    """Without it, the server would not be a node, and its data on no other machine."""
    with pytest.raises(StartError, match="cluster-etcd needs cluster-name"):
        load(None, ["--cluster-etcd", "http://127.0.0.1:2379"])
    with pytest.raises(StartError, match="cluster-shard needs cluster-name"):
        load(None, ["--cluster-shard", "s1"])


@pytest.mark.parametrize("words", [("add", "s1", ""), ("remove", "s1", ""), ("replace", "", "a")])
def test_an_empty_id_names_no_node(words: tuple[str, ...]) -> None:
    """Every ID begins with it."""
    where = ["--name", "prod", "--etcd", "http://127.0.0.1:1"]
    done = CliRunner().invoke(main, ["cluster", *words, *where])
    assert done.exit_code == 2
    assert "it is empty" in done.output
