"""The configuration file of change data capture: valid contents, and the places of faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.cdc.config import CdcConfig, ConfigError, target_name, target_of
from millstream.cdc.config_file import load, parse
from millstream.cdc.streams.key_names import SourceKeys, apply_alive

WHOLE = """\
[millstream]
server = "redis://127.0.0.1:6455"
backlog_mb = 512
[destination]
url = "postgresql://etl:${PASSWORD}@warehouse/dw"
settings = { session_replication_role = "replica" }
[read]
copy_rate = 1000
[apply]
workers = 4
commit_delay = 2
spark = { "spark.executor.memory" = "2g" }
[[database]]
name = "shop"
source = [{ sid = "eu", url = "postgresql://eu/db" }, { sid = "us", url = "postgresql://us/db" }]
[database.tables]
orders = {}
[database.tables."sales.items"]
target = "items"
type = "history"
columns = ["id", "price"]
rename = { price = "amount" }
"""
SMALL = """\
[destination]
url = "postgresql://warehouse/dw"
[[database]]
name = "shop"
source = [{ sid = "eu", url = "postgresql://eu/shop" }]
[database.tables]
orders = {}
"""


def read(text: str, **environment: str) -> CdcConfig:
    return parse(text, Path("cdc.toml"), environment)


def test_a_whole_file_is_read() -> None:
    config = read(WHOLE, PASSWORD="secret")
    assert config.millstream.backlog_mb == 512
    assert config.destination.url == "postgresql://etl:secret@warehouse/dw"
    assert config.destination.settings == {"session_replication_role": "replica"}
    assert (config.apply.workers, config.apply.commit_delay) == (4, 2.0)
    assert [source.name for source in config.sources] == ["shop:eu", "shop:us"]
    orders, items = config.sources[0].tables
    assert (orders.full_name, orders.target, orders.type) == ("public.orders", "orders", "clone")
    assert (items.full_name, items.type, items.columns) == (
        "sales.items",
        "history",
        ("id", "price"),
    )
    assert (target_name(orders, config), target_name(items, config)) == (
        "public.orders",
        "public.items",
    )


def test_missing_settings_have_defaults() -> None:
    config = read(SMALL)
    assert (config.millstream.prefix, config.read.copy_ahead_mb) == ("cdc", 64)
    assert (config.destination.sid_column, config.apply.max_rows) == ("sid", 20000)


def test_slots_and_keys_are_named_after_the_source() -> None:
    text = SMALL.replace('"shop"', '"My-Shop"').replace('sid = "eu"', 'sid = "e:u%"')
    [source] = read(text).sources
    assert source.slot == "millstream_my_shop_e_u_"
    keys = SourceKeys("cdc", source)
    assert keys.changes(source.tables[0]) == "cdc:My-Shop:e%3Au%25:public.orders"
    assert keys.copy(source.tables[0]).endswith(":public.orders:copy")


@pytest.mark.parametrize(
    ("written", "schema", "name", "full_name"),
    [
        ("orders", "public", "orders", "public.orders"),
        ("sales.orders", "sales", "orders", "sales.orders"),
        ("a.b.c", "a.b", "c", '"a.b".c'),
        ('"my.table"', "public", "my.table", 'public."my.table"'),
        ('"my.schema"."my.table"', "my.schema", "my.table", '"my.schema"."my.table"'),
        ('sales."my.table"', "sales", "my.table", 'sales."my.table"'),
        ('"sales".orders', "sales", "orders", "sales.orders"),
        ('"my ""table"""', "public", 'my "table"', 'public.my "table"'),
        ('"""quoted"""', "public", '"quoted"', 'public."""quoted"""'),
        ('a "b"', "public", 'a "b"', 'public.a "b"'),
    ],
)
def test_a_table_may_be_named_as_in_sql(
    written: str, schema: str, name: str, full_name: str
) -> None:
    config = read(SMALL.replace("orders = {}", f"'{written}' = {{}}"))
    [table] = config.sources[0].tables
    assert (table.schema, table.name, table.full_name) == (schema, name, full_name)
    assert target_of(table, config) == ("public", name)
    again = read(SMALL.replace("orders = {}", f"'{full_name}' = {{ target = '{full_name}' }}"))
    [same] = again.sources[0].tables
    assert same.full_name == full_name
    assert target_name(same, again) == full_name


def test_tables_with_dots_in_their_names_are_different() -> None:
    tables = """'"a.b".c' = {}\n'a."b.c"' = { target = "d" }"""
    [one, other] = read(SMALL.replace("orders = {}", tables)).sources[0].tables
    assert one.full_name != other.full_name


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("backlog_mb = 512", "backlog = 512", r"cdc.toml:3: millstream.backlog is unknown; "),
        ("backlog_mb = 512", 'backlog_mb = "512"', r"cdc.toml:3: .* must be a whole number"),
        ("backlog_mb = 512", "backlog_mb = 0", r"cdc.toml:3: .* must be from 1 to"),
        ("backlog_mb = 512", "backlog_mb = true", r"cdc.toml:3: .* must be a whole number"),
        ("workers = 4", "workers = 4.5", r"cdc.toml:10: apply.workers must be a whole number"),
        ("[apply]", "[aply]", r"cdc.toml:9: aply is unknown; allowed are millstream, dest"),
        ('type = "history"', 'type = "log"', r"cdc.toml:20: .*type must be one of clone, append,"),
        ("price\"]", "price\", 3]", r"cdc.toml:21: .*columns must be a list of strings"),
        ('price = "amount"', "price = 1", r"cdc.toml:22: .*rename.price must be a string"),
        ("orders = {}", "orders = 1", r"cdc.toml:17: .*orders must be a table of options"),
        ('name = "shop"\n', "", r"database\[0\].name is missing"),
        ('sid = "eu", ', "", r"cdc.toml:15: .*source\[0\].sid is missing"),
        ('sid = "us"', 'sid = "EU"', r"shop:eu and shop:EU have the same slot name"),
        ("${PASSWORD}", "${PASSWORT}", r"cdc.toml:5: .*variable 'PASSWORT' is not set"),
        ('url = "postgresql://etl:${PASSWORD}@warehouse/dw"', "", r"destination.url is missing"),
        ('target = "items"', 'target = "orders"', r"share the target 'public.orders'"),
        ("[read]", '[read]\nmetrics = "127.0.0.1"', r"cdc.toml:8: read.metrics .* host:port, not"),
        ('price"]', 'id"]', r"cdc.toml:21: .*columns has a column twice"),
        ('target = "items"', 'target = "x."', r"cdc.toml:19: .*target must be a table's name, or"),
        ("127.0.0.1:6455", "x:secret#3@h:1", r"cdc.toml:2: millstream.server cannot be read as"),
        ("127.0.0.1:6455", "x:secret/3@h:1", r"cdc.toml:2: .* are written %2F and %23"),
        ("127.0.0.1:6455", "x:1#secret@h:1", r"cdc.toml:2: millstream.server cannot be read as"),
        ("@warehouse", "@secret@warehouse", r"cdc.toml:5: destination.url has two @: .* %40"),
        ("//eu/db", "//u:x@secret@eu/db", r"cdc.toml:15: .*source\[0\].url has two @: "),
        ("redis://127", "http://127", r"cdc.toml:2: millstream.server must be a URL such as"),
        ("orders = {}", '".orders" = {}', r"orders must be a table's name, or schema.table"),
        ('target = "items"', 'target = ""', r"cdc.toml:19: .*target must not be empty"),
        ("backlog_mb = 512", "password = 1234", r"cdc.toml:3: .*password must be a string$"),
        ("backlog_mb = 512", 'prefix = ""', r"cdc.toml:3: .*prefix must not be empty"),
        ('price = "amount"', 'price = "a", id = "a"', r"cdc.toml:22: .*the same name"),
        ("[read]", "[read", r"is not valid TOML: .*line 7"),
    ],
)  # fmt: skip
def test_a_fault_is_named_with_its_place(before: str, after: str, message: str) -> None:
    assert before in WHOLE
    with pytest.raises(ConfigError, match=message) as caught:
        read(WHOLE.replace(before, after, 1), PASSWORD="secret")
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_source_does_not_have_the_key_of_applys_report() -> None:
    text = SMALL.replace('name = "shop"', 'name = "apply"').replace('"eu"', '"alive"')
    [source] = read(text.replace('"apply"', '"apply2"')).sources
    assert SourceKeys("cdc", source).cuts != apply_alive("cdc")
    with pytest.raises(ConfigError, match=r"apply:alive has the key of apply's own report"):
        read(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"cdc.toml: database is missing or empty: at least one \[\[database\]\] is needed"),
        ("[database]", r"database is missing or empty: at least one"),
        (
            "[[database]]\nname = 'x'",
            r"cdc.toml.*: database\[0\].source is missing or empty: at least",
        ),
        (
            "[[database]]\nname = 'x'\nsource = [{ sid = 'a', url = 'postgresql://b' }]",
            r"database\[0\].tables is missing or empty: at least one table is needed",
        ),
    ],
)
def test_missing_settings_are_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(f"[destination]\nurl = 'postgresql://c'\n{text}")


def test_a_target_without_a_sid_column_has_one_source() -> None:
    text = WHOLE.replace("[read]", 'sid_column = ""\n[read]')
    with pytest.raises(ConfigError, match=r"shop:eu public.orders and shop:us public.orders share"):
        read(text, PASSWORD="")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no.toml cannot be read: No such file"):
        load(tmp_path / "no.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="is not UTF-8 at byte 0"):
        load(tmp_path / "binary.toml")


def test_the_error_for_an_unknown_source_names_the_sources() -> None:
    with pytest.raises(ConfigError, match="the sources are shop:eu, shop:us"):
        read(WHOLE, PASSWORD="").source("shop:de")
