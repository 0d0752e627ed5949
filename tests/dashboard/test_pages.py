"""The dashboard in Chromium: pages, hostile names, following, actions, accessibility."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.dashboard.conftest import (
    HOSTILE,
    SCRIPT,
    Board,
    Visit,
    fill,
    fill_jobs,
    fill_managed,
    in_a_loop,
)
from tests.support.client import RawClient, as_list
from tests.support.http import Response, fetch
from tests.support.resp import Null, Simple
from tests.support.roles import user_of
from tests.support.server import Server, free_port
from tests.support.waiting import wait_until

from millstream.dashboard.sampler import Sampler
from millstream.dashboard.server_link import ServerLink

STATIC = Path(__file__).resolve().parents[2] / "dashboard" / "static"
Visits = Callable[..., Visit]
Boards = Callable[..., Board]


def pages_of(board: Board) -> list[str]:
    managed = [
        board.path("/stream", b"mail"),
        board.path("/stream", b"mail:dead"),
        board.path("/group", b"mail", name=b"senders"),
    ]
    return (managed if board.has_rules else []) + [
        board.address + "/",
        board.address + "/?sort=lag&search=o",
        board.path("/stream", b"orders"),
        board.path("/stream", b"mixed"),
        board.path("/group", b"orders", name=b"billing"),
        board.address + "/clients",
        board.address + "/slowlog",
        board.address + "/server",
    ]


@pytest.mark.parametrize(
    ("board", "width", "scheme"),
    [("ours", 400, "dark"), ("ours", 1400, "light")],
    indirect=["board"],
)
def test_every_page_is_accessible(board: Board, visit: Visits, width: int, scheme: str) -> None:
    """No serious finding of axe-core at either width and in either scheme, and no page is wider
    than the window."""
    seen = visit(width, scheme)
    findings = []
    for address in pages_of(board):
        answer = seen.page.goto(address)
        assert answer is not None
        assert answer.status == 200, address
        findings += [f"{address}: {finding}" for finding in seen.serious_findings()]
        assert seen.page.locator("h1").count() == 1
        for window in (400, 1400):
            seen.page.set_viewport_size({"width": window, "height": 900})
            seen.page.wait_for_function(
                "width => document.documentElement.scrollWidth <= width", arg=window
            )
        seen.page.set_viewport_size({"width": width, "height": 900})
    assert findings == []


def test_the_overview_searches_and_sorts(board: Board, visit: Visits) -> None:
    page = visit().page
    page.goto(board.address + "/")
    assert page.get_by_role("row").filter(has_text="elsewhere").get_by_text("db2").is_visible()
    page.get_by_label("Key contains").fill("order")
    page.get_by_role("button", name="Search").click()
    page.wait_for_url("**search=order*")
    row = page.get_by_role("row").filter(has_text="orders")
    assert row.get_by_role("cell").all_inner_texts()[0] == "70"
    page.get_by_role("link", name="Largest lag").click()
    page.wait_for_url("**sort=lag*")
    assert page.locator("th[aria-sort=descending]").inner_text() == "Largest lag"
    assert page.locator("tbody tr").first.get_by_role("cell").nth(4).inner_text() == "61"


def test_the_overview_keeps_itself_current(board: Board, ours: Server, visit: Visits) -> None:
    page = visit().page
    page.goto(board.address + "/")
    with page.expect_response(lambda answer: "sort=key" in answer.url):
        pass
    assert page.get_by_role("link", name="orders").is_visible()


def test_entries_older_newer_and_at_a_time(board: Board, visit: Visits) -> None:
    page = visit().page
    page.goto(board.path("/stream", b"orders"))
    first = page.locator("table.entries tbody tr").first
    assert first.get_by_role("cell").all_inner_texts()[2:] == ["69", "open"]
    time = first.locator("time")
    assert time.inner_text() == "2023-11-14 17:14:29"  # in New York
    assert time.get_attribute("title") == "2023-11-14 22:14:29 UTC"
    page.get_by_role("link", name="Older", exact=True).click()
    page.wait_for_url("**before=*")
    assert page.locator("table.entries tbody tr").count() == 20
    page.get_by_role("link", name="Newer", exact=True).click()
    page.wait_for_url("**after=*")
    assert page.locator("table.entries tbody tr").count() == 50
    page.get_by_label("Up to an ID or a time").fill("2023-11-14 22:13:25")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**at=*")
    cells = page.locator("table.entries tbody tr").first.get_by_role("cell").all_inner_texts()
    assert cells[2] == "5"
    page.get_by_role("link", name="As raw fields").click()
    page.wait_for_url("**show=raw*")
    assert page.locator("dl.fields dt").first.inner_text() == "id"


def test_binary_and_long_values(board: Board, visit: Visits) -> None:
    page = visit().page
    page.goto(board.path("/stream", b"mixed"))
    text = page.locator("table.entries").inner_text()
    assert "0xff ff ff" in text
    assert "(1000 bytes)" in text
    assert "(10000 bytes)" in text
    assert len(text) < 2000


@pytest.mark.parametrize(
    ("board", "name"), [("ours", HOSTILE), ("redis", SCRIPT)], indirect=["board"]
)
def test_hostile_names_are_only_text(board: Board, visit: Visits, name: bytes) -> None:
    page = visit().page
    for address in (
        board.address + "/",
        board.path("/stream", name),
        board.path("/group", name, name=name),
        board.address + "/slowlog",
        board.address + "/?search=" + quote(name, safe=""),
    ):
        page.goto(address)
        assert "millstream" in page.title()
        assert page.locator("main img, main script").count() == 0
        assert "49" not in page.locator("h1").inner_text()
    page.goto(board.path("/group", name, name=name))
    assert page.get_by_text("Pending entries").first.is_visible()


@pytest.mark.parametrize(
    ("name", "text"), [(b"  ", r"\u0020\u0020"), (b" a  b\xc2\xa0", r"\u0020a \u0020b\u00a0")]
)
def test_spaces_in_a_name_are_visible(
    ours: Server, new_board: Boards, visit: Visits, name: bytes, text: str
) -> None:
    board = new_board(ours)
    with ours.client() as client:
        client.call("XADD", name, "*", "f", "v")
        page = visit().page
        page.goto(board.address + "/?search=" + quote(name, safe=""))
        page.get_by_role("link", name=text, exact=True).click()
        page.wait_for_url("**/stream?**")
        assert page.locator("h1").inner_text() == text
        client.call("DEL", name)


@pytest.fixture
def shown_server(board: Board, request: pytest.FixtureRequest) -> Server:
    """The server that the board shows."""
    server: Server = request.getfixturevalue(request.node.callspec.params["board"])
    return server


def test_a_stream_cannot_be_followed_before_the_script_is_there(
    board: Board, shown_server: Server, visit: Visits
) -> None:
    page = visit().page
    scripts: list[Any] = []
    page.route("**/app.js", lambda route: scripts.append(route))  # not answered yet
    with shown_server.client() as client:
        client.call("XADD", "live", "*", "n", "0")
    page.goto(board.path("/stream", b"live"), wait_until="commit")
    button = page.get_by_role("button", name="Follow live")
    button.wait_for()
    assert button.is_disabled()
    scripts[0].continue_()
    button.click()
    page.get_by_text("Following, 0 new").wait_for()


def test_a_stream_is_followed_live(board: Board, shown_server: Server, visit: Visits) -> None:
    page = visit().page
    with shown_server.client() as client:
        client.call("DEL", "live")
        client.call("XADD", "live", "*", "n", "0")
        page.goto(board.path("/stream", b"live"))
        page.get_by_role("button", name="Follow live").click()
        page.get_by_text("Following, 0 new").wait_for()
        for number in range(1, 4):
            client.call("XADD", "live", "*", "n", str(number))
        client.call("XADD", "live", "*", SCRIPT, HOSTILE)
        page.get_by_text("Following, 4 new").wait_for()
        rows = page.locator("table.entries tr.new").all_inner_texts()
        assert len(rows) == 4
        assert rows[1].endswith("3")
        page.get_by_role("button", name="Follow live").click()
        client.call("DEL", "live")


def test_a_stream_that_cannot_be_followed(
    board: Board, shown_server: Server, visit: Visits
) -> None:
    """The reason is shown, and nothing is asked again until the button is pressed."""
    page = visit().page
    with shown_server.client() as client:
        client.call("XADD", "replaced", "*", "n", "0")
        page.goto(board.path("/stream", b"replaced"))
        client.call("DEL", "replaced")
        client.call("SET", "replaced", "a string")
        button = page.get_by_role("button", name="Follow live")
        button.click()
        page.get_by_text("WRONGTYPE").wait_for()
        assert button.get_attribute("aria-pressed") == "false"
        assert page.evaluate("followed") is None
        client.call("DEL", "replaced")
        button.click()
        page.get_by_text("Following, 0 new").wait_for()
        assert button.get_attribute("aria-pressed") == "true"
        button.click()
        client.call("DEL", "replaced")


def test_the_chart_is_also_a_table(board: Board, visit: Visits) -> None:
    page = visit().page
    page.goto(board.path("/stream", b"orders"))
    page.locator(".chart canvas").wait_for(timeout=20_000)
    assert page.evaluate("chart.scales.x.max - chart.scales.x.min") == 900
    page.get_by_text("Rates as a table").click()
    assert page.locator("table.rates tbody tr").first.locator("td").nth(1).inner_text() == "0/s"


# ---------------------------------------------------------------- a server that goes away


def test_a_server_that_is_killed_and_restarted(
    tmp_path: Path, new_board: Boards, visit: Visits
) -> None:
    server = Server(tmp_path / "data").start()
    try:
        with server.client() as client:
            fill(client)
        board = new_board(server)
        seen = visit()
        page = seen.page
        page.goto(board.address + "/")
        other = visit()
        other.page.goto(board.path("/stream", b"orders"))
        other.page.locator("#rates").wait_for(state="attached")
        seen.expects_errors = other.expects_errors = True
        server.kill()
        page.get_by_text("does not answer").wait_for(timeout=15_000)
        other.page.get_by_text("does not answer").wait_for(timeout=15_000)
        assert page.get_by_role("link", name="orders").is_visible()  # the last known values
        answer = page.goto(board.address + "/")
        assert answer is not None
        assert answer.status == 503
        assert page.get_by_role("alert").last.is_visible()
        assert "Traceback" not in page.content()
        server.start()
        page.get_by_role("link", name="orders").wait_for()  # without a click
        assert page.locator("#offline").is_hidden()
    finally:
        server.kill()


# ---------------------------------------------------------------- actions


def test_actions_are_absent_unless_enabled(board: Board, visit: Visits) -> None:
    page = visit().page
    page.goto(board.path("/group", b"orders", name=b"billing"))
    assert page.get_by_text("read only").is_visible()
    assert page.get_by_text("Acknowledge ...").count() == 0
    for path in ("/stream/delete", "/group/ack"):
        for method in ("GET", "POST"):
            assert fetch(board.port, f"{path}?db=0&key=orders&name=billing", method).status == 403


def test_actions_ask_first(ours: Server, new_board: Boards, visit: Visits) -> None:
    board = new_board(ours, "--actions")
    page = visit().page
    with ours.client() as client:
        fill_jobs(client)

        def pending() -> object:
            return client.call("XPENDING", "jobs", "g")

        page.goto(board.path("/group", b"jobs", name=b"g"))
        page.get_by_role("link", name="Claim").click()
        assert page.get_by_text("g (4 pending entries, 1 consumer)").is_visible()
        assert page.get_by_text("does not count as a delivery").is_visible()
        page.get_by_label("The consumer that gets them").fill("b")
        page.get_by_role("button", name="Claim").click()
        page.get_by_text("4 entries were claimed").wait_for()
        assert pending() == [4, b"1-0", b"4-0", [[b"b", b"4"]]]
        rows = client.call("XPENDING", "jobs", "g", "-", "+", "10")
        assert isinstance(rows, list)
        assert [row[3] for row in rows if isinstance(row, list)] == [1] * 4  # deliveries
        page.get_by_role("link", name="Acknowledge").click()
        page.get_by_role("link", name="Cancel").click()
        assert pending() == [4, b"1-0", b"4-0", [[b"b", b"4"]]]
        page.get_by_role("link", name="Acknowledge").click()
        page.get_by_role("button", name="Acknowledge").click()
        page.get_by_text("4 entries were acknowledged").wait_for()
        page.get_by_role("link", name="Delete ...").click()
        page.get_by_role("button", name="Delete the group").click()
        page.get_by_text("The group was deleted").wait_for()
        assert client.call("XINFO", "GROUPS", "jobs") == []
        page.get_by_role("link", name="Trim ...").click()
        page.get_by_label("Entries to keep").fill("3")
        page.get_by_role("button", name="Trim").click()
        page.get_by_text("7 entries were removed").wait_for()
        page.get_by_role("link", name="Trim ...").click()
        page.get_by_label("Entries to keep").fill("2")
        page.get_by_role("button", name="Trim").click()
        page.get_by_text("1 entry was removed").wait_for()
        page.get_by_role("link", name="Delete ...").click()
        page.get_by_role("button", name="Delete the stream").click()
        page.get_by_text("The stream was deleted").wait_for()
        assert client.call("EXISTS", "jobs") == 0


def test_a_managed_group_and_its_actions(ours: Server, new_board: Boards, visit: Visits) -> None:
    board = new_board(ours, "--actions")
    page = visit().page
    with ours.client() as client:
        fill_managed(client)

        def card(title: str) -> str:
            return page.locator(f"dl.cards div:has(dt:text-is('{title}')) dd").inner_text()

        def press(link: str, button: str, done: str) -> None:
            page.get_by_role("link", name=link).click()
            page.get_by_role("button", name=button).click()
            page.get_by_text(done).wait_for()

        page.goto(board.path("/group", b"mail", name=b"senders"))
        assert [card(title) for title in ("In flight", "Waiting", "Dead", "Dead letters")] == [
            "3", "2", "0", "1"
        ]  # fmt: skip
        rules = page.locator("section:has(#rules)").inner_text()
        for text in (
            "1 min", "10 min, 1 h 0 min", "Deliveries at most\n5", "mail:dead",
            "those with the same to", "Entries of a key in one reply\n2", "to PREFIX user",
        ):  # fmt: skip
            assert text in rules
        row = page.get_by_role("row").filter(has_text="1700000000002-1")
        assert row.get_by_text("waiting").is_visible()
        in_flight = page.get_by_role("row").filter(has_text="1700000000004-1")
        assert in_flight.get_by_text(re.compile("^in [0-9.]+ s$")).is_visible()
        press("Retry now", "Retry now", "2 entries are due now")
        rows = client.call("XPENDING", "mail", "senders", "-", "+", "2")
        assert rows == [[b"170000000000%d-1" % n, b"", -1, 1] for n in (2, 3)]
        read = ("XREADGROUP", "GROUP", "senders", "worker-3", "COUNT", "2", "STREAMS", "mail", ">")
        assert [entry for entry, _ in client.call(*read)[0][1]] == [rows[0][0], rows[1][0]]
        press("Give back entries of worker-2", "Give back", "2 entries were given back")
        assert client.call("XPENDING", "mail", "senders", "-", "+", "9", "worker-2") == []
        press("Pause", "Pause", "The group is paused until it is resumed")
        assert page.get_by_text("paused", exact=True).is_visible()
        assert client.call(*read) == Null.ARRAY
        press("Resume", "Resume", "The group was resumed")
        assert len(client.call(*read)[0][1]) == 2
        text = page.get_by_role("row").filter(has_text="no such address")
        text.get_by_role("link", name=re.compile("^1[78]")).last.click()
        page.get_by_role("link", name="1700000000001-1").click()  # from the copy to its source
        page.wait_for_url("**/stream?*key=mail&at=*")
        assert page.get_by_text("Held by").is_visible()
        page.get_by_role("link", name="senders").first.click()
        press("Redrive", "Redrive", "1 entry is due again. 0 dead letters stay.")
        assert client.call("XLEN", "mail:dead") == 0
        page.get_by_role("link", name="mail", exact=True).click()
        press("Cancel 4102444800000.1", "Cancel the entry", "The entry was cancelled")
        assert client.call("XLEN", "mail") == 9
        assert len(client.call("TSCHEDULED", "mail", "-", "+")) == 1
    line = (
        'action group/give-back db=0 stream="mail" group="senders" consumer="worker-2" number="0"'
    )
    assert line in board.log


def test_a_post_needs_the_token_and_the_origin(ours: Server, new_board: Boards) -> None:
    board = new_board(ours, "--actions")
    path = "/stream/delete?db=0&key=orders"
    form = fetch(board.port, path).body.decode()
    found = re.search(r'name="token" value="([^"]+)"', form)
    assert found is not None
    good = f"token={found[1]}".encode()
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    origin = {"Origin": board.address}
    for body, headers in (
        (b"", origin),
        (b"token=wrong", origin),
        (good, {}),
        (good, {"Origin": "http://evil.example"}),
        (good, {"Origin": "null"}),
    ):
        assert fetch(board.port, path, "POST", body, {**kind, **headers}).status == 403
    absent = fetch(board.port, "/stream/delete?db=0&key=absent", "POST", b"", {**kind, **origin})
    assert absent.status == 403  # the token is checked first
    with ours.client() as client:
        assert client.call("EXISTS", "orders") == 1
    refused = fetch(board.port, "/stream/trim?db=0&key=orders", "POST",
                    good + b"&number=-1", {**kind, **origin})  # fmt: skip
    assert refused.status == 400


def test_an_action_that_the_server_refuses(ours: Server, new_board: Boards) -> None:
    """Every action shows the same page."""
    with ours.client() as client:
        client.call("ACL", "SETUSER", "reader", "on", ">secret", "~*", "+@all", "-@write")
        board = new_board(ours, "--actions", login="reader:secret@")
        for path in ("/stream/delete", "/stream/trim", "/group/delete", "/group/pause"):
            path += "?db=0&key=orders&name=billing"
            found = re.search(
                r'name="token" value="([^"]+)"', fetch(board.port, path).body.decode()
            )
            assert found is not None
            headers = {"Origin": board.address}
            body = f"token={found[1]}&number=1".encode()
            answer = fetch(board.port, path, "POST", body, headers)
            assert answer.status == 403
            assert b"The server refused" in answer.body
            assert b"has no permissions" in answer.body
        lines = board.log.splitlines()[1:]
        assert len(lines) == 4
        assert all(
            "not done: User reader has no" in line and "address=127.0.0.1" in line for line in lines
        )
        client.call("ACL", "LOG", "RESET")
        client.call("ACL", "DELUSER", "reader")


# ---------------------------------------------------------------- a proxy

NGINX = """
daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log; worker_processes 1;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {folder}/1; proxy_temp_path {folder}/2; fastcgi_temp_path {folder}/3;
    uwsgi_temp_path {folder}/4; scgi_temp_path {folder}/5;
    server {{ listen 127.0.0.1:{removing}; {removing_block} }}
    server {{ listen 127.0.0.1:{keeping}; {keeping_block} }}
}}
"""


@pytest.fixture
def nginx(tmp_path: Path) -> Iterator[Callable[[int, list[int]], None]]:
    """Serves a dashboard at /ms/ of two ports: the first one removes this path from requests."""
    started: list[subprocess.Popen[bytes]] = []
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    assert program, "nginx is missing: scripts/need.sh test installs it"

    def start(board: int, ports: list[int]) -> None:
        file = tmp_path / "nginx.conf"
        guide = (Path(__file__).parents[2] / "docs" / "dashboard.md").read_text()
        block = guide[guide.index("location /ms/ {") :].partition("\n```")[0]
        address = f"http://127.0.0.1:{board}"
        keeping = block.replace("http://127.0.0.1:6480", address)
        removing = block.replace("http://127.0.0.1:6480", f"{address}/")
        assert keeping.count(address) == removing.count(f"{address}/") == 1
        file.write_text(
            NGINX.format(
                folder=tmp_path, removing=ports[0], keeping=ports[1],
                removing_block=removing, keeping_block=keeping,
            )
        )  # fmt: skip
        started.append(subprocess.Popen([program, "-e", str(tmp_path / "error.log"), "-c", file]))
        for port in ports:
            wait_until(partial(is_listening, port), what="nginx")

    yield start
    for process in started:
        process.terminate()
        process.wait()


def is_listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
        return True
    return False


def test_everything_works_under_a_path_of_nginx(
    ours: Server, new_board: Boards, visit: Visits, nginx: Callable[..., None], tmp_path: Path
) -> None:
    """Pages, static files, following, forms and redirects, whether or not nginx removes the path
    from requests. nginx sends a Host header of its own."""
    ports = [free_port(), free_port()]
    hosts = [word for port in ports for word in ("--host", f"127.0.0.1:{port}")]
    file = tmp_path / "url"
    with ours.client() as client:
        client.call("ACL", "SETUSER", "proxied", "on", ">secret", "~*", "+@all")
        board = new_board(ours, "--actions", "--prefix", "/ms/", "--trust-proxy", *hosts,
                          login="proxied:secret@", url_file=file)  # fmt: skip
        assert "secret" not in board.command_line
        nginx(board.port, ports)
        for port in ports:
            fill_jobs(client)
            page = visit().page
            page.set_extra_http_headers({"X-Forwarded-User": "forged"})
            asked: list[str] = []
            page.on("request", lambda request, asked=asked: asked.append(request.url))
            page.goto(f"http://127.0.0.1:{port}/ms/")
            page.get_by_role("link", name="Clients").click()
            page.get_by_role("link", name="millstream", exact=True).click()
            page.get_by_role("searchbox").fill("job")
            page.get_by_role("button", name="Search").click()
            page.get_by_role("link", name="jobs").click()
            page.get_by_role("button", name="Follow live").click()
            page.get_by_text("Following, 0 new").wait_for()
            # The page says so when it is connected, before its server waits for entries.
            wait_until(lambda: int(client.info("clients")["blocked_clients"]), bool)
            client.call("XADD", "jobs", "*", "n", "1")
            page.get_by_text("Following, 1 new").wait_for()
            page.locator("#at").fill("5-0")
            page.locator("#at").press("Enter")
            page.get_by_role("link", name="Newest").click()
            page.get_by_role("link", name="Trim ...").click()
            page.get_by_label("Entries to keep").fill("3")
            page.get_by_role("button", name="Trim").click()
            page.get_by_text("8 entries were removed").wait_for()
            page.get_by_role("link", name="g", exact=True).click()
            page.get_by_role("link", name="Delete ...").click()
            page.get_by_role("button", name="Delete the group").click()
            page.get_by_text("The group was deleted").wait_for()
            assert len(asked) > 15
            assert all(url.startswith(f"http://127.0.0.1:{port}/ms/") for url in asked), asked
            page.close()
        client.call("ACL", "DELUSER", "proxied")
        client.call("DEL", "jobs")
    line = 'action stream/trim db=0 stream="jobs" number="3" user="-" address=127.0.0.1: 8 entries'
    assert board.log.count(line) == 2
    assert "forged" not in board.log


# ---------------------------------------------------------------- access


def test_other_hosts_and_headers(board: Board) -> None:
    assert fetch(board.port, "/", headers={"Host": "evil.example"}).status == 421
    assert fetch(board.port, "/", headers={"Host": f"localhost:{board.port}"}).status == 200
    headers = fetch(board.port, "/").headers
    assert headers["content-security-policy"].startswith("default-src 'self'; frame-ancestors")
    assert headers["x-content-type-options"] == "nosniff"
    assert "unsafe" not in headers["content-security-policy"]
    body = fetch(board.port, "/").body.decode()
    assert not re.search(r"<script(?! src=)|\son\w+=|\sstyle=", body)


def test_a_port_in_use_ends_the_program(ours: Server, new_board: Boards) -> None:
    with pytest.raises(
        AssertionError,
        match=f"Error: port {ours.port} on 127.0.0.1 is in use by another program; choose another",
    ):
        new_board(ours, "--port", str(ours.port))
    with pytest.raises(AssertionError, match=r"cannot listen on port 7000 on a\.\.b: no such addr"):
        new_board(ours, "--bind", "a..b", "--port", "7000", "--password-file", __file__)


def test_it_stops_while_it_connects() -> None:
    """A cancellation can get lost in asyncio.wait_for of Python 3.11, which redis-py uses."""

    async def start_and_stop(server: asyncio.Server, turns: int) -> None:
        port = server.sockets[0].getsockname()[1]
        sampler = Sampler(ServerLink(f"redis://127.0.0.1:{port}"))
        sampler.start()
        for _ in range(turns):
            await asyncio.sleep(0)
        done, _ = await asyncio.wait([asyncio.create_task(sampler.stop())], timeout=10)
        assert done, f"it does not stop, {turns} turns after the start"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1000):
            writer.write(b"-ERR no\r\n")
        writer.close()

    async def run() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            for turns in range(40):
                await start_and_stop(server, turns)

    in_a_loop(run())


def test_other_addresses_need_a_password(ours: Server, new_board: Boards, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="needs --password-file"):
        new_board(ours, "--bind", "0.0.0.0")
    file = tmp_path / "password"
    file.write_text("secret\n")
    board = new_board(ours, "--bind", "0.0.0.0", "--password-file", str(file))
    assert fetch(board.port, "/").status == 401
    wrong = {"Authorization": "Basic eDp3cm9uZw=="}
    right = {"Authorization": "Basic eDpzZWNyZXQ="}
    assert fetch(board.port, "/", headers=wrong).status == 401
    assert fetch(board.port, "/", headers=right).status == 200
    assert fetch(board.port, "/", headers={**right, "Host": "evil.example"}).status == 421


@pytest.mark.parametrize(
    ("path", "status"),
    [("/stream", 400), ("/stream?db=x&key=a", 400), ("/stream?db=0&key=absent", 404),
     ("/group?db=0&key=orders&name=absent", 404), ("/stream?db=0&key=orders&at=never", 400),
     ("/stream?db=0&key=orders&at=18446744073709551616", 400),
     ("/stream?db=0&key=orders&at=5-", 400), ("/stream?db=0&key=orders&at=5.1", 200),
     ("/stream?db=0&key=orders&at=18446744073709551615-1", 200),
     ("/stream?db=99&key=orders", 403), ("/nothing", 404), ("/static/../app.py", 404),
     ("/?page=0&sort=unknown", 200), ("/?search=%ff%00", 200)],
)  # fmt: skip
def test_wrong_addresses_get_a_message(board: Board, path: str, status: int) -> None:
    answer = fetch(board.port, path)
    assert answer.status == status
    assert b"Traceback" not in answer.body


def test_a_group_shows_the_entries_that_it_missed(ours: Server, new_board: Boards) -> None:
    board = new_board(ours)
    with ours.client() as client:
        client.call("XGROUP", "CREATE", "lost", "g", "0", "MKSTREAM")
        for _ in range(3):
            client.call("XADD", "lost", "MAXLEN", "1", "*", "f", "v")
        page = fetch(board.port, "/group?db=0&key=lost&name=g")
        assert b"trimmed unread</dt><dd>2</dd>" in page.body
        assert (
            b"trimmed unread" not in fetch(board.port, "/group?db=0&key=orders&name=billing").body
        )
        client.call("DEL", "lost")


def test_the_server_has_little_to_do(ours: Server, new_board: Boards, visit: Visits) -> None:
    """With 1,000 streams, XINFO is sent only for the streams of the page."""
    with ours.client() as client:
        client.call("SELECT", "5")
        for number in range(1000):
            client.call("XADD", f"many:{number:04}", "*", "f", "v")
        board = new_board(ours)
        page = visit().page
        page.goto(board.address + "/")
        client.call("CONFIG", "RESETSTAT")
        for _ in range(2):
            with page.expect_response(lambda answer: "sort=key" in answer.url):
                pass
        stats = client.info("commandstats")
        calls = int(re.findall(r"calls=(\d+)", stats["cmdstat_xinfo|stream"])[0])
        assert 50 <= calls <= 400
        client.call("FLUSHDB")
        client.call("SELECT", "0")


def test_a_dashboard_does_its_work_in_its_role(ours: Server, new_board: Boards) -> None:
    with user_of(ours, "dashboard") as login:
        board = new_board(ours, login=login)
        wait_until(lambda: fetch(board.port, "/").status == 200, what="the server")
        visit_all(board)
        board.stop()


def test_actions_are_done_in_their_role(ours: Server, new_board: Boards) -> None:
    with ours.client() as client:
        fill_jobs(client)
    with user_of(ours, "dashboard with `--actions`") as login:
        board = new_board(ours, "--actions", login=login)
        visit_all(board)
        for path, form in (
            ("/group/ack", "number=0"),
            ("/group/claim", "number=0&text=b"),
            ("/group/delete", ""),
            ("/stream/trim", "number=3"),
            ("/stream/delete", ""),
        ):
            if path == "/group/claim":
                with ours.client() as client:
                    client.call("XREADGROUP", "GROUP", "g", "a", "STREAMS", "jobs", ">")
            act(board, f"{path}?db=0&key=jobs&name=g", form)
        with ours.client() as client:
            fill_managed(client)
        assert fetch(board.port, "/stream?db=0&key=mail").status == 200
        for path, form in (
            ("/group/retry", ""),
            ("/group/give-back", "number=0"),
            ("/group/redrive", "number=10"),
            ("/group/pause", "number=1"),
            ("/stream/cancel", ""),
        ):
            names = "name=senders&consumer=worker-2&ticket=4102444800000.1"
            act(board, f"{path}?db=0&key=mail&{names}", form)
        with ours.client() as client:
            assert client.call("EXISTS", "jobs") == 0
        board.stop()


@pytest.mark.parametrize("lacking", ["multi", "xclaim", "tnack", "xgroup|delconsumer"])
def test_a_retry_without_a_right_changes_nothing(
    ours: Server, new_board: Boards, lacking: str
) -> None:
    with ours.client() as client:
        fill_managed(client)
        held = client.call("XPENDING", "mail", "senders", "-", "+", "9")
        assert client.call(
            "ACL", "SETUSER", "few", "on", ">x", "~*", "+@all", f"-{lacking}"
        ) == Simple("OK")
        board = new_board(ours, "--actions", login="few:x@")
        path = "/group/retry?db=0&key=mail&name=senders"
        answer = submit(board, path, "")
        assert b"no permissions" in answer.body, answer
        after = client.call("XPENDING", "mail", "senders", "-", "+", "9")
        assert [as_list(row)[:2] for row in as_list(after)] == [
            as_list(row)[:2] for row in as_list(held)
        ]
        assert client.call("ACL", "DELUSER", "few") == 1
        board.stop()


def visit_all(board: Board) -> None:
    addresses = [address[len(board.address) :] for address in pages_of(board)]
    addresses += ["/stream?db=0&key=orders&from=1700000000000-0", "/stream?db=2&key=elsewhere"]
    assert [fetch(board.port, address).status for address in addresses] == [200] * len(addresses)
    with socket.create_connection(("127.0.0.1", board.port), 20) as browser:
        request = f"GET /stream/tail?db=0&key=orders HTTP/1.1\r\nHost: 127.0.0.1:{board.port}\r\n"
        browser.sendall(f"{request}Last-Event-ID: 0-0\r\n\r\n".encode())
        seen = b""
        while b"data:" not in seen:  # an entry that XREAD has found
            part = browser.recv(65536)
            assert part, seen
            seen += part


def act(board: Board, path: str, form: str) -> None:
    answer = submit(board, path, form)
    assert answer.status == 303, answer


def submit(board: Board, path: str, form: str) -> Response:
    """Press the button of an action's page."""
    page = fetch(board.port, path).body.decode()
    found = re.search(r'name="token" value="([^"]+)"', page)
    assert found is not None, page
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Origin": board.address}
    body = f"token={found[1]}&{form}".encode()
    return fetch(board.port, path, "POST", body, headers)


def test_vendored_files_are_those_of_the_packages() -> None:
    page = (STATIC / "VENDORED.md").read_text()
    rows = re.findall(r"^\| `([^`]+)` .* `([0-9a-f]{64})` \|$", page, re.MULTILINE)
    assert len(rows) == 3
    for name, digest in rows:
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == digest
    assert (STATIC / "htmx.LICENSE.txt").exists()
    assert (STATIC / "uPlot.LICENSE.txt").exists()


SHOTS = os.environ.get("MILLSTREAM_SCREENSHOTS")


# Streams of a shop: key, entries, entries that were read.
SHOP = (
    ("orders", 412, 389),
    ("payments", 389, 389),
    ("clicks:eu", 960, 700),
    ("clicks:us", 880, 880),
    ("sensors:hall-1", 240, 0),
    ("audit", 75, 75),
)


def show_off(client: RawClient) -> None:
    for key, count, read in SHOP:
        for number in range(count):
            client.call("XADD", key, "*", "id", str(number), "status", "open")
        client.call("XGROUP", "CREATE", key, "billing", "0")
        for consumer in ("worker-1", "worker-2", "worker-3"):
            if read:
                client.call("XREADGROUP", "GROUP", "billing", consumer, "COUNT", str(read // 3),
                            "STREAMS", key, ">")  # fmt: skip
    client.call("TGROUP", "orders", "billing", "TIMEOUT", "30000", "BACKOFF", "2", "10000", "60000",
                "MAXDELIVER", "5", "DEADLETTER", "orders:dead")  # fmt: skip
    rows = client.call("XPENDING", "orders", "billing", "-", "+", "9")
    assert isinstance(rows, list)
    for fail, entry in zip(("FATAL", "FAIL", "FAIL"), rows, strict=False):
        client.call("TNACK", "orders", "billing", "worker-1", fail, "REASON", "card declined",
                    "IDS", "1", entry[0])  # fmt: skip
    for number in range(1000 - len(SHOP)):
        client.call("XADD", f"device:{number:03}", "*", "celsius", "21.5")


@contextlib.contextmanager
def load_on(server: Server) -> Iterator[None]:
    """Appends to the streams of the shop meanwhile."""
    stop = threading.Event()

    def append() -> None:
        with server.client() as client:
            while not stop.wait(0.01):
                for key, _, _ in SHOP:
                    client.call("XADD", key, "*", "id", "1", "status", "open")

    load = threading.Thread(target=append)
    load.start()
    try:
        yield
    finally:
        stop.set()
        load.join()


def test_screenshots(new_board: Boards, visit: Visits, tmp_path: Path) -> None:
    """The pictures of the guide: MILLSTREAM_SCREENSHOTS names the folder to write them to."""
    folder = Path(SHOTS) if SHOTS else tmp_path
    server = Server(tmp_path / "shop").start()
    with server.client() as client:
        show_off(client)
    board = new_board(server)
    streams, group = board.address + "/?sort=lag", board.path("/group", b"orders", name=b"billing")
    shots = (
        ("dashboard-streams", "light", 1400, 590, streams),
        ("dashboard-group", "dark", 1400, 780, group),
        ("dashboard-streams-narrow", "dark", 400, 800, streams),
        ("dashboard-group-narrow", "light", 400, 800, group),
    )
    with load_on(server):
        for name, scheme, width, height, address in shots if SHOTS else shots[:2]:
            page = visit(width, scheme).page
            page.set_viewport_size({"width": width, "height": height})
            page.goto(address)
            if address == streams:
                page.get_by_text(re.compile(r"[1-9][0-9]*/s$")).nth(3).wait_for()
            page.screenshot(path=folder / f"{name}.png")
            assert 5_000 < (folder / f"{name}.png").stat().st_size < 200_000
    server.kill()
