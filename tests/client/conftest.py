"""Fixtures of the client's tests: either API, connected to a live server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.client.apis import NAMES, Api
from tests.client.proxy import Proxy
from tests.support.server import Server


def url_of(server: Server) -> str:
    return f"redis://127.0.0.1:{server.port}"


@pytest.fixture(params=NAMES)
def api(request: pytest.FixtureRequest) -> Iterator[Api]:
    """The sync API, then the asyncio API."""
    api = Api(request.param)
    yield api
    api.close()


@pytest.fixture
def ms(api: Api, server: Server) -> Any:
    """A connection to the session's server."""
    return api.connect(url_of(server))


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    """A proxy before the session's server."""
    proxy = Proxy(server.port)
    yield proxy
    proxy.close()


@pytest.fixture
def through(api: Api, proxy: Proxy) -> Any:
    """A connection through the proxy."""
    return api.connect(proxy.url, timeout=2.0)


@pytest.fixture
def servers(new_server: Callable[..., Server]) -> Callable[[int], list[Server]]:
    """Makes some servers that belong to one test."""

    def make(count: int) -> list[Server]:
        return [new_server(f"server-{number}").start() for number in range(count)]

    return make
