"""OpenTelemetry: the trace of a program continues in the programs that read its entries.

Writers and producers add the context of the current span to entries, in the fields of the
propagators (`traceparent`, `tracestate`, `baggage`). Readers make spans that continue it. It needs
`opentelemetry-api`, and the exporter that the program sets up.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

from millstream.client.codecs import words_of
from millstream.client.core.words import Key, text
from millstream.client.errors import MillstreamError
from millstream.client.records import Record

SYSTEM = "millstream"


class Tracing:
    """Spans about one stream. They are those of the tracer provider of the process."""

    def __init__(self, key: Key | None = None, group: Key | None = None) -> None:
        try:
            self._trace: Any = import_module("opentelemetry.trace")
            self._propagate: Any = import_module("opentelemetry.propagate")
        except ImportError:
            raise MillstreamError(
                'tracing needs OpenTelemetry: pip install "millstream[otel]"'
            ) from None
        self._tracer = self._trace.get_tracer("millstream.client")
        self._key = None if key is None else text(key)
        self._group = None if group is None else text(group)

    def sending(self) -> AbstractContextManager[Any]:
        """A span around a request that appends."""
        operation = "send"
        span: AbstractContextManager[Any] = self._tracer.start_as_current_span(
            f"{operation} {self._key}",
            kind=self._trace.SpanKind.PRODUCER,
            attributes=self._attributes(operation, self._key),
        )
        return span

    def with_context(self, fields: Any) -> Any:
        """The fields, and those of the current context that they do not have."""
        context: dict[str, str] = {}
        self._propagate.inject(context)
        pairs = list(fields.items() if isinstance(fields, Mapping) else fields)
        names = {text(pair[0]) for pair in pairs if isinstance(pair[0], (str, bytes))}
        return [*pairs, *((name, word) for name, word in context.items() if name not in names)]

    def processing(self, record: Record[Any]) -> AbstractContextManager[Any]:
        """A span for the work on a record. Its parent is the span that has sent the record."""
        operation = "process"
        attributes = self._attributes(operation, record.shard)
        attributes["messaging.message.id"] = str(record.id)
        if self._group is not None:
            attributes["messaging.consumer.group.name"] = self._group
        fields = {name: text(word) for name, word in words_of(record).items()}
        span: AbstractContextManager[Any] = self._tracer.start_as_current_span(
            f"{operation} {record.shard}",
            context=self._propagate.extract(fields),
            kind=self._trace.SpanKind.CONSUMER,
            attributes=attributes,
        )
        return span

    def _attributes(self, operation: str, key: str | None) -> dict[str, Any]:
        return {
            "messaging.system": SYSTEM,
            "messaging.operation.type": operation,
            "messaging.operation.name": operation,
            "messaging.destination.name": key or "",
        }


def span(record: Record[Any], group: Key | None = None) -> AbstractContextManager[Any]:
    """A span of OpenTelemetry for the work on a record, in a loop over a stream or a consumer. Its
    parent is the span that has sent the record, if its writer was `traced()`.

    >>> from millstream.client.tracing import span
    >>> for record in ms.stream("orders", "earliest", end="latest"):
    ...     with span(record):
    ...         pass
    """
    return Tracing(group=group).processing(record)
