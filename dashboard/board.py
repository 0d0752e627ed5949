"""The state that all handlers share, and the templates of pages."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote_to_bytes

import jinja2
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from millstream import __version__
from millstream.dashboard import shown
from millstream.dashboard.cluster_link import ClusterLink
from millstream.dashboard.guard import Tokens
from millstream.dashboard.sampler import Sampler


def query(request: Request) -> dict[str, bytes]:
    """The parameters of a URL as bytes, because keys may be any bytes."""
    found = {}
    for part in request.scope["query_string"].decode("ascii", "replace").split("&"):
        name, _, value = part.partition("=")
        found[name] = unquote_to_bytes(value.replace("+", " "))
    return found


def stream_key_of(values: dict[str, bytes]) -> tuple[int, bytes]:
    """The database and key of a request; 400 without them."""
    try:
        return int(values.get("db", b"0")), values["key"]
    except (KeyError, ValueError):
        raise HTTPException(400, "the address names no stream") from None


def form_values(body: bytes) -> dict[str, str]:
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))


HERE = Path(__file__).resolve().parent


class Dashboard:
    """The state that all handlers share."""

    def __init__(
        self, url: str, has_actions: bool, hosts: Collection[str] = (), prefix: str = ""
    ) -> None:
        """`hosts` are the names that browsers may use; `prefix` begins all paths that they ask for.
        ValueError for an invalid URL."""
        self.has_actions = has_actions
        self.prefix = prefix
        self.cluster = ClusterLink(url)
        self.sampler = Sampler(self.cluster)
        self.tokens = Tokens(hosts)
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            auto_reload=False,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.globals.update(
            shown=shown, version=__version__, sampler=self.sampler, board=self, cluster=self.cluster
        )
        for name in self._templates.list_templates():  # an upgrade may replace the files later
            self._templates.get_template(name)

    def page(
        self, request: Request, template: str, status: int = 200, **values: Any
    ) -> HTMLResponse:
        """A page, or only its changing part for a request of htmx."""
        done = query(request).get("done")
        text = self._templates.get_template(template).render(
            path=request.url.path,
            is_part=request.headers.get("hx-request") == "true",
            done=shown.readable(done) if done else None,
            **values,
        )
        return HTMLResponse(text, status)

    def problem(self, request: Request, status: int, title: str, text: str) -> Response:
        """A page that says what went wrong. While the server does not answer, the browser asks for
        the page again; a form is not sent again."""
        may_pass = status == 503 and request.method == "GET"
        return self.page(request, "problem.html", status, title=title, text=text, may_pass=may_pass)
