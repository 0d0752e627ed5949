"""URLs with a password that is not percent-encoded: no error contains a part of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from millstream import client
from millstream.__main__ import main
from millstream.cdc.config import ConfigError
from millstream.cdc.config_file import parse
from millstream.client import aio
from millstream.dashboard.server_link import ServerLink
from millstream.errors import DataError
from millstream.pipeline.files import file_system
from millstream.pipeline.source_options import OptionError, check_server_url
from millstream.server_url import shown_url, split_url

URLS = [
    f"{scheme}://u:{password}@127.0.0.1:1"
    for scheme in ("redis", "rediss", "unix")
    for password in (
        "SEC/RET#PW",
        "SEC?RET@PW",
        "SEC#RET",
        "SEC/RET",
        "[SEC",
        "SEC]RET",
        "SEC/@RET",
    )
] + ["redis://u:SEC/RET", "redis://:SECRET", "redis://u:1/SEC@RET@127.0.0.1:1"]
PARTS = ("SEC", "RET", "PW")


def assert_hidden(text: str) -> None:
    assert not any(part in text for part in PARTS), text


@pytest.mark.parametrize("url", URLS)
def test_an_error_contains_no_part_of_a_password(url: str) -> None:
    places = [split_url, check_server_url, ServerLink, client.connect, aio.connect]
    for read in places:
        with pytest.raises(ValueError, match="%2F") as raised:
            read(url)
        assert_hidden(str(raised.value))
    with pytest.raises(OptionError):
        check_server_url(url)
    assert shown_url(url) is None


@pytest.mark.parametrize("url", ["redis://u:SEC/RET#PW@127.0.0.1:1", "redis://u:[SEC@h"])
@pytest.mark.parametrize(
    "words",
    [
        ["call", "PING"], ["health"], ["top"], ["tail", "s"], ["backup", "u"], ["dashboard"],
        ["export", "URL", "--format", "csv"],
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_a_command_prints_no_part_of_a_password(
    url: str, words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [url if word == "URL" else word for word in words]
    done = CliRunner().invoke(main, words, env={"MILLSTREAM_URL": url})
    assert done.exit_code
    assert isinstance(done.exception, SystemExit)
    assert "%2F" in done.output
    assert_hidden(done.output)


@pytest.mark.parametrize(
    "uri", ["s3://SEC:RET?PW@b/d", "s3a://SEC:RET/PW@b/d", "s3://SEC:RET#PW@b/d"]
)
def test_the_error_of_a_store_contains_no_part_of_a_key(uri: str) -> None:
    with pytest.raises(DataError) as raised:
        file_system(uri)
    assert_hidden(str(raised.value))


@pytest.mark.parametrize("url", ["postgresql://u:SEC/RET@h/d", "postgresql://u:1?SEC@h/d"])
def test_an_error_of_cdc_contains_no_part_of_a_password(url: str) -> None:
    text = f'[destination]\nurl = "{url}"\n[[database]]\nname = "a"\nurl = "postgresql://h/d"\n'
    with pytest.raises(ConfigError, match="%2F") as raised:
        parse(text, Path("cdc.toml"), {})
    assert_hidden(str(raised.value))


def test_urls_with_understood_passwords_are_read() -> None:
    assert shown_url("redis://u:p%2Fw%40@h:1/2?ssl_ca_certs=/f") == "redis://h:1/2"
    assert shown_url("redis://u:p@w@h:1") == "redis://h:1"  # as redis-py reads it
    assert shown_url("unix:///a@b/c.sock?db=1") == "unix:///a@b/c.sock"
    assert shown_url("unix://u:p@/tmp/c.sock") == "unix:///tmp/c.sock"
    assert shown_url("redis://[::1]:6455") == "redis://[::1]:6455"
    assert shown_url("http://u:p@h:1?a") == "h:1"
