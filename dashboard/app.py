"""The web application: its routes and errors."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Collection

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from millstream.dashboard.actions import ACTIONS, Actions
from millstream.dashboard.board import HERE, Dashboard
from millstream.dashboard.guard import Guard
from millstream.dashboard.pages import PageHandlers
from millstream.dashboard.proxied import WithoutPrefix
from millstream.dashboard.server_link import RequestRefused, Unavailable


def make_app(
    url: str,
    *,
    has_actions: bool,
    hosts: Collection[str],
    any_address: bool = False,
    password: str | None = None,
    prefix: str = "",
    trusts_proxy: bool = False,
) -> Starlette:
    """The application for the server at `url`. ValueError for an invalid URL."""
    board = Dashboard(url, has_actions, hosts, prefix)
    pages, actions = PageHandlers(board), Actions(board, trusts_proxy)

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
        "/nodes": pages.nodes,
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
            Middleware(WithoutPrefix, prefix=prefix),
            Middleware(Guard, hosts=hosts, any_address=any_address, password=password),
        ],
        exception_handlers={
            Unavailable: unavailable,
            RequestRefused: refused,
            HTTPException: stopped,
        },
    )
