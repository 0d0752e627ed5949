"""The records of a cluster in etcd, and `millstream cluster` with commands for it."""

from __future__ import annotations

import asyncio

from click.testing import CliRunner, Result

from millstream.__main__ import main
from millstream.server.cluster.cluster_view import ClusterView, view_of
from millstream.server.cluster.store.store import Change, Contents
from millstream.server.cluster.store.store_opening import StoreSettings, open_store


def stored(settings: StoreSettings) -> Contents:
    return asyncio.run(open_store(settings).read())


def stored_view(settings: StoreSettings) -> ClusterView:
    return view_of(stored(settings))


def write(settings: StoreSettings, *changes: Change) -> None:
    assert asyncio.run(open_store(settings).commit([], changes)).done


def cluster_command(settings: StoreSettings, *words: str) -> Result:
    """The end of `millstream cluster` with these words, in this process."""
    where = ["--name", settings.name, "--etcd", settings.urls]
    return CliRunner().invoke(main, ["cluster", *words, *where])
