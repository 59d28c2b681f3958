"""What a generate request answers: a whole reply, stream events, and the closing usage event.

Prompt facts ride on the first event that is sent, transfer params on the last one of the request; usage on each
event only when it was asked for.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import msgspec

from tokenwire.engine.base import EngineOutput, PromptOutput, SpecDecodeStats
from tokenwire.service.choices import ChoiceRun
from tokenwire.service.chunk_template import ChunkTemplate, gap
from tokenwire.service.context import ServiceOptions
from tokenwire.service.levels import TextTools
from tokenwire.service.logprob_shapes import npy, packed, prompt_entries
from tokenwire.service.prepare import PreparedGenerate
from tokenwire.service.usage import spec_decode_metrics, timing_metrics, usage_chunk_counts, usage_of
from tokenwire.wire.arrays import pack_ids
from tokenwire.wire.codec import Format, encode
from tokenwire.wire.generate import CompactChunk, GenerateChunk, GenerateResponse, TokensChoice, UsageChunk
from tokenwire.wire.usage import PerRequestMetrics


class RequestFacts:
    """What outputs say of the request as a whole."""

    __slots__ = (
        "ec_transfer_params",
        "first_time",
        "has_output",
        "kv_transfer_params",
        "last_time",
        "prompt",
        "spec_decode",
    )

    def __init__(self) -> None:
        self.has_output = False
        self.prompt = PromptOutput()
        self.kv_transfer_params: dict[str, Any] | None = None
        self.ec_transfer_params: dict[str, Any] | None = None
        self.spec_decode: SpecDecodeStats | None = None
        self.first_time = self.last_time = 0.0
        """When the first output and the last one came, as time.time()."""

    def first(self, outputs: list[EngineOutput]) -> int | None:
        """Take the prompt's facts from the first wake-up; returns the cached token count."""
        self.has_output = True
        self.first_time = time.time()
        self.prompt = next((o.prompt for o in outputs if o.prompt is not None), self.prompt)
        return self.prompt.num_cached_tokens

    def finish(self, output: EngineOutput) -> None:
        """Take what a choice's last output says."""
        self.last_time = time.time()
        if output.prompt is not None and output.prompt is not self.prompt:
            self.prompt.fill(output.prompt)
        self.kv_transfer_params = output.kv_transfer_params or self.kv_transfer_params
        self.ec_transfer_params = output.ec_transfer_params or self.ec_transfer_params
        self.spec_decode = output.spec_decode or self.spec_decode


class ReplyShaper:
    """Shapes the answer of one request while and after it runs."""

    def __init__(
        self, prepared: PreparedGenerate, runs: list[ChoiceRun], options: ServiceOptions, text: TextTools | None
    ) -> None:
        self._prepared = prepared
        self._runs = runs
        self._options = options
        self._text = text
        self.facts = RequestFacts()
        self._first = True
        self._open = prepared.n
        binary = prepared.context.binary
        self._chunk_kind = CompactChunk if binary else GenerateChunk
        self._format: Format = "msgpack" if binary else "json"
        self._gaps = () if prepared.continuous_usage else prepared.level.gaps()
        self._templates: dict[int, ChunkTemplate] = {}
        """Of ordinary events, per choice."""
        self._num_shown = [0] * prepared.n
        """Tokens per choice up to the event that is being made; a wake-up may bring several of one choice."""

    def response(self, outputs: list[EngineOutput | None]) -> GenerateResponse:
        """The whole reply, from each choice's added-up output."""
        prepared, level, facts = self._prepared, self._prepared.level, self.facts
        return GenerateResponse(
            request_id=prepared.request_id,
            model=prepared.model_name,
            created=prepared.created,
            usage=usage_of(self._prompt_len, self._completion, self._cached),
            metrics=self._metrics(),
            kv_transfer_params=facts.kv_transfer_params,
            ec_transfer_params=facts.ec_transfer_params,
            output_mode=level.mode,
            choices=[level.full(output) for output in outputs if output is not None],
            **self._prompt_fields(),
        )

    def events(self, shown: list[EngineOutput]) -> list[GenerateChunk | UsageChunk]:
        """One event per output that shows something at this level."""
        prepared = self._prepared
        level, request_id, mode = prepared.level, prepared.request_id, prepared.level.mode
        events: list[GenerateChunk | UsageChunk] = []
        for output in shown:
            self._num_shown[output.index] += len(output.token_ids)
            if output.finish_reason is not None:
                self._open -= 1
            choice = level.delta(output)
            if choice is None:
                continue
            if self._first or self._open == 0 or prepared.continuous_usage:
                events.append(self._special(choice))
            else:
                events.append(self._chunk_kind(request_id=request_id, output_mode=mode, choices=[choice]))
        return events

    def payloads(self, shown: list[EngineOutput]) -> list[bytes]:
        """`events`, encoded as the caller reads them; the ordinary ones are filled into a template."""
        payloads: list[bytes] = []
        for output in shown:
            payload = self._ordinary(output) if self._gaps and not self._first else None
            if payload is not None:
                payloads.append(payload)
            else:
                payloads += [encode(event, self._format) for event in self.events([output])]
        return payloads

    def _ordinary(self, output: EngineOutput) -> bytes | None:
        """The event of an output that has tokens and nothing else; None for all others."""
        if (
            output.finish_reason is not None
            or not output.token_ids
            or output.sampling_mask is not None
            or output.routed_experts is not None
        ):
            return None
        template = self._templates.get(output.index)
        if template is None:
            template = self._templates[output.index] = self._template(output.index)
        return template.fill(output)

    def _template(self, index: int) -> ChunkTemplate:
        level = self._prepared.level
        choice = level.gapped(index, partial(gap, fmt=self._format))
        event = self._chunk_kind(request_id=self._prepared.request_id, output_mode=level.mode, choices=[choice])
        return ChunkTemplate(event, self._format, self._gaps, level.values)

    def usage_payload(self) -> bytes:
        """`usage_chunk`, encoded as `payloads` are."""
        return encode(self.usage_chunk(), self._format)

    def usage_chunk(self) -> UsageChunk:
        """The last event with `include_usage`."""
        metrics = self._metrics()
        return UsageChunk(
            request_id=self._prepared.request_id,
            usage=usage_chunk_counts(self._prompt_len, self._completion, self._cached),
            output_mode=self._prepared.level.mode,
            choices=[],
            metrics=msgspec.UNSET if metrics is None else metrics,
        )

    def _special(self, choice: TokensChoice) -> GenerateChunk:
        prepared, facts = self._prepared, self.facts
        fields: dict[str, Any] = {}
        if self._first:
            fields |= self._prompt_fields()
            self._first = False
        if self._open == 0 and facts.kv_transfer_params is not None:
            fields["kv_transfer_params"] = facts.kv_transfer_params
        if self._open == 0 and facts.ec_transfer_params is not None:
            fields["ec_transfer_params"] = facts.ec_transfer_params
        if prepared.continuous_usage:
            fields["usage"] = usage_of(self._prompt_len, self._num_shown[choice.index], None)
        return self._chunk_kind(
            request_id=prepared.request_id, output_mode=prepared.level.mode, choices=[choice], **fields
        )

    @property
    def _prompt_len(self) -> int:
        return self._prepared.prompt_len + self.facts.prompt.num_encoder_tokens

    @property
    def _completion(self) -> int:
        return sum(run.num_tokens for run in self._runs)

    @property
    def _cached(self) -> int | None:
        return self.facts.prompt.num_cached_tokens if self._options.enable_prompt_tokens_details else None

    def _prompt_fields(self) -> dict[str, Any]:
        """What is said of the prompt: in a whole reply, or on the first event of a stream."""
        prepared, prompt = self._prepared, self.facts.prompt
        request, binary = prepared.request, prepared.context.binary
        fields: dict[str, Any] = {}
        if request.return_token_ids:
            ids = prepared.engine_request.prompt_token_ids
            fields["prompt_token_ids"] = pack_ids(ids) if binary else ids
            if request.features is not None:
                fields["mm_placeholders"] = request.features.mm_placeholders
        if prompt.logprobs is not None:
            text, ids = self._text, prepared.engine_request.prompt_token_ids
            texts_of = None if text is None else partial(text.prompt_texts, ids)
            fields["prompt_logprobs"] = (
                packed(prompt.logprobs, binary=binary)
                if prepared.shape.packed_logprobs
                else prompt_entries(prompt.logprobs, texts_of)
            )
        if prompt.token_id_logprobs is not None:
            fields["prompt_token_id_logprobs"] = npy(prompt.token_id_logprobs, binary=binary)
        return fields

    def _metrics(self) -> PerRequestMetrics | None:
        """Figures of one sequence; with several they would be nobody's."""
        prepared, facts, detail = self._prepared, self.facts, self._options.per_request_spec_decode_metrics
        if prepared.n != 1:
            return None
        metrics = None if detail == "none" else spec_decode_metrics(facts.spec_decode, detailed=detail == "detailed")
        if not prepared.timings:
            return metrics
        times = timing_metrics(
            prepared.engine_request.arrival_time, facts.first_time, facts.last_time, self._completion
        )
        return (
            times
            if metrics is None
            else msgspec.structs.replace(times, speculative_decoding=metrics.speculative_decoding)
        )
