"""Debian's redis_exporter, promtool and Prometheus with our metrics.

redis_exporter runs next to a server with every kind of series, and each of its series is on our
page. Values that do not change between the two are equal.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.certificates import Authority
from tests.support.client import RawClient
from tests.support.http import Series, fetch, scrape, series_of, value
from tests.support.roles import PASSWORD, add_user, allowed_harm, in_role, user_of
from tests.support.server import Server, free_port
from tests.support.waiting import wait_until

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"

# Series about the exporter itself, and one that it derives from a field of Redis 8 by mistake: the
# fourth number of a database, which was KeyDB's count of cached keys.
ABOUT_ITSELF = re.compile(
    r"redis_exporter_|redis_target_scrape_request_errors|redis_last_key_groups_scrape|go_|promhttp_"
    r"|process_|redis_db_keys_cached$"
)
# The exporter's own requests change them, or time does.
CHANGING = re.compile(
    r"redis_(commands_|cpu_|errors_|total_error_replies|net_|memory_used|mem_|allocator|total_(reads|writes)|uptime|latency_"
    r"|connections_received|connected_clients|client_recent|stream_group_consumer_idle|start_time"
    r"|slowlog|last_slow|db_avg_ttl|master_last_io|connected_slave_lag|rdb_last_save"
    r"|keyspace_hits|master_repl|slave_repl|connected_slave_offset|repl_backlog)"
)


def installed(name: str) -> str:
    path = shutil.which(name)
    assert path, f"{name} is missing: scripts/need.sh test installs it"
    return path


@contextlib.contextmanager
def running(*command: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=log.parent)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def fill(client: RawClient) -> None:
    for number in range(20):
        client.call("XADD", "orders", "*", "n", str(number))
    client.call("XADD", "empty", "MAXLEN", "0", "*", "f", "v")
    client.call("XGROUP", "CREATE", "orders", "billing", "0")
    client.call("XGROUP", "CREATE", "orders", "unread", "$")
    client.call("XREADGROUP", "GROUP", "billing", "w1", "COUNT", "7", "STREAMS", "orders", ">")
    client.call("XDEL", "orders", "1-1")
    client.call("SET", "text", "value", "EX", "1000")
    client.call("GET", "orders")
    client.call("NOSUCHCOMMAND")
    client.call("LATENCY", "RESET")
    client.call("DEBUG", "SLEEP", "0.01")
    client.call("SELECT", "3")
    client.call("XADD", "other", "*", "f", "v")
    client.call("SELECT", "0")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """A primary with data, and its replica; both serve metrics."""
    folder = tmp_path_factory.mktemp("monitoring")
    directives = {
        "metrics-consumers": "yes",
        "latency-monitor-threshold": "1",
        "slowlog-log-slower-than": "1000",
    }
    primary = Server(folder / "primary", {**directives, "metrics-port": str(free_port())}).start()
    follow = {"replicaof": f"127.0.0.1 {primary.port}", "metrics-port": str(free_port())}
    replica = Server(folder / "replica", {**directives, **follow}).start()
    with primary.client() as client:
        fill(client)
    with replica.client() as client:
        wait_until(
            lambda: client.info("replication"),
            lambda facts: facts["master_link_status"] == "up",
            "the link",
        )
        wait_until(lambda: client.call("EXISTS", "text"), what="the data")
    yield primary, replica
    replica.kill()
    primary.kill()


def metrics_port(server: Server) -> int:
    return int(server.directives["metrics-port"])


@pytest.fixture(params=["primary", "replica"])
def monitored(request: pytest.FixtureRequest, servers: tuple[Server, Server]) -> Server:
    return servers[request.param == "replica"]


def test_every_series_of_redis_exporter_exists(monitored: Server, tmp_path: Path) -> None:
    port = free_port()
    command = exporter(monitored, port, "-check-streams", "db0=*,db3=*")
    with running(*command, log=tmp_path / "exporter.log"):
        wait_until(lambda: answers(port), what="the exporter")
        theirs = series_of(fetch(port, "/metrics").body.decode())
        theirs = {place: v for place, v in theirs.items() if not ABOUT_ITSELF.match(place[0])}
        assert len(theirs) > 150

        def missing() -> list[tuple[str, Any]]:
            ours = scrape(metrics_port(monitored))
            return sorted(
                (name, sorted(where)) for name, where in theirs if (name, where) not in ours
            )

        wait_until(missing, lambda found: found == [], "every series of the exporter")
        ours = scrape(metrics_port(monitored))
    steady = {place for place in theirs if not CHANGING.match(place[0])}
    assert len(steady) > 100
    different = {
        place: (theirs[place], ours[place]) for place in steady if theirs[place] != ours[place]
    }
    assert different == {}


def exporter(server: Server, port: int, *more: str) -> tuple[str, ...]:
    return (
        installed("prometheus-redis-exporter"),
        "-redis.addr", f"redis://127.0.0.1:{server.port}",
        "-web.listen-address", f"127.0.0.1:{port}",
        *more,
    )  # fmt: skip


def test_the_exporter_does_its_work_in_its_role(
    servers: tuple[Server, Server], tmp_path: Path
) -> None:
    role, port = "redis_exporter, monitoring", free_port()
    with user_of(servers[0], role):
        login = ("-redis.user", in_role(role), "-redis.password", PASSWORD)
        command = exporter(servers[0], port, *login, "-export-client-list")
        with running(*command, log=tmp_path / "exporter.log"):
            wait_until(lambda: answers(port), what="the exporter")
            page = fetch(port, "/metrics").body.decode()
    for name in ("redis_up 1", "redis_slowlog_length", "redis_config_"):
        assert name in page


def answers(port: int, path: str = "/metrics") -> bool:
    try:
        return fetch(port, path).status == 200
    except OSError:
        return False


def test_promtool_accepts_the_page(monitored: Server) -> None:
    """Its other remarks are about the style of redis_exporter's names."""
    page = fetch(metrics_port(monitored), "/metrics").body
    found = subprocess.run([installed("promtool"), "check", "metrics"], input=page,
                           capture_output=True, check=False)  # fmt: skip
    remarks = (found.stdout + found.stderr).decode().splitlines()
    assert [line for line in remarks if not line.startswith("redis_")] == []


METRICS_PAGE = (DEPLOY.parent / "docs" / "metrics.md").read_text()
RULE_TESTS = [
    *("test", "rules"),
    *("alerts_test.yml", "alerts_days_test.yml", "cluster_alerts_test.yml"),
]
CONFIG_CHECK = ["check", "config", "prometheus.yml", "prometheus-cluster.yml"]


def test_alert_rules() -> None:
    for words in (CONFIG_CHECK, RULE_TESTS):
        found = subprocess.run([installed("promtool"), *words], cwd=DEPLOY / "prometheus",
                               capture_output=True, text=True, check=False)  # fmt: skip
        assert found.returncode == 0, found.stdout + found.stderr


def test_every_alert_has_a_test() -> None:
    files = ("alerts.yml", "cluster_alerts.yml")
    rules = "".join((DEPLOY / "prometheus" / name).read_text() for name in files)
    tests = "".join((DEPLOY / "prometheus" / name).read_text() for name in RULE_TESTS[2:])
    named = set(re.findall(r"alert: (\w+)", rules))
    assert named == set(re.findall(r"alertname: (\w+)", tests))
    assert len(named) > 10
    used = set(re.findall(r"millstream_(?:cluster|gateway)_\w+", rules))
    assert used <= set(re.findall(r"^\| `(\w+)` \|", METRICS_PAGE, re.M))


SCRAPER = "Prometheus, with `metrics-auth yes`"
PROMETHEUS = """\
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: millstream
    static_configs: [{{targets: ["127.0.0.1:{primary}", "127.0.0.1:{replica}"]}}]
  - job_name: protected
    scheme: https
    tls_config: {{ca_file: "{authority}"}}
    basic_auth: {{username: "{scraper}", password: secret}}
    static_configs: [{{targets: ["127.0.0.1:{protected}"]}}]
"""


@pytest.fixture(scope="module")
def prometheus(
    servers: tuple[Server, Server], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], list[Any]]]:
    """Runs a query of PromQL on a Prometheus that has scraped the servers several times."""
    folder, port = tmp_path_factory.mktemp("prometheus"), free_port()
    authority = Authority(folder)
    protected = Server(folder / "protected", {
        **authority.directives(), "tls-port": str(free_port()), "tls-auth-clients": "no",
        "metrics-port": str(free_port()), "metrics-tls": "yes", "metrics-auth": "yes",
    }).start()  # fmt: skip
    with protected.client() as client:
        add_user(client, SCRAPER)
    names, all_servers = ("primary", "replica", "protected"), (*servers, protected)
    ports = dict(zip(names, map(metrics_port, all_servers), strict=True))
    text = PROMETHEUS.format(**ports, authority=authority.file, scraper=in_role(SCRAPER))
    (folder / "prometheus.yml").write_text(text)
    command = (
        installed("prometheus"), "--config.file", "prometheus.yml", "--storage.tsdb.path", "data",
        "--web.listen-address", f"127.0.0.1:{port}",
    )  # fmt: skip

    def query(text: str) -> list[Any]:
        path = "/api/v1/query?query=" + urllib.parse.quote(text)
        answer = json.loads(fetch(port, path).body)
        assert answer["status"] == "success", answer
        return list(answer["data"]["result"])

    with running(*command, log=folder / "prometheus.log"):
        wait_until(lambda: answers(port, "/-/ready"), what="Prometheus", deadline_s=60)
        wait_until(
            lambda: query("min(count_over_time(up[1m]))"),
            lambda found: bool(found) and float(found[0]["value"][1]) >= 3,
            "three scrapes of each server",
            deadline_s=60,
        )
        yield query
    assert allowed_harm(protected, SCRAPER) == []
    protected.kill()


def panels() -> Iterator[tuple[str, str]]:
    """(title, query) of each query of the dashboard, for all servers and streams."""
    board = json.loads((DEPLOY / "grafana" / "millstream.json").read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            text = target["expr"].replace("$__rate_interval", "1m")
            yield panel["title"], re.sub(r"\$\w+", ".*", text)


def test_every_panel_of_the_dashboard_has_data(prometheus: Callable[[str], list[Any]]) -> None:
    queries = list(panels())
    assert len(queries) > 20
    assert [title for title, text in queries if not prometheus(text)] == []


def test_prometheus_scrapes_without_errors(prometheus: Callable[[str], list[Any]]) -> None:
    assert {row["value"][1] for row in prometheus("up")} == {"1"}
    assert prometheus('redis_up{job="protected"}')
    (row,) = prometheus('redis_stream_group_messages_pending{group="billing", instance=~".*"} > 6')[
        :1
    ]
    assert row["metric"]["stream"] == "orders"


def test_a_replica_is_no_refusal(servers: tuple[Server, Server]) -> None:
    replica = metrics_port(servers[1])
    assert fetch(replica, "/readyz").status == 200
    series: Series = scrape(replica)
    assert value(series, "millstream_writes_refused") == 0
