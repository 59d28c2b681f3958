"""What a request gets, whatever happens to it.

1. n samples share one prompt pass; each ends once, with its own seeded ids.
2. Streamed sequences send the first token at once and then every `stream_interval` tokens; others send all at the end.
3. An aborted request returns what it had, within one step; a reader that leaves stops its sequences.
4. A request that fails ends with reason "error", and the others go on.
5. The finish rules have vLLM's order.
6. Weight versions are contiguous spans over the output.
7. Pause and resume: abort ends, wait lets end, keep freezes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.harness import CLIENT, Harness, Reference
from tests.engine.tiny_models import VOCAB
from tokenwire.engine.base import WeightSpan
from tokenwire.engine.control import Pause, ResetPrefixCache, Resume, WeightTransfer
from tokenwire.engine.local import messages as wire
from tokenwire.engine.local.finish import FinishRules
from tokenwire.errors import EngineUnavailableError, InvalidRequestError
from tokenwire.wire.sampling import RepetitionDetection, SamplingParams

PROMPT = [11, 22, 33, 44, 55, 66, 77, 88, 9, 10]


@pytest.fixture
def harness(folders: dict[str, Path]) -> Harness:
    return Harness(folders["llama"])


def drained(harness: Harness) -> bool:
    """Nothing is left of any request."""
    core = harness.core
    return core.idle and core.scheduler.pool.usage == 0 and not core.scheduler.running and not core.scheduler.waiting


# --- n ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", [PROMPT, PROMPT[:8], PROMPT[:1]])
def test_samples_of_one_request_equal_requests_with_the_same_seed(folders: dict[str, Path], prompt: list[int]) -> None:
    sampling: dict[str, Any] = {"temperature": 1.0, "seed": 5, "max_tokens": 9, "n": 3, "ignore_eos": True}
    alone = Harness(folders["llama"], enable_prefix_caching=False)
    handle = alone.add(prompt, **sampling)
    alone.run()
    expected = [alone.ids(handle, index) for index in range(3)]
    assert len({tuple(ids) for ids in expected}) == 3
    crowded = Harness(folders["llama"], max_num_seqs=4, max_num_batched_tokens=6)
    others = [crowded.add(PROMPT[i:], max_tokens=20, ignore_eos=True) for i in range(3)]
    crowded.tick()
    handle = crowded.add(prompt, **sampling)
    crowded.run()
    assert [crowded.ids(handle, index) for index in range(3)] == expected
    assert all(len(crowded.ids(other)) == 20 for other in others)
    assert drained(crowded)


def test_with_a_server_seed_requests_without_one_repeat_themselves_and_differ(folders: dict[str, Path]) -> None:
    def run(seed: int | None) -> list[tuple[int, ...]]:
        harness = Harness(folders["llama"], seed=seed)
        handles = [harness.add(PROMPT, n=2, temperature=1.0, ignore_eos=True) for _ in range(2)]
        harness.run()
        return [tuple(harness.ids(handle, index)) for handle in handles for index in range(2)]

    first = run(0)
    assert len(set(first)) == 4
    assert run(0) == first
    assert not {*first} & {*run(1), *run(None), *run(None)}


def test_the_prompt_of_n_samples_is_computed_once(harness: Harness) -> None:
    handle = harness.add(PROMPT, n=3, temperature=1.0, max_tokens=4, ignore_eos=True)
    harness.run()
    assert harness.stats.num_steps == 4
    assert [harness.output(handle, i).finish_reason for i in range(3)] == ["length"] * 3
    assert sum(harness.output(handle, i).prompt is not None for i in range(3)) == 1


# --- streaming --------------------------------------------------------------------------------------------------


def test_a_stream_sends_its_first_token_at_once_and_then_by_interval(harness: Harness) -> None:
    one = harness.add(PROMPT, max_tokens=9, ignore_eos=True, stream_interval=4)
    all_at_end = harness.add(PROMPT, max_tokens=9, ignore_eos=True, stream=False, logprobs=1)
    each = harness.add(PROMPT, max_tokens=9, ignore_eos=True)
    harness.run()
    assert harness.results[one, 0].num_outputs == 3
    assert harness.results[all_at_end, 0].num_outputs == 1
    assert harness.results[each, 0].num_outputs == 9
    assert harness.ids(one) == harness.ids(all_at_end) == harness.ids(each)
    logprobs = harness.output(all_at_end).logprobs
    assert logprobs is not None
    assert len(logprobs) == 9


@pytest.mark.parametrize("stream", [True, False])
def test_sampling_masks_come_one_per_token(folders: dict[str, Path], stream: bool) -> None:
    harness = Harness(folders["llama"], return_sampling_mask=True)
    handle = harness.add(PROMPT, temperature=1.0, top_k=5, seed=3, max_tokens=6, ignore_eos=True, stream=stream)
    harness.run()
    masks = harness.output(handle).sampling_mask
    assert masks is not None
    assert [len(mask) for mask in masks] == [5] * 6
    assert all(token_id in mask for token_id, mask in zip(harness.ids(handle), masks, strict=True))


# --- abort ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
def test_an_aborted_request_returns_what_it_had(harness: Harness, stream: bool) -> None:
    handle = harness.add(PROMPT, n=2, temperature=1.0, max_tokens=50, ignore_eos=True, stream=stream)
    queued = harness.add(PROMPT, max_tokens=5, stream=stream)
    for _ in range(4):
        harness.tick()
    harness.link.inbox.append(wire.Abort([handle, 12345], 1))
    harness.tick()
    assert [harness.output(handle, i).finish_reason for i in range(2)] == ["abort", "abort"]
    assert [len(harness.ids(handle, i)) for i in range(2)] == [4, 4]
    harness.run()
    assert harness.output(queued).finish_reason in ("length", "stop")
    assert drained(harness)


def test_an_abort_before_the_first_step_has_no_tokens_and_no_versions(harness: Harness) -> None:
    handle = harness.add(PROMPT)
    harness.link.inbox.append(wire.Abort([handle], 1))
    harness.run()
    output = harness.output(handle)
    assert (output.token_ids, output.finish_reason, output.weight_versions) == ([], "abort", [])
    assert drained(harness)


async def test_a_reader_that_leaves_ends_its_sequences_within_a_step(harness: Harness) -> None:
    left = harness.add(PROMPT, n=3, temperature=1.0, max_tokens=100, ignore_eos=True)
    stays = harness.add(PROMPT, max_tokens=6, ignore_eos=True)
    for _ in range(3):
        harness.tick()
    await harness.queues[left].aclose()
    harness.tick()
    assert len(harness.core.scheduler.running) == 1
    harness.run()
    assert len(harness.ids(stays)) == 6
    assert drained(harness)


@pytest.mark.parametrize("when", [0, 1, 3])
def test_a_reader_can_end_one_sample_and_keep_the_others(harness: Harness, when: int) -> None:
    handle = harness.add(PROMPT, n=3, temperature=1.0, seed=1, max_tokens=8, ignore_eos=True)
    for _ in range(when):
        harness.tick()
    harness.queues[handle].stop(0)
    harness.run()
    assert [len(harness.ids(handle, i)) for i in (1, 2)] == [8, 8]
    assert (handle, 0) not in harness.results or len(harness.ids(handle, 0)) <= when
    assert drained(harness)


async def test_a_sample_that_its_reader_ended_may_say_a_last_word(harness: Harness) -> None:
    handle = harness.add(PROMPT, n=2, temperature=1.0, seed=1, max_tokens=8, ignore_eos=True)
    for _ in range(3):
        harness.tick()
    num_read = len(harness.ids(handle, 0))
    harness.queues[handle].stop(0, 5.0)
    harness.run()
    ended = harness.output(handle, 0)
    assert (len(ended.token_ids), ended.finish_reason) == (num_read, "abort")
    assert ended.weight_versions is not None
    assert ended.weight_versions[-1].end >= num_read
    assert len(harness.ids(handle, 1)) == 8
    assert drained(harness)


# --- faults -----------------------------------------------------------------------------------------------------


def test_a_request_that_fails_alone_does_not_harm_the_others(
    harness: Harness, references: dict[str, Reference], monkeypatch: pytest.MonkeyPatch
) -> None:
    good = harness.add(PROMPT, max_tokens=10)
    bad = harness.add([60, 61, 62], max_tokens=10)
    logits_of = harness.core.runner.logits

    def fails_on_61(batch: Any) -> torch.Tensor:
        if 61 in batch.token_ids.tolist():
            raise RuntimeError("a kernel does not like 61")
        return logits_of(batch)

    monkeypatch.setattr(harness.core.runner, "logits", fails_on_61)
    harness.run()
    assert harness.output(bad).finish_reason == "error"
    assert "does not like 61" in str(harness.output(bad).error)
    assert harness.ids(good) == references["llama"].greedy(PROMPT, 10)
    assert drained(harness)


def test_a_fault_of_the_whole_step_ends_the_core(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    harness.add(PROMPT)
    harness.add(PROMPT[1:])

    def broken(batch: Any) -> torch.Tensor:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(harness.core.runner, "logits", broken)
    with pytest.raises(RuntimeError, match="the device is gone"):
        harness.run()


@pytest.mark.parametrize(
    ("prompt", "params", "field"),
    [
        ([5, VOCAB], {}, "token_ids"),
        ([5] * 128, {}, "token_ids"),
        ([5], {"n": 9, "temperature": 1.0}, "n"),
        ([5], {"bad_words": ["x"]}, "bad_words"),
    ],
)
async def test_what_cannot_run_is_refused(
    harness: Harness, prompt: list[int], params: dict[str, Any], field: str
) -> None:
    handle = harness.add(prompt, **params)
    harness.run()
    with pytest.raises(InvalidRequestError) as caught:
        await harness.queues[handle].__anext__()
    assert caught.value.param == field
    assert drained(harness)


# --- finish rules -----------------------------------------------------------------------------------------------

EOS, OTHER_EOS, STOP = 3, 4, 7


@pytest.mark.parametrize(
    ("params", "output", "expected"),
    [
        ({}, [5, EOS], ("stop", None)),
        ({}, [5, OTHER_EOS], ("stop", OTHER_EOS)),
        ({"stop_token_ids": [STOP]}, [5, STOP], ("stop", STOP)),
        ({"stop_token_ids": [EOS]}, [EOS], ("stop", None)),
        ({"stop_token_ids": [EOS], "ignore_eos": True}, [EOS], ("stop", EOS)),
        ({"ignore_eos": True}, [OTHER_EOS], None),
        ({"max_tokens": 2, "stop_token_ids": [STOP]}, [5, STOP], ("stop", STOP)),
        ({"max_tokens": 2}, [5, 6], ("length", None)),
        ({}, [5] * 8, ("length", None)),  # the context of 10 is full
        ({"trace_decode_token_ids": [EOS, STOP], "stop_token_ids": [STOP]}, [EOS], None),
        ({"trace_decode_token_ids": [EOS, STOP], "stop_token_ids": [STOP]}, [EOS, STOP], ("length", None)),
        (
            {"repetition_detection": RepetitionDetection(max_pattern_size=2, min_count=3)},
            [5, 6, 5, 6, 5, 6],
            ("repetition", "repetition_detected"),
        ),
        ({"repetition_detection": RepetitionDetection(max_pattern_size=2, min_count=3)}, [6, 5, 6, 5, 5, 6], None),
        (
            {"repetition_detection": RepetitionDetection(max_pattern_size=2, min_count=3), "min_tokens": 7},
            [5, 6, 5, 6, 5, 6],
            None,
        ),
    ],
)
def test_finish_rules(params: dict[str, Any], output: list[int], expected: object) -> None:
    sampling = SamplingParams(**({"max_tokens": 100} | params))
    rules = FinishRules((EOS, OTHER_EOS), 10)
    assert isinstance(sampling.max_tokens, int)
    assert rules.check(sampling, sampling.max_tokens, [1, 2, *output], 2) == expected


def test_without_max_tokens_a_request_runs_to_the_end_of_the_context(folders: dict[str, Path]) -> None:
    harness = Harness(folders["llama"], max_model_len=40)
    handles = [harness.add(PROMPT, max_tokens=m, ignore_eos=True) for m in (None, 1000, 16)]
    harness.run()
    assert [len(harness.ids(h)) for h in handles] == [30, 30, 16]
    assert {harness.output(h).finish_reason for h in handles} == {"length"}


def test_a_trace_is_replayed_with_the_model_s_own_scores(harness: Harness, references: dict[str, Reference]) -> None:
    trace = [40, 3, 41, 42]
    handle = harness.add(PROMPT, max_tokens=9, trace_decode_token_ids=trace, logprobs=0)
    harness.run()
    assert harness.ids(handle) == trace
    table = references["llama"].logprobs(PROMPT + trace)[len(PROMPT) - 1 : -1]
    logprobs = harness.output(handle).logprobs
    assert logprobs is not None
    expected = [float(table[i, token_id]) for i, token_id in enumerate(trace)]
    assert logprobs.logprobs[:, 0].tolist() == pytest.approx(expected, abs=2e-4)


# --- weights ----------------------------------------------------------------------------------------------------


def test_a_label_change_gives_contiguous_spans(harness: Harness) -> None:
    early = harness.add(PROMPT, max_tokens=5, ignore_eos=True, stream_interval=4)
    held = harness.add(PROMPT, max_tokens=5, ignore_eos=True, stream=False)
    for _ in range(3):
        harness.tick()
    late = harness.add(PROMPT, max_tokens=3, ignore_eos=True)
    harness.core.set_weight_version("s2")
    harness.run()
    both = [WeightSpan("default", 0, 3), WeightSpan("s2", 3, 5)]
    assert harness.output(early).weight_versions == both
    assert harness.output(held).weight_versions == both
    assert harness.output(late).weight_versions == [WeightSpan("s2", 0, 3)]


def test_a_label_is_set_by_a_control_message(harness: Harness) -> None:
    handle = harness.add(PROMPT, max_tokens=5, ignore_eos=True)
    for _ in range(3):
        harness.tick()
    control(harness, WeightTransfer(action="update_weight_version", info={"new_version": "s2"}))
    harness.run()
    first, second = harness.output(handle).weight_versions
    assert (first.version, second.version, first.end) == ("default", "s2", second.start)


# --- pause ------------------------------------------------------------------------------------------------------


def control(harness: Harness, message: wire.AnyControl) -> None:
    harness.link.inbox.append(wire.ControlCall(1, message))
    harness.tick()


def test_pause_abort_ends_everything_and_refuses_until_resume(harness: Harness) -> None:
    running = harness.add(PROMPT, max_tokens=50, ignore_eos=True)
    harness.tick()
    control(harness, Pause(mode="abort"))
    assert harness.output(running).finish_reason == "abort"
    refused = harness.add(PROMPT)
    harness.run()
    assert isinstance(harness.queues[refused]._error, EngineUnavailableError)
    control(harness, Resume())
    after = harness.add(PROMPT)
    harness.run()
    assert harness.output(after).finish_reason is not None
    assert drained(harness)


def test_pause_wait_answers_when_all_have_finished(harness: Harness) -> None:
    running = harness.add(PROMPT, max_tokens=6, ignore_eos=True)
    harness.tick()
    harness.link.inbox.append(wire.ControlCall(77, Pause(mode="wait")))
    answered_after = 0
    sent: list[wire.FromCore] = []
    while not any(isinstance(m, wire.Reply) and m.call == 77 for m in sent):
        harness.core.turn()
        sent += harness.link.from_core
        harness.link.from_core = []
        answered_after += 1
        assert answered_after < 20
    assert answered_after == 5
    assert isinstance(sent[-1], wire.Reply), "the last tokens come before the answer"
    harness.link.from_core = sent
    harness.tick()
    assert len(harness.ids(running)) == 6


def test_pause_keep_freezes_and_goes_on_with_the_same_ids(harness: Harness, references: dict[str, Reference]) -> None:
    running = harness.add(PROMPT, max_tokens=8)
    for _ in range(3):
        harness.tick()
    control(harness, Pause(mode="keep"))
    steps = harness.stats.num_steps
    queued = harness.add(PROMPT[2:], max_tokens=8)
    harness.tick()
    assert harness.stats.num_steps == steps
    control(harness, Resume())
    harness.run()
    assert harness.ids(running) == references["llama"].greedy(PROMPT, 8)
    assert harness.ids(queued) == references["llama"].greedy(PROMPT[2:], 8)


@pytest.mark.parametrize("recompute", [True, False])
def test_after_a_cache_reset_nothing_old_is_reused(harness: Harness, recompute: bool) -> None:
    prompt = PROMPT * 3
    running = harness.add(prompt, max_tokens=30, ignore_eos=True)
    for _ in range(3):
        harness.tick()
    control(harness, ResetPrefixCache(reset_running_requests=recompute))
    again = harness.add(prompt, max_tokens=2)
    harness.run()
    news = harness.output(again).prompt
    assert news is not None
    assert news.num_cached_tokens == (28 if recompute else 0)
    assert len(harness.ids(running)) == 30
    assert harness.stats.num_preemptions == int(recompute)
    assert harness.link.from_core == []
    assert CLIENT in harness.core._clients
