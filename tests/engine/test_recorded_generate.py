"""The SmolLM2 answers that a real server recorded, asked of the engine directly.

1. Greedy ids, finish and stop reasons are equal; logprobs within 2e-3, ranks equal; prompt scores likewise.
2. A prompt that comes again is found in the cache but for its last tokens.

Left out by data, since the engine is not what decides them: records with stop strings (the service finds those) and
with random sampling (the recorder's random numbers are its own).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from tests.conformance.cases import records
from tokenwire.engine.base import EngineOutput, EngineRequest, Logprobs
from tokenwire.engine.local import LocalEngine, LocalEngineOptions
from tokenwire.wire.sampling import SamplingParams
from tokenwire.wire.sampling_rules import normalize

pytestmark = pytest.mark.model

LOGPROB_TOLERANCE = 2e-3


DIFFERENT = {
    # The recorder ignored `disable_any_whitespace` in a request (it reads its server's setting); we do what is asked.
    "extra_whitespace_pattern",
}


def is_decided_here(record: dict[str, Any]) -> bool:
    if not record["path"].endswith("/inference/v1/generate") or record["id"] in DIFFERENT:
        return False
    sampling = record["request"]["sampling_params"]
    is_greedy = sampling.get("temperature", 1.0) == 0 or sampling.get("top_k") == 1 or sampling.get("min_p") == 1.0
    return is_greedy and not sampling.get("stop")


CASES = [r for r in records() if r["kind"] == "ok" and r["status"] == 200 and is_decided_here(r)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[LocalEngine]:
    started = LocalEngine(LocalEngineOptions(max_model_len=4096))
    await started.start()
    yield started
    await started.close()


async def ask(engine: LocalEngine, record: dict[str, Any]) -> EngineOutput:
    body = record["request"]
    sampling = normalize(msgspec.convert(body["sampling_params"], SamplingParams, strict=False))
    merged: EngineOutput | None = None
    what = EngineRequest(
        request_id=record["id"],
        prompt_token_ids=body["token_ids"],
        sampling=sampling,
        stream=bool(body.get("stream")),
        cache_salt=body.get("cache_salt"),
        reasoning_ended=body.get("reasoning_ended"),
    )
    async for outputs in engine.generate(what):
        for output in outputs:
            if merged is None:
                merged = output
            else:
                merged.absorb(output)
    assert merged is not None
    return merged


def recorded_choice(record: dict[str, Any]) -> dict[str, Any]:
    """The only choice; a stream's chunks added up."""
    if "response" in record:
        choice: dict[str, Any] = record["response"]["choices"][0]
        return choice
    merged: dict[str, Any] = {"token_ids": [], "logprobs": None}
    for event in record["events"]:
        for choice in event["choices"] if isinstance(event, dict) else ():
            merged["token_ids"] += choice["token_ids"]
            merged |= {key: choice[key] for key in ("finish_reason", "stop_reason")}
            if choice.get("logprobs"):
                content = (merged["logprobs"] or {"content": []})["content"]
                merged["logprobs"] = {"content": content + choice["logprobs"]["content"]}
    return merged


@pytest.mark.parametrize("record", CASES, ids=[record["id"] for record in CASES])
@pytest.mark.asyncio(loop_scope="module")
async def test_ids_scores_and_reasons_are_those_recorded(engine: LocalEngine, record: dict[str, Any]) -> None:
    output = await ask(engine, record)
    expected = recorded_choice(record)
    assert output.token_ids == expected["token_ids"]
    assert output.finish_reason == expected["finish_reason"]
    assert output.stop_reason == expected["stop_reason"]
    if expected.get("logprobs"):
        assert output.logprobs is not None
        check_scores(output.logprobs, expected["logprobs"]["content"])
    prompt_scores = record.get("response", {}).get("prompt_logprobs")
    if prompt_scores:
        assert output.prompt is not None
        assert output.prompt.logprobs is not None
        check_prompt_scores(output.prompt.logprobs, prompt_scores)


def check_scores(scores: Logprobs, content: list[dict[str, Any]]) -> None:
    """Levels other than tokens record no ids and ranks; there the numbers speak."""
    assert len(scores) == len(content)
    for row, entry in enumerate(content):
        assert float(scores.logprobs[row, 0]) == pytest.approx(max(entry["logprob"], -9999.0), abs=LOGPROB_TOLERANCE)
        if "token_id" in entry:
            assert int(scores.token_ids[row, 0]) == entry["token_id"]
            assert int(scores.ranks[row]) == entry["rank"]
            by_id = dict(zip(scores.token_ids[row].tolist(), scores.logprobs[row].tolist(), strict=True))
            for top in entry["top_logprobs"]:
                assert by_id[top["token_id"]] == pytest.approx(top["logprob"], abs=LOGPROB_TOLERANCE)


def check_prompt_scores(scores: Logprobs, recorded: list[dict[str, Any] | None]) -> None:
    assert recorded[0] is None
    assert len(scores) == len(recorded) - 1
    for row, entry in enumerate(recorded[1:]):
        assert entry is not None
        own = entry[str(int(scores.token_ids[row, 0]))]
        assert int(scores.ranks[row]) == own["rank"]
        for token_id, value in zip(scores.token_ids[row].tolist(), scores.logprobs[row].tolist(), strict=True):
            if str(token_id) in entry:
                assert value == pytest.approx(entry[str(token_id)]["logprob"], abs=LOGPROB_TOLERANCE)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_long_prompt_that_comes_again_is_not_computed_again(engine: LocalEngine) -> None:
    """What makes its first token come in a small fraction of the time; docs/performance.md has the figures."""
    prompt = [100 + (i * i * 31 + 7 * i) % 40000 for i in range(2000)]
    sampling = SamplingParams(max_tokens=1, temperature=0.0)
    cached, ids = [], []
    for attempt in range(3):
        async for outputs in engine.generate(EngineRequest(f"long-{attempt}", prompt, sampling, stream=False)):
            ids.append([output.token_ids for output in outputs])
            cached += [output.prompt.num_cached_tokens for output in outputs if output.prompt is not None]
    assert ids[0] == ids[1] == ids[2]
    assert cached == [0, 1984, 1984]
