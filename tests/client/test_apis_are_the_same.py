"""The sync and the asyncio API have the same names, signatures and docstrings, also where both are
written by hand; and the examples in the docstrings of each run."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import doctest
import inspect
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.client.conftest import url_of
from tests.support.server import Server

import millstream.client as sync
from millstream.client import aio
from millstream.client.threads.commands import StreamCommands

CLASSES = (
    "Stream",
    "Writer",
    "Fact",
    "Consumer",
    "Worker",
    "Job",
    "Producer",
    "Receipt",
    "Pipeline",
    "Millstream",
)


@dataclass
class Cake:
    """A value in the examples."""

    name: str
    pieces: int


def own(kind: type) -> dict[str, Any]:
    """The public members that are defined in this package."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("millstream.client"):
            found |= {name: value for name, value in vars(base).items() if name[0] != "_"}
    if "aclose" in found:  # as redis-py calls it
        found["close"] = found.pop("aclose")
    return found


def signature(function: Any) -> str:
    """Without what asyncio changes: the names of classes, and iterators."""
    text = str(inspect.signature(inspect.unwrap(function)))
    for word in ("Awaitable", "AsyncIterator", "Async"):
        text = text.replace(word, word.removeprefix("Async") if word != "Awaitable" else "")
    return text


def prose(function: Any) -> str:
    """The docstring up to the examples."""
    return (inspect.getdoc(function) or "").partition(">>>")[0]


def function_of(member: Any) -> Any:
    return member.fget if isinstance(member, property) else member


@pytest.mark.parametrize("name", CLASSES)
def test_classes_have_the_same_members(name: str) -> None:
    one, two = own(getattr(sync, name)), own(getattr(aio, name))
    assert sorted(one) == sorted(two)
    for member in one:
        first, second = function_of(one[member]), function_of(two[member])
        assert isinstance(one[member], property) == isinstance(two[member], property), member
        if not callable(first) or first is second:
            continue
        assert prose(first) == prose(second), member
        assert signature(first) == signature(second), member


def test_modules_have_the_same_names() -> None:
    assert aio.__all__ == sync.__all__
    own_names = {"connect", *CLASSES}
    for name in aio.__all__:
        assert (getattr(aio, name) is getattr(sync, name)) == (name not in own_names), name
    assert signature(sync.connect) == signature(aio.connect)
    assert prose(sync.connect) == prose(aio.connect)


def test_there_is_a_method_for_each_command(server: Server) -> None:
    with sync.connect(url_of(server)) as ms:
        names = {name.lower() for name in ms.execute_command("COMMAND LIST")}
    of_redis = {"time", "touch", "ttl", "type"}
    of_backups = {"trestore"}  # `millstream restore` sends it
    missing = [
        name
        for name in {name for name in names if name.startswith("t")} - of_redis - of_backups
        for kind in (sync.Millstream, sync.Pipeline, aio.Millstream, aio.Pipeline)
        if not hasattr(kind, name)
    ]
    assert "tblocks" in names
    assert missing == []


@pytest.mark.parametrize("kind", [sync.Pipeline, aio.Pipeline])
def test_methods_of_a_pipeline_say_that_they_queue(kind: Any) -> None:
    for name, value in vars(StreamCommands).items():
        if name[0] != "_":
            title = (inspect.getdoc(value) or "").partition("\n\n")[0]
            queued = getattr(kind, name)
            words = inspect.getdoc(queued) or ""
            assert words.startswith(title)
            assert ">>>" not in words
            assert "queued" in words
            assert "execute()" in words
            now, before = inspect.signature(queued), inspect.signature(value)
            assert now == before.replace(return_annotation="Self"), name


def test_docstrings_name_every_number_of_metrics(server: Server) -> None:
    with (
        sync.connect(url_of(server)) as ms,
        ms.stream("counted") as stream,
        ms.writer("counted", "w") as writer,
        ms.consumer("counted", "g", retry=60) as consumer,
    ):
        for made in (stream, writer, consumer):
            words = prose(type(made).metrics)
            assert [name for name in made.metrics() if name not in words] == []


def test_millstream_connect_is_the_same_function() -> None:
    import millstream

    assert millstream.connect is sync.connect


def public(api: Any = sync) -> Iterator[tuple[str, Any]]:
    """Every public name of an API, with the members of its classes."""
    for name in api.__all__:
        value = getattr(api, name)
        yield name, value
        if inspect.isclass(value):
            for member, function in own(value).items():
                inner = function_of(function)
                if callable(inner) or isinstance(function, property) or is_compiled(inner):
                    yield f"{name}.{member}", inner


def is_compiled(member: Any) -> bool:
    """True if a member is a property of a compiled class."""
    return inspect.isgetsetdescriptor(member)


# These have a docstring, and their example is that of another name.
NO_EXAMPLE = {"Event"} | {
    name
    for name, value in vars(sync).items()
    if inspect.isclass(value)
    and (issubclass(value, Exception) or value.__module__.endswith("events"))
}
EXAMPLES = [
    test
    for name, value in public()
    if getattr(value, "__doc__", None)
    for test in doctest.DocTestFinder(recurse=False).find(value, name, module=False)
    if test.examples
]


def test_every_public_name_has_a_docstring_with_an_example() -> None:
    described = {test.name for test in EXAMPLES}
    wanted = {name for name, value in public() if name not in NO_EXAMPLE and "." not in name} | {
        name
        for name, value in public()
        if "." in name and name.split(".")[0] in {*CLASSES, "Record", "ID"} and callable(value)
    }
    inherited = {name for name in wanted if name.endswith((".execute_command", ".parse_response"))}
    missing = {name for name in wanted - described - inherited if not name.startswith("Pipeline.")}
    assert sorted(missing) == []


def test_the_examples_run(server: Server) -> None:
    url = url_of(server)
    printed: list[str] = []
    for test in EXAMPLES:
        server.reset()
        with sync.connect(url) as ms:
            names = {name: getattr(sync, name) for name in sync.__all__}
            test.globs.update(names, ms=ms, url=url, os=os, Cake=Cake)
            runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
            runner.run(test, out=printed.append)
    assert not printed, "".join(printed)


ASYNCIO_EXAMPLES = [
    test
    for name, value in public(aio)
    # The methods of a pipeline only queue commands, and are the same in both APIs.
    if name.partition(".")[0] in {"connect", *CLASSES}
    and not name.startswith("Pipeline.")
    and getattr(value, "__doc__", None)
    for test in doctest.DocTestFinder(recurse=False).find(value, name, module=False)
    if test.examples
]


def test_the_examples_of_both_apis_are_of_the_same_methods() -> None:
    of_methods = [test.name for test in EXAMPLES if "." in test.name]
    of_both = {name for name in of_methods if name.partition(".")[0] in {*CLASSES} - {"Pipeline"}}
    assert {test.name for test in ASYNCIO_EXAMPLES if "." in test.name} == of_both


def test_the_examples_for_asyncio_run(server: Server) -> None:
    for test in ASYNCIO_EXAMPLES:
        server.reset()
        with asyncio.Runner() as runner:
            ms = aio.connect(url_of(server))
            names = {name: getattr(aio, name) for name in aio.__all__}
            test.globs.update(names, ms=ms, url=url_of(server), Cake=Cake)
            run_example(test, runner)
            runner.run(ms.aclose())


def run_example(test: doctest.DocTest, runner: asyncio.Runner) -> None:
    for example in test.examples:
        code = compile(example.source, test.name, "single", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            result = eval(code, test.globs)
            if inspect.isawaitable(result):
                runner.run(awaited(result))
        assert shown.getvalue() == example.want, (test.name, example.source)


async def awaited(result: Any) -> Any:
    return await result
