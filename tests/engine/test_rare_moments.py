"""Moments that seldom come, and what must hold in them.

1. A first sample that is ended while its request's grammar is compiled does not take the others with it.
2. A sequence that waits again when the weight label changes has sent its tokens under the old one.
3. What shares blocks of a dropped prefix cache does not make them known again.
4. When sampling a batch fails, rows are tried alone, except those that the failed attempt may have changed.
5. Parameters that leave no token end the sequence with an error, not with a token that none of them allows.
6. An error of the device is no request's fault.
7. An empty table of prompt scores stays one, whatever is learnt later.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engine.harness import Harness, Reference
from tests.engine.test_requests import PROMPT, drained
from tests.engine.test_scheduler import new_request, scheduler
from tokenwire.engine.base import Logprobs, PromptOutput
from tokenwire.engine.local import messages as wire
from tokenwire.engine.local import model_step
from tokenwire.engine.local.requests import Request
from tokenwire.engine.local.sampling import SampleOutput, SequenceSampler, sample


@pytest.fixture
def harness(folders: dict[str, Path]) -> Harness:
    return Harness(folders["llama"])


class SlowGrammars:
    """Holds every request until told that its grammar is there."""

    def __init__(self) -> None:
        self.held: list[Request] = []
        self.ready = False

    @property
    def busy(self) -> bool:
        return bool(self.held)

    def hold(self, request: Request, samplers: object) -> bool:
        self.held.append(request)
        return True

    def take_finished(self) -> list[tuple[Request, None]]:
        done, self.held = (self.held, []) if self.ready else ([], self.held)
        return [(request, None) for request in done]


@pytest.mark.parametrize("ended", [[0], [1], [0, 1], [0, 1, 2]])
def test_samples_may_be_ended_while_the_grammar_is_compiled(harness: Harness, ended: list[int]) -> None:
    grammars = SlowGrammars()
    harness.core._grammars = grammars  # type: ignore[assignment]
    handle = harness.add(PROMPT, n=3, temperature=1.0, seed=1, max_tokens=6, ignore_eos=True)
    harness.tick()
    for index in ended:
        harness.queues[handle].stop(index)
    harness.tick()
    assert not harness.core.scheduler.running
    grammars.ready = True
    harness.run()
    for _ in range(2):
        harness.tick()
    assert sorted(index for _, index in harness.results) == [i for i in range(3) if i not in ended]
    assert all(len(result.output.token_ids) == 6 for result in harness.results.values())
    assert drained(harness)


def test_a_waiting_sequence_has_sent_its_tokens_under_their_label(harness: Harness) -> None:
    harness.add(PROMPT, max_tokens=8, ignore_eos=True, stream_interval=6)
    for _ in range(4):
        harness.tick()
    harness.core.scheduler.preempt_all()
    harness.core.set_weight_version("next")
    steps = [m for m in harness.link.from_core if isinstance(m, wire.Step) and m.token_ids]
    assert [(step.version, wire.unpack_ids(step.counts)) for step in steps] == [("default", [3])]
    harness.run()


def test_a_fork_of_what_must_not_become_known_is_not_known_either() -> None:
    s = scheduler()
    request = new_request([1] * 18, n=2)
    parent, child = request.sequences
    s.add(parent)
    s.advance(s.schedule())
    s.drop_prefix_cache(recompute_running=False)
    s.advance(s.schedule())
    assert s.fork(parent, child) is not None
    child.token_ids += [2] * 4
    s.advance([model_step.Chunk(child, 4)])
    assert s.pool.find(child.hashes_of(5, 4)) == []
    assert not s.pool._by_hash


def test_a_row_that_may_be_half_adjusted_is_not_sampled_again(
    harness: Harness, references: dict[str, Reference], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails_in_company(logits: torch.Tensor, samplers: Seq[SequenceSampler], **options: Any) -> SampleOutput:
        if len(samplers) > 1:
            for row, sampler in enumerate(samplers):
                if sampler.adjusts:
                    logits[row] += 100.0
            raise RuntimeError("too many")
        return sample(logits, samplers, **options)

    monkeypatch.setattr(model_step, "sample", fails_in_company)
    plain = harness.add(PROMPT, max_tokens=6, ignore_eos=True)
    adjusted = harness.add(PROMPT, max_tokens=6, ignore_eos=True, repetition_penalty=1.5)
    harness.run()
    assert harness.ids(plain) == references["llama"].greedy(PROMPT, 6)
    assert harness.output(adjusted).finish_reason == "error"
    assert "too many" in str(harness.output(adjusted).error)
    assert drained(harness)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 5}])
def test_no_token_that_is_not_allowed_is_ever_given_out(harness: Harness, sampling: dict[str, Any]) -> None:
    handle = harness.add(PROMPT, allowed_token_ids=[3], min_tokens=2, **sampling)
    ends = harness.add(PROMPT, allowed_token_ids=[3], **sampling)
    harness.run()
    assert (harness.output(handle).finish_reason, harness.output(ends).finish_reason) == ("error", "stop")
    assert "allowed_token_ids" in str(harness.output(handle).error)
    assert (harness.ids(handle), harness.ids(ends)) == ([], [3])
    assert drained(harness)


@pytest.mark.parametrize("fault", model_step.FATAL)
def test_a_fault_of_the_device_ends_the_core_even_with_one_request(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, fault: type[Exception]
) -> None:
    def broken(batch: Any) -> torch.Tensor:
        raise fault("the device is gone")

    monkeypatch.setattr(harness.core.runner, "logits", broken)
    harness.add(PROMPT)
    with pytest.raises(fault, match="the device is gone"):
        harness.run()


def test_an_empty_table_of_prompt_scores_is_kept() -> None:
    empty = Logprobs(np.zeros((0, 1), np.int32), np.zeros((0, 1), np.float32), np.zeros(0, np.int32))
    news = PromptOutput(logprobs=empty)
    news.fill(PromptOutput(num_cached_tokens=3))
    assert news == PromptOutput(num_cached_tokens=3, logprobs=empty)
