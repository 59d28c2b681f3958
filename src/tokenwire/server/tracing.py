"""One OpenTelemetry span per request, a child of the caller's `traceparent`; loaded only when it was asked for."""

from __future__ import annotations

import importlib
import time
from typing import TYPE_CHECKING

from tokenwire.engine.base import EngineOutput
from tokenwire.service.generate import PreparedGenerate
from tokenwire.service.observer import Observer
from tokenwire.settings import SettingsError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span


class TracingObserver(Observer):
    """Starts a span when a request goes to the engine and ends it with the request."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("tokenwire")
        self._propagator = TraceContextTextMapPropagator()
        self._spans: dict[str, tuple[Span, int]] = {}

    def started(self, prepared: PreparedGenerate) -> None:
        request = prepared.engine_request
        parent = self._propagator.extract(dict(request.trace_headers or {}))
        span = self._tracer.start_span("llm_request", context=parent, start_time=int(request.arrival_time * 1e9))
        max_tokens = request.sampling.max_tokens
        span.set_attributes(
            {
                "gen_ai.request.id": prepared.request_id,
                "gen_ai.response.model": prepared.model_name,
                "gen_ai.request.temperature": request.sampling.temperature,
                "gen_ai.request.top_p": request.sampling.top_p,
                "gen_ai.request.max_tokens": max_tokens if isinstance(max_tokens, int) else 0,
                "gen_ai.request.n": request.sampling.n,
                "gen_ai.usage.prompt_tokens": prepared.prompt_len,
            }
        )
        self._spans[request.request_id] = (span, 0)

    def prefilled(self, prepared: PreparedGenerate, cached_tokens: int | None) -> None:
        request = prepared.engine_request
        span, _ = self._spans[request.request_id]
        span.set_attribute("gen_ai.latency.time_to_first_token", time.time() - request.arrival_time)
        span.set_attribute("gen_ai.usage.cached_tokens", cached_tokens or 0)

    def tokens(self, prepared: PreparedGenerate, num_tokens: int) -> None:
        span, count = self._spans[prepared.engine_request.request_id]
        self._spans[prepared.engine_request.request_id] = (span, count + num_tokens)

    def choice_finished(self, prepared: PreparedGenerate, output: EngineOutput) -> None:
        span, _ = self._spans[prepared.engine_request.request_id]
        span.add_event("choice finished", {"index": output.index, "finish_reason": output.finish_reason or "stop"})

    def ended(self, prepared: PreparedGenerate, *, completed: bool) -> None:
        request = prepared.engine_request
        span, count = self._spans.pop(request.request_id)
        span.set_attribute("gen_ai.usage.completion_tokens", count)
        span.set_attribute("gen_ai.latency.e2e", time.time() - request.arrival_time)
        span.set_attribute("tokenwire.completed", completed)
        span.end()

    def close(self) -> None:
        """Send what is still held back."""
        self._provider.shutdown()


def otlp_observer(endpoint: str) -> TracingObserver:
    """An observer that exports over OTLP: gRPC, or HTTP where the URL has a path. Raises `SettingsError`."""
    kind = "http" if "/v1/" in endpoint else "grpc"
    try:
        exporter = importlib.import_module(f"opentelemetry.exporter.otlp.proto.{kind}.trace_exporter")
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as exc:
        raise SettingsError(
            f"--otlp-traces-endpoint needs OpenTelemetry ({exc}). Install it with: pip install 'tokenwire[otel]'"
        ) from exc
    provider = TracerProvider(resource=Resource.create({"service.name": "tokenwire"}))
    provider.add_span_processor(BatchSpanProcessor(exporter.OTLPSpanExporter(endpoint=endpoint)))
    return TracingObserver(provider)
