"""Passwords do not appear in logs, with any message of a library about a connection."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from millstream.cdc.config_file import parse
from millstream.cdc.logs import Secrets, open_log

TEXT = """\
[millstream]
server = "redis://:redis%21word@127.0.0.1:6455"
[destination]
url = "host=warehouse password='it''s a secret' dbname=dw"
[[database]]
name = "shop"
source = [{{ sid = "eu", url = "{url}" }}]
tables = {{ orders = {{}} }}
"""


def complaint(url: str) -> str:
    """The error of libpq for a URL that it cannot read."""
    try:
        return str(conninfo_to_dict(url).get("host"))
    except psycopg.Error as error:
        return str(error)


def secrets(url: str) -> Secrets:
    return Secrets(parse(TEXT.format(url=url), Path("cdc.toml"), {}))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://cdc:s3cr3tword@eu:port/shop",
        "postgresql://cdc:s3cr3tword@eu/shop?nothing=1",
        "host=eu password=s3cr3tword none",
        "host=eu password = 's3cr3tword",
        "postgresql://cdc:s3cr3tword%zz@eu/shop",
        "postgresql://cdc:s3  cr3tword@eu/shop",
        "host=eu password=s3 cr3tword dbname=shop",
        "host=eu password=s3 cr3tword",
    ],
)
def test_an_unreadable_url_does_not_show_its_password(url: str) -> None:
    hide = secrets(url).hide
    assert "cr3tword" not in hide(complaint(url))
    if "s3cr3tword" in url:
        assert "cr3tword" not in hide(f"cannot connect to {url}: refused")


def test_a_password_that_is_a_word_stays_a_word_elsewhere() -> None:
    hide = secrets("postgresql://postgres:postgres@eu/shop").hide
    assert (
        hide('GRANT SELECT ON "orders" TO "postgres"') == 'GRANT SELECT ON "orders" TO "postgres"'
    )
    assert hide("redis://:redis!word@127.0.0.1:6455") == "redis://:***@127.0.0.1:6455"


def test_lines_are_one_line() -> None:
    assert secrets("dbname=x").hide("one\n\ttwo\n") == "one two"


def test_a_name_may_have_any_characters(capsys: pytest.CaptureFixture[str]) -> None:
    log = open_log("shop:100%s", secrets("dbname=x"))
    log.info("reading from %s", "0/1")
    assert capsys.readouterr().err.endswith(" INFO shop:100%s: reading from 0/1\n")
