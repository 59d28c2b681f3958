"""JSON and MessagePack say the same, read by the same client over a real socket.

1. For every recorded request, whole and streamed, both wires give the same values by the same names; errors too.
2. Over MessagePack arrays are views of the bytes that came: nothing is copied, nothing is made per token.
3. However a stream of frames is cut, the same chunks come out.
4. Requests travel as raw bytes too: ids, media; what does not fit into int32 is refused as in JSON.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conformance.cases import records
from tests.support.http import GENERATE, app_of, serving
from tests.support.scripted_engine import ScriptedEngine, Step, interleave, sequence
from tests.support.tokenizers import tokenizer
from tokenwire.client import AsyncClient, Rendered
from tokenwire.client.codec import WireName, stream_reader
from tokenwire.client.replies import GenerateChunk, GenerateResponse, TokensChoice
from tokenwire.engine.base import EngineRequest, Logprobs, PromptOutput, WeightSpan
from tokenwire.errors import TokenwireError
from tokenwire.wire.sampling import SamplingParams

MAX_TOKENS = 9
SMOL = tokenizer("smol")


def scores_of(sampled: np.ndarray[Any, Any], params: SamplingParams) -> Logprobs | None:
    """Candidates 1..k by rank, where the sampled token is any of them or none."""
    k, asked = params.logprobs, params.logprob_token_ids
    count = len(sampled)
    if asked is not None:
        ids = np.concatenate([sampled[:, None], np.tile(np.asarray(asked), (count, 1))], axis=1)
        ranks = np.tile(np.arange(ids.shape[1]) * 100 + 7, (count, 1)).astype(np.int32)
        values = -0.001 * ranks - sampled[:, None] % 7
        return Logprobs(ids.astype(np.int32), values.astype(np.float32), ranks[:, 0].copy(), ranks)
    if k is None:
        return None
    k = 5 if k == -1 else k
    ranks = (np.arange(count) % (k + 2) + 1).astype(np.int32)
    ids = np.concatenate([sampled[:, None], sampled[:, None] - ranks[:, None] + np.arange(1, k + 1)], axis=1)
    values = np.concatenate([-0.1 * ranks[:, None], np.tile(-0.1 * np.arange(1, k + 1), (count, 1))], axis=1)
    return Logprobs(ids.astype(np.int32), values.astype(np.float32), ranks)


def everything(asked: EngineRequest) -> list[Step]:
    """All that an engine can say, cut to a few tokens."""
    params, prompt = asked.sampling, np.asarray(asked.prompt_token_ids)
    assert isinstance(params.max_tokens, int)
    count = min(params.max_tokens, MAX_TOKENS)
    sequences = []
    for index in range(params.n):
        ids = np.arange(count) + 1000 * (index + 1)
        outputs = sequence(
            ids.tolist(),
            index=index,
            step_size=2,
            logprobs=scores_of(ids, params),
            weight_versions=[WeightSpan("s1", 0, 1), WeightSpan("s2", 1, count)],
            routed_experts=np.arange((len(prompt) + count) * 4, dtype=np.uint16).reshape(-1, 2, 2),
            kv_transfer_params=None if asked.kv_transfer_params is None else {"blk": [1, 2]},
        )
        for output in outputs:
            output.sampling_mask = [np.arange(i, i + 1 + i % 3, dtype=np.int32) for i in output.token_ids]
        sequences.append(outputs)
    steps = interleave(*sequences)
    wanted = msgspec.structs.replace(params, logprobs=params.prompt_logprobs, logprob_token_ids=None)
    steps[0].outputs[0].prompt = PromptOutput(num_cached_tokens=0, logprobs=scores_of(prompt[1:], wanted))
    return steps


@pytest.fixture
async def url() -> AsyncIterator[str]:
    engine = ScriptedEngine(everything, max_model_len=2048)
    async with serving(app_of(engine, tokenizer=SMOL, served_model_name=["smol"])) as port:
        yield f"http://127.0.0.1:{port}"


# --- 1. the same values


def arrays_of(scores: Any) -> Any:
    if scores is None:
        return None
    ranks = None if scores.candidate_ranks is None else scores.candidate_ranks.tolist()
    return scores.token_ids.tolist(), scores.logprobs.tolist(), scores.ranks.tolist(), ranks


def choice_values(choice: TokensChoice) -> dict[str, Any]:
    ids, masks, experts = choice.token_id_array, choice.sampling_mask_arrays(), choice.routed_experts_array()
    assert (None if ids is None else ids.tolist()) == choice.token_ids
    assert (None if masks is None else [mask.tolist() for mask in masks]) == choice.sampling_mask
    scores = choice.logprobs
    return {
        "facts": (choice.index, choice.finish_reason, choice.stop_reason, choice.token_ids, choice.sampling_mask),
        "text": getattr(choice, "text", None),
        "message": getattr(choice, "message", None) or getattr(choice, "delta", None),
        "spans": choice.weight_versions,
        "experts": None if experts is None else (experts.dtype.str, experts.tolist()),
        "scores": None if scores is None else arrays_of(scores.arrays()),
    }


def values(reply: GenerateResponse | GenerateChunk) -> dict[str, Any]:
    ids = reply.prompt_token_id_array
    assert (None if ids is None else ids.tolist()) == reply.prompt_token_ids
    return {
        "choices": [choice_values(choice) for choice in reply.choices],
        "usage": reply.usage,
        "prompt": (reply.prompt_token_ids, reply.mm_placeholders, arrays_of(reply.prompt_logprob_arrays())),
        "params": (reply.kv_transfer_params, reply.ec_transfer_params, reply.metrics, reply.output_mode),
    }


async def answer(client: AsyncClient, request: dict[str, Any], *, streamed: bool) -> Any:
    """Everything a caller can read of the answer, or of the refusal."""
    try:
        if streamed:
            return [values(chunk) async for chunk in client.generate_stream(request)]
        return values(await client.generate(request))
    except TokenwireError as error:
        return type(error), getattr(error, "status", None), error.param, error.message


def _may_be_compared(request: dict[str, Any], *, streamed: bool) -> bool:
    sampling = request.get("sampling_params")
    if "token_ids" not in request or not isinstance(sampling, dict):
        return False  # nothing that the client would send
    if any(isinstance(value, int) and value.bit_length() > 64 for value in (*sampling.values(), *request.values())):
        return False  # cannot be said in MessagePack
    return not (streamed and "prompt_logprob_token_ids" in sampling)  # over MessagePack alone


@pytest.mark.parametrize("streamed", [False, True])
async def test_every_recorded_request_is_answered_the_same_over_both_wires(url: str, streamed: bool) -> None:
    asked = [r["request"] for r in records() if r["path"] == GENERATE and isinstance(r.get("request"), dict)]
    differ = {}
    num_answered = 0
    async with AsyncClient(url) as plain, AsyncClient(url, wire="msgpack") as binary:
        for request in asked:
            if not _may_be_compared(request, streamed=streamed):
                continue
            answers = [await answer(client, request, streamed=streamed) for client in (plain, binary)]
            num_answered += isinstance(answers[0], dict | list)
            if answers[0] != answers[1]:
                differ[str(request)[:300]] = answers
    assert differ == {}
    assert num_answered > 100


# --- 2. views


@pytest.mark.parametrize("streamed", [False, True])
async def test_arrays_of_a_messagepack_reply_are_views(url: str, streamed: bool) -> None:
    asked = {"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 4, "logprobs": 3}, "return_token_ids": True}
    async with AsyncClient(url, wire="msgpack") as client:
        if streamed:
            replies: list[Any] = [chunk async for chunk in client.generate_stream(asked) if chunk.choices]
        else:
            replies = [await client.generate(asked)]
    for reply in replies:
        choice = reply.choices[0]
        scores, masks = choice.logprobs.arrays(), choice.sampling_mask_arrays()
        views = [choice.token_id_array, scores.token_ids, scores.logprobs, scores.ranks, *masks]
        for view in views:
            assert not view.flags.owndata
            assert not view.flags.writeable  # it looks at bytes
        assert isinstance(choice.raw_token_ids, bytes)
    assert replies[0].prompt_token_id_array.tolist() == [1, 2, 3]
    assert replies[-1].choices[0].routed_experts_array().flags.owndata is False


# --- 3. cuts


async def frames_of(url: str) -> bytes:
    request = {
        "token_ids": b"\1\0\0\0\2\0\0\0",
        "sampling_params": {"max_tokens": 6, "logprobs": 2, "n": 2, "temperature": 1.0},
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"content-type": "application/msgpack"}
    async with httpx.AsyncClient() as client:
        return (await client.post(url + GENERATE, content=msgspec.msgpack.encode(request), headers=headers)).content


async def test_any_cut_of_a_stream_gives_the_same_chunks(url: str) -> None:
    data = await frames_of(url)

    def read(edges: list[int]) -> list[Any]:
        reader = stream_reader("application/msgpack", "tokens", where="here")
        cuts = sorted({0, len(data), *(edge % len(data) for edge in edges)})
        chunks = [chunk for a, b in zip(cuts, cuts[1:], strict=False) for chunk in reader.feed(data[a:b])]
        reader.end()
        return [values(chunk) for chunk in chunks]

    whole = read([])
    assert whole[-1]["usage"].completion_tokens == 12
    assert read(list(range(len(data)))) == whole

    @given(st.lists(st.integers(0, 10**6), max_size=20))
    def check(edges: list[int]) -> None:
        assert read(edges) == whole

    check()


# --- 4. requests


@pytest.mark.parametrize(
    "ids", [[], [1, -1], [1, 2**31], [2**40], b"\1\0\0", b"", b"\xff\xff\xff\xff", np.array([1, 2]), (3, 4)], ids=str
)
async def test_ids_of_a_request_are_taken_or_refused_alike(url: str, ids: Any) -> None:
    said = []
    for wire in ("json", "msgpack"):
        if isinstance(ids, bytes) and wire == "json":
            continue
        request = {"token_ids": ids, "sampling_params": {"max_tokens": 1}} if isinstance(ids, bytes | list) else ids
        async with AsyncClient(url, wire=wire) as client:  # type: ignore[arg-type]
            said.append(await answer(client, request, streamed=False))
    assert said[0] == said[-1]
    if isinstance(ids, bytes):
        assert said[0][1] == 400
        assert said[0][2] == "body.token_ids" or "token_ids" in said[0][3]


async def test_any_list_of_ids_may_be_raw_bytes(url: str) -> None:
    raw = np.arange(1000, 1003, dtype="<i4").tobytes()
    sampling = {"max_tokens": 2, "allowed_token_ids": raw, "stop_token_ids": raw}
    request = {"token_ids": raw, "sampling_params": sampling, "return_token_ids": True}
    async with httpx.AsyncClient() as client:
        reply = await client.post(
            url + GENERATE,
            content=msgspec.msgpack.encode(request),
            headers={"content-type": "application/msgpack", "accept": "application/json"},
        )
    assert reply.json()["prompt_token_ids"] == [1000, 1001, 1002]


@pytest.mark.parametrize("wire", ["json", "msgpack"])
async def test_media_arrive_as_the_same_bytes_over_both_wires(wire: WireName) -> None:
    engine = ScriptedEngine(everything)
    features = {
        "mm_hashes": {"image": ["h", "i"]},
        "mm_placeholders": {"image": [{"offset": 0, "length": 1}, {"offset": 1, "length": 1}]},
        "kwargs_data": {"image": [base64.b64encode(b"\0\1\2\3").decode(), None]},
    }
    rendered = Rendered({"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 1}, "features": features})
    async with serving(app_of(engine)) as port, AsyncClient(f"http://127.0.0.1:{port}", wire=wire) as client:
        await client.generate(rendered)
    assert engine.requests[0].features is not None
    assert engine.requests[0].features.kwargs_data == {"image": [b"\0\1\2\3", None]}


@pytest.mark.parametrize("wire", ["json", "msgpack"])
async def test_a_rendered_prompt_is_the_same_over_both_wires(url: str, wire: WireName) -> None:
    async with AsyncClient(url, wire=wire) as client:
        rendered = await client.render_chat([{"role": "user", "content": "hello"}], max_tokens=3)
        (alone,) = await client.render_completion("Once upon a time")
        reply = await client.generate(rendered, return_token_ids=True)
    assert rendered.token_ids == reply.prompt_token_ids
    assert isinstance(rendered.token_ids[0], int)
    assert alone.token_ids == SMOL.encode("Once upon a time")
