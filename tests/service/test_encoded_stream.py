"""A stream that leaves as bytes says exactly what the stream of wire objects says.

1. Whatever the outputs, levels, formats and logprobs: the encoded events are the events, encoded.
2. Framed in one piece they are the frames of the single events.
3. The caller's id may hold anything that JSON or a format string could take for its own.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.derender.sources import ByteTokens
from tests.support.scripted_engine import ScriptedEngine, Step
from tokenwire.engine.base import EngineOutput, Logprobs
from tokenwire.server.frames import frame_events, frame_payloads
from tokenwire.service.context import RequestContext, ServiceOptions
from tokenwire.service.generate import GenerateService
from tokenwire.service.models import ModelRegistry
from tokenwire.service.text import TokenizerText
from tokenwire.wire import codec
from tokenwire.wire.generate import GenerateRequest

TOKENS = ["a", "b", "ST", "OP", '"', "\u00e9", "%d"]
IDS = st.integers(0, len(TOKENS) - 1)
SCORES = st.floats(-1e5, 0, width=32) | st.sampled_from([-np.inf, np.nan, np.inf])


@st.composite
def logprobs(draw: Any, sampled: list[int], width: int) -> Logprobs:
    rows = len(sampled)
    ids = np.array(
        draw(st.lists(st.lists(IDS | st.just(-1), min_size=width, max_size=width), min_size=rows, max_size=rows))
    )
    ids = ids.reshape(rows, width).astype(np.int32)
    ids[:, 0] = sampled
    scores = draw(st.lists(SCORES, min_size=rows * width, max_size=rows * width))
    ranks = draw(st.lists(st.integers(0, 9), min_size=rows, max_size=rows))
    return Logprobs(ids, np.array(scores, np.float32).reshape(rows, width), np.array(ranks, np.int32))


@st.composite
def outputs(draw: Any, n: int, width: int | None) -> list[EngineOutput]:
    """Any number of outputs of each of n sequences, the last ones with an end."""
    made = []
    masked = draw(st.booleans())
    for _ in range(draw(st.integers(0, 6))):
        ids = draw(st.lists(IDS, max_size=3))
        output = EngineOutput(
            draw(st.integers(0, n - 1)), ids, weight_version=draw(st.sampled_from([None, "v1", "v2"]))
        )
        if width is not None and ids:
            output.logprobs = draw(logprobs(ids, width))
        if masked and ids:
            output.sampling_mask = [np.array([1, 2], np.int32) for _ in ids]
        made.append(output)
    for i in range(n):
        scores = None if width is None else draw(logprobs([0], width))
        made.append(EngineOutput(i, [0], scores, finish_reason="length"))
    return made


CASES = st.fixed_dictionaries(
    {
        "output_mode": st.sampled_from(["tokens", "text", "derender"]),
        "logprobs_format": st.sampled_from(["content", "packed"]),
        "logprob_token_field": st.sampled_from([None, True]),
        "stream_options": st.sampled_from(
            [None, {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}]
        ),
        "request_id": st.sampled_from([None, "50%d \x00 {\u00e9}"]),
    }
)


@settings(max_examples=60, deadline=None)
@given(st.data(), CASES, st.booleans(), st.integers(1, 2), st.sampled_from([None, 1, 3]), st.booleans())
def test_encoded_events_are_the_events_encoded(
    data: Any, fields: dict[str, Any], binary: bool, n: int, width: int | None, stops: bool
) -> None:
    made = data.draw(outputs(n, width))
    sampling = {"n": n, "max_tokens": 99, "logprobs": width and width - 1, "stop": ["STOP"] if stops else None}
    request, _ = codec.convert(
        GenerateRequest, {"token_ids": [1], "sampling_params": sampling, "stream": True, "parse_context": {}, **fields}
    )

    async def both() -> tuple[list[bytes], list[bytes]]:
        def script(_: Any) -> list[Step]:
            return [Step([msgspec.structs.replace(output) for output in made])]

        engine = ScriptedEngine(script)
        service = GenerateService(
            engine, ModelRegistry(["m"], root="m"), ServiceOptions(), text=TokenizerText(ByteTokens(TOKENS, ()))
        )
        prepared = await service.prepare(request, RequestContext(request_id_header="x", binary=binary))
        fmt: codec.Format = "msgpack" if binary else "json"
        plain = [codec.encode(event, fmt) async for events in service.stream(prepared) for event in events]
        prepared = await service.prepare(request, RequestContext(request_id_header="x", binary=binary))
        return plain, [payload async for payloads in service.encoded_stream(prepared) for payload in payloads]

    plain, encoded = asyncio.run(both())
    assert encoded == plain


@pytest.mark.parametrize("fmt", ["json", "msgpack"])
def test_events_framed_in_one_piece_are_the_frames_of_each(fmt: codec.Format) -> None:
    events = [{"a": 1}, {"b": [2, 3]}, {}]
    assert frame_payloads([codec.encode(event, fmt) for event in events], fmt) == frame_events(events, fmt)
