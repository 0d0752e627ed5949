"""OpenTelemetry: one trace from a writer to the readers of its entries."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.client.apis import Api, take

from millstream.client import Dead, MillstreamError
from millstream.client.tracing import Tracing, span


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    """Gets the spans of this process. There is one provider for the life of a process."""
    found = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(found))
    trace.set_tracer_provider(provider)
    return found


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> InMemorySpanExporter:
    exporter.clear()
    return exporter


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [one for one in spans.get_finished_spans() if one.name == name]


def trace_of(one: ReadableSpan) -> int:
    assert one.context is not None
    return int(one.context.trace_id)


def test_a_trace_continues_in_the_reader_of_an_entry(ms: Any, spans: InMemorySpanExporter) -> None:
    with ms.writer("s", "w").traced() as writer:
        entry_id = writer.append({"n": 1})
        writer.append_many([{"n": 2}, [("n", "3")]])
    with ms.producer("s").traced() as producer:
        producer.append({"n": 4})
    with ms.stream("s", "earliest") as stream:
        for record in take(stream, 4):
            with span(record, "g"):
                pass
    sent, processed = named(spans, "send s"), named(spans, "process s")
    assert [trace_of(one) for one in processed] == [
        trace_of(one) for one in (sent[0], sent[1], sent[1], sent[2])
    ]
    first = processed[0]
    assert first.parent is not None
    assert sent[0].context is not None
    assert first.parent.span_id == sent[0].context.span_id
    assert dict(first.attributes or {}) == {
        "messaging.system": "millstream",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": "s",
        "messaging.message.id": str(entry_id),
        "messaging.consumer.group.name": "g",
    }
    assert (sent[0].kind, first.kind) == (trace.SpanKind.PRODUCER, trace.SpanKind.CONSUMER)


def test_a_worker_makes_a_span_for_each_job(ms: Any, api: Api, spans: InMemorySpanExporter) -> None:
    with ms.writer("s", "w").traced() as writer:
        writer.append({"n": 1})
    ms.tappend("s", {"n": 2})  # of a program without tracing
    worker = ms.worker("s", "g", concurrency=1, dead_letter="bad").traced()

    def handle(job: Any) -> None:
        if job["n"] == "2":
            worker.stop()
            raise Dead("no such address")

    async def handle_in_a_task(job: Any) -> None:
        handle(job)

    worker.handler(handle if api.name == "sync" else handle_in_a_task)
    worker.run()
    first, second = named(spans, "process s")
    assert trace_of(first) == trace_of(named(spans, "send s")[0])
    assert first.status.is_ok or first.status.is_unset
    assert second.parent is None
    assert second.status.description == "Dead: no such address"


def test_a_context_that_the_caller_gives_is_kept(spans: InMemorySpanExporter) -> None:
    own = {"n": 1, "traceparent": "mine"}
    with Tracing("s").sending():
        assert Tracing("s").with_context(own) == list(own.items())
        assert dict(Tracing("s").with_context({"n": 1})).keys() == {"n", "traceparent"}


def test_without_opentelemetry_the_error_says_what_to_install(
    ms: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.trace", None)
    for made in (ms.writer("s", "w"), ms.producer("s"), ms.worker("s", "g")):
        with pytest.raises(MillstreamError, match=r"pip install \"millstream\[otel\]\""):
            made.traced()
        if hasattr(made, "close"):
            made.close()
