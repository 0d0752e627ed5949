"""The web application: its routes, templates and errors."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

import jinja2
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from millstream import __version__
from millstream.dashboard import shown
from millstream.dashboard.actions import ACTIONS, Actions
from millstream.dashboard.guard import Guard, Tokens
from millstream.dashboard.link import Link, Refused, Unavailable
from millstream.dashboard.pages import Pages, query
from millstream.dashboard.sampler import Sampler

HERE = Path(__file__).resolve().parent


class Dashboard:
    """The state that all handlers share."""

    def __init__(self, url: str, has_actions: bool) -> None:
        """ValueError for an invalid URL."""
        self.url = url
        self.has_actions = has_actions
        self.sampler = Sampler(Link(url))
        self.tokens = Tokens()
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            auto_reload=False,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.globals.update(
            shown=shown, version=__version__, sampler=self.sampler, board=self
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


def make_app(
    url: str,
    *,
    has_actions: bool,
    hosts: Collection[str],
    any_address: bool = False,
    password: str | None = None,
) -> Starlette:
    """The application for the server at `url`. ValueError for an invalid URL."""
    board = Dashboard(url, has_actions)
    pages, actions = Pages(board), Actions(board)

    async def unavailable(request: Request, error: Exception) -> Response:
        return board.problem(request, 503, "The server does not answer", str(error))

    async def refused(request: Request, error: Exception) -> Response:
        return board.problem(request, 403, "The server refused", str(error))

    async def stopped(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        title = "Not found" if error.status_code == 404 else "This is not possible"
        return board.problem(request, error.status_code, title, error.detail)

    @contextlib.asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        board.sampler.start()
        yield
        await board.sampler.stop()

    reading = {
        "/": pages.overview,
        "/stream": pages.stream,
        "/stream/rates": pages.rates,
        "/stream/tail": pages.tail,
        "/group": pages.group,
        "/clients": pages.clients,
        "/slowlog": pages.slowlog,
        "/server": pages.server,
    }
    routes: list[Route | Mount] = [
        *(Route(path, handler, methods=["GET"]) for path, handler in reading.items()),
        *(Route(path, actions.handle, methods=["GET", "POST"]) for path in ACTIONS),
        Mount("/static", StaticFiles(directory=HERE / "static")),
    ]
    return Starlette(
        routes=routes,
        lifespan=life,
        middleware=[
            Middleware(Guard, hosts=hosts, any_address=any_address, password=password),
        ],
        exception_handlers={
            Unavailable: unavailable,
            Refused: refused,
            HTTPException: stopped,
        },
    )
