"""The surveys of `millstream top`: of one server, or of all nodes of its cluster.

All nodes are asked at the same time. One that does not answer costs a few seconds, and its streams
are missing.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from millstream.node_figures import (
    FoundNode,
    NodeFigures,
    is_of_cluster,
    is_of_gateway,
    read_shards,
    slot_nodes,
)
from millstream.remote import info_fields
from millstream.server_url import url_of_node
from millstream.slot_routing import Address
from millstream.tools.survey import Survey, take_survey
from millstream.tools.tool_connection import ToolConnection, Unreachable, is_error

NODE_S = 2.0  # for an answer of a node
THREADS_MAX = 32


class SurveyedServers:
    """The server of a URL, or the nodes of the cluster that it belongs to."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._given = ToolConnection(url)
        self._info: dict[str, str] | None = None  # of the cluster
        self._nodes: dict[Address, ToolConnection] = {}

    def close(self) -> None:
        for server in (self._given, *self._nodes.values()):
            server.close()

    def reconnect(self) -> None:
        """Connect until the server answers, or in a cluster any node."""
        if not is_of_cluster(self._info or {}):
            self._given.reconnect()
            self._info = None  # it may have been started again as another one
            return
        with suppress(Unreachable):
            self._given.reconnect(within_s=0)

    def survey(self, pattern: str, streams_max: int) -> Survey:
        """The streams of all nodes. Unreachable if none answers."""
        if self._info is None:
            (reply,) = self._given.pipeline([["INFO", "cluster"]])
            self._info = {} if is_error(reply) else info_fields(reply)
        if not is_of_cluster(self._info):
            return take_survey(self._given, pattern, streams_max)
        found = self._read_shards()
        serving = slot_nodes(found).nodes
        whole = Survey([], 0, True, time.monotonic())

        def look(node: FoundNode) -> tuple[NodeFigures, Survey | None]:
            return self._look(node, node.address in serving, pattern, streams_max)

        with ThreadPoolExecutor(min(len(found), THREADS_MAX)) as pool:
            looks = list(pool.map(look, found))
        whole.nodes = [figures for figures, _ in looks]
        if all(one.problem is not None for one in whole.nodes):
            if is_of_gateway(self._info):  # only it can be reached
                return take_survey(self._given, pattern, streams_max)
            raise Unreachable(str(whole.nodes[0].problem))
        for one in whole.nodes:
            one.set_lag(whole.nodes)
        for _, part in looks:
            if part is not None:
                whole.add(part, streams_max)
        return whole

    def _read_shards(self) -> list[FoundNode]:
        """The nodes, as the first one that answers tells them."""
        asked = Address(self._given.host, 0)
        for server in self._nodes.values():
            with suppress(Unreachable):
                reply = server.call("CLUSTER", "SHARDS")
                return read_shards(reply, asked, uses_tls=self._given.uses_tls)
        reply = self._given.call("CLUSTER", "SHARDS")
        return read_shards(reply, asked, uses_tls=self._given.uses_tls)

    def _look(
        self, node: FoundNode, serves: bool, pattern: str, streams_max: int
    ) -> tuple[NodeFigures, Survey | None]:
        """The figures of a node, and its streams if it serves slots."""
        try:
            server = self._nodes.get(node.address)
            if server is None:
                url = url_of_node(self._url, *node.address)
                server = self._nodes[node.address] = ToolConnection(url, NODE_S)
            replies: list[Any] = server.pipeline([["INFO"], ["CLUSTER", "INFO"]])
            info, cluster = (info_fields(server.checked(reply)) for reply in replies)
            survey = take_survey(server, pattern, streams_max) if serves else None
        except Unreachable as problem:
            gone = self._nodes.pop(node.address, None)
            if gone is not None:
                gone.close()
            return NodeFigures(node, {}, {}, problem.message), None
        return NodeFigures(node, info, cluster), survey
