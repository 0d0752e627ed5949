"""CONFIG REWRITE: the file gets the current values and keeps its comments and order."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import CommandError
from millstream.server.config.config_rewrite import GENERATED, quoted, rewrite_file, rewritten
from millstream.server.config.directives import DIRECTIVES, Config
from millstream.server.config.kinds import OutputLimit
from millstream.server.config.lines import words_of
from millstream.server.config.loading import load
from millstream.server.settings import Settings


def test_comments_order_and_unchanged_lines_stay() -> None:
    text = "# one\n\nPORT 7000\n  appendfsync  everysec\n# two\nsave 900 1\n"
    config = Config(port=7000, appendfsync="everysec", save="900 1")
    assert rewritten(text, config) == text


def test_changed_values_are_replaced_in_place() -> None:
    config = Config(port=7001, timeout=5, requirepass='a "b"\n', save="60 1")
    text = "# one\nport 7000\ntimeout 3\n\nrequirepass old\nsave 900 1\nsave 300 10\n# end\n"
    assert rewritten(text, config) == (
        '# one\nport 7001\ntimeout 5\n\nrequirepass "a \\"b\\"\\n"\nsave 60 1\n# end\n'
    )


def test_a_rewrite_appends_new_values_and_no_defaults() -> None:
    config = Config(timeout=5, loglevel="debug")
    config.client_output_buffer_limit["normal"] = OutputLimit(1, 2, 3)
    text = rewritten("# mine\n", config)
    head, generated, *lines = text.splitlines()
    assert (head, generated) == ("# mine", GENERATED)
    assert sorted(lines) == [
        "client-output-buffer-limit normal 1 2 3",
        "client-output-buffer-limit pubsub 33554432 8388608 60",
        "client-output-buffer-limit slave 268435456 67108864 60",
        "loglevel debug",
        "timeout 5",
    ]
    assert rewritten(text, config) == text  # not a second time


def test_new_names_replace_the_oldest() -> None:
    config = Config()
    DIRECTIVES["list-max-listpack-size"].set_in(config, 16)
    assert rewritten("list-max-ziplist-size 5\n", config) == "list-max-listpack-size 16\n"


def test_written_data_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / "mill.conf"
    file.write_text("# x\nport 7000\n")
    file.chmod(0o640)
    config = load(file, ["--save", "900 1 60 2", "--requirepass", "two 'words'"])
    config.notify_keyspace_events = "g$xKE"
    config.latency_tracking_info_percentiles = (1.0, 99.99999)
    rewrite_file(file, config)
    again = load(file, [])
    assert again.latency_tracking_info_percentiles == (1.0, 99.99999)
    assert {name: again.shown(name) for name in DIRECTIVES} == {
        name: config.shown(name) for name in DIRECTIVES
    }
    assert file.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.iterdir()] == ["mill.conf"]


def settings_of(file: Path, users: list[list[bytes]]) -> tuple[Config, Settings]:
    config = load(file, [])
    return config, Settings(config, file, Mock(), lambda: users, Mock())


def test_a_member_of_a_cluster_in_etcd_starts_with_its_new_file(tmp_path: Path) -> None:
    file = tmp_path / "mill.conf"
    file.write_text("# mine\ncluster-name prod\ncluster-etcd http://a:1\ncluster-announce-port 7\n")
    config, settings = settings_of(file, [[b"user", b"ann", b"on"]])
    settings.set([(b"maxmemory", b"1gb"), (b"cluster-announce-port", b"9")])
    settings.rewrite()
    assert file.read_text().splitlines() == [
        "# mine", "cluster-name prod", "cluster-etcd http://a:1", "cluster-announce-port 9",
        GENERATED, "maxmemory 1073741824",
    ]  # fmt: skip
    again = load(file, [])
    assert again == config
    assert not again.user_lines  # they are in etcd


def test_the_file_of_all_nodes_of_a_machine_is_not_written(tmp_path: Path) -> None:
    file = tmp_path / "mill.conf"
    file.write_text("cluster-enabled yes\n")
    _, settings = settings_of(file, [])
    with pytest.raises(CommandError, match="the configuration file is that of all nodes"):
        settings.rewrite()


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "real.conf", tmp_path / "link.conf"
    target.write_text("port 7000\n")
    link.symlink_to(target)
    rewrite_file(link, Config(port=7001))
    assert link.is_symlink()
    assert target.read_text() == "port 7001\n"


@given(st.text(st.characters(codec="utf-8")))
def test_any_text_is_one_word_again(text: str) -> None:
    line = "requirepass " + quoted(text)
    assert "\n" not in line
    assert words_of(line.encode()) == ["requirepass", text]
