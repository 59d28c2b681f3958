"""Trace spans: (1) one per request, a child of the caller's; (2) with what was asked and what came of it; (3) a
missing exporter is a sentence."""

import sys

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.support.http import GENERATE, app_of, body, client_of
from tests.support.scripted_engine import ScriptedEngine, Step, one_sequence
from tokenwire.errors import GenerationError
from tokenwire.server.tracing import TracingObserver, otlp_observer
from tokenwire.settings import SettingsError

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


async def spans_of(engine, payload, **headers):
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    app = app_of(engine)
    app.state.server.generate.observer = TracingObserver(provider)
    async with client_of(app) as client:
        await client.post(GENERATE, json=payload, headers=headers)
    return exporter.get_finished_spans()


async def test_a_request_is_one_span_under_the_callers():
    engine = ScriptedEngine(one_sequence([5, 6], finish_reason="stop"))
    (span,) = await spans_of(engine, body(temperature=0.5), traceparent=f"00-{TRACE}-{SPAN}-01")
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == SPAN
    attributes = span.attributes
    assert attributes["gen_ai.usage.prompt_tokens"] == 3
    assert attributes["gen_ai.usage.completion_tokens"] == 2
    assert attributes["gen_ai.request.temperature"] == 0.5
    assert attributes["tokenwire.completed"] is True
    assert [event.attributes["finish_reason"] for event in span.events] == ["stop"]


async def test_a_failed_request_is_marked():
    (span,) = await spans_of(ScriptedEngine([Step(error=GenerationError("boom"))]), body())
    assert span.attributes["tokenwire.completed"] is False
    assert span.parent is None


def test_a_missing_exporter_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter", None)
    with pytest.raises(SettingsError, match=r"tokenwire\[otel\]"):
        otlp_observer("http://127.0.0.1:4317")
