"""Speculative decoding changes how many steps a sequence takes, and nothing else.

1. Ids, scores, ranks, masks, ends and errors are those of one token a step, whatever the sampling parameters, the
   architecture and the company.
2. What a step accepts comes in one output; a stream's interval and weight labels hold.
3. A sequence ends inside a guess where it ends without: stop ids, max_tokens, the end of the context.
4. What was guessed wrong leaves nothing behind: not in the prefix cache, not in the block pool.
5. Guesses keep to the step's budgets and take nobody's blocks; large batches are not guessed for.
6. A fault while a guess is verified ends the sequence it belongs to, with the tokens before it.
7. A sequence that is guessed wrong for rests, longer each time.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.harness import Harness
from tests.engine.speculating import END_THINK, THINK, Ask, Pair, ids_of, with_tokenizer
from tests.engine.test_scheduler import new_request
from tests.engine.tiny_models import CONFIGS
from tokenwire.engine.base import Logprobs
from tokenwire.engine.local import model_step
from tokenwire.engine.local.options import LocalEngineOptions, NgramOptions
from tokenwire.engine.local.requests import Sequence
from tokenwire.engine.local.sampling import SampleOutput, SequenceSampler, sample
from tokenwire.engine.local.speculation import Drafter
from tokenwire.engine.local.speculation.costs import StepCosts, measure_costs
from tokenwire.engine.local.speculation.drafter import LONGEST_REST
from tokenwire.wire.sampling import RepetitionDetection, StructuredOutputs

LOOKUP = NgramOptions(num_speculative_tokens=5, lookup_min=1, lookup_max=3)
AB = ids_of("ab")
LOOP: dict[str, Any] = {"allowed_token_ids": AB, "temperature": 0.5, "seed": 1, "ignore_eos": True, "max_tokens": 40}
"""Two ids in random order: guesses are right half of the time."""


@pytest.fixture(scope="module")
def folder(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_tokenizer(folders["llama"], tmp_path_factory.mktemp("speculating") / "model")


@pytest.fixture(scope="module")
def pair(folder: Path) -> Pair:
    return Pair(folder, LOOKUP, num_kv_blocks=120, max_model_len=90, max_num_batched_tokens=64)


def accepted(harness: Harness) -> int:
    assert harness.core.scheduler.drafter is not None
    return sum(harness.core.scheduler.drafter.figures.accepted_per_position)


# --- 1: the same output -----------------------------------------------------------------------------------------

few_ids = st.lists(st.sampled_from(ids_of("abcd")), min_size=1, max_size=4, unique=True)
prompts = st.lists(st.sampled_from([*ids_of("abcd"), THINK, END_THINK]), min_size=1, max_size=24)


NOT_WITH_A_TRACE = frozenset(
    {"n", "prompt_logprobs", "structured_outputs", "repetition_detection", "thinking_token_budget", "bad_words"}
)


@st.composite
def asks(draw: st.DrawFn) -> Ask:
    """Few ids are likely, so that guesses are often right; every parameter that looks back may be there."""
    params: dict[str, Any] = {
        "temperature": draw(st.sampled_from([0.0, 0.0, 0.3, 1.0])),
        "seed": draw(st.integers(0, 3)),
        "max_tokens": draw(st.integers(1, 40)),
        "ignore_eos": draw(st.booleans()),
        "stream": draw(st.booleans()),
    }
    optional: dict[str, st.SearchStrategy[Any]] = {
        "n": st.integers(1, 3),
        "logprobs": st.sampled_from([0, 3]),
        "prompt_logprobs": st.just(1),
        "top_k": st.integers(1, 5),
        "top_p": st.sampled_from([0.5, 0.9]),
        "min_p": st.just(0.1),
        "allowed_token_ids": few_ids,
        "logit_bias": st.just(dict.fromkeys(AB, 4.0)),
        "min_tokens": st.integers(0, params["max_tokens"]),
        "stop_token_ids": few_ids,
        "bad_words": st.lists(st.sampled_from(["ab", "bb", "aba", "c"]), min_size=1, max_size=2),
        "presence_penalty": st.just(0.7),
        "frequency_penalty": st.sampled_from([-0.5, 0.3]),
        "repetition_penalty": st.sampled_from([0.8, 1.3]),
        "repetition_detection": st.just(RepetitionDetection(max_pattern_size=3, min_pattern_size=1, min_count=3)),
        "thinking_token_budget": st.integers(0, 12),
        "trace_decode_token_ids": st.lists(st.sampled_from(AB), min_size=1, max_size=30),
        "structured_outputs": st.sampled_from(
            [StructuredOutputs(regex="(ab|ba|aab)+c"), StructuredOutputs(choice=["abababababab", "ababacababad"])]
        ),
        "stream_interval": st.integers(1, 4),
    }
    for name in draw(st.lists(st.sampled_from(sorted(optional)), max_size=5, unique=True)):
        params[name] = draw(optional[name])
    if params["temperature"] == 0.0:
        params.pop("n", None)
    if "trace_decode_token_ids" in params:  # a replay that goes with little else
        params = {name: params[name] for name in params if name not in NOT_WITH_A_TRACE}
    return Ask(draw(prompts), params)


@settings(max_examples=70, deadline=None)
@given(st.lists(asks(), min_size=1, max_size=3))
def test_whatever_is_asked_the_answer_is_that_of_one_token_a_step(pair: Pair, together: list[Ask]) -> None:
    pair.run(together)
    for core in (pair.plain.core, pair.guessing.core):
        assert (core.idle, core.scheduler.pool.usage, len(core._samplers)) == (True, 0.0, 0)


def test_guesses_are_right_often_enough_for_the_comparison_to_mean_something(pair: Pair) -> None:
    before = accepted(pair.guessing)
    (((output,),)) = pair.run([Ask(ids_of("abab"), {**LOOP, "logprobs": 2, "repetition_penalty": 1.1})])
    assert output.spec_decode is not None
    assert output.spec_decode.num_spec_tokens == 5
    assert sum(output.spec_decode.accepted) == accepted(pair.guessing) - before > 8
    assert all(a <= d <= 5 for a, d in zip(output.spec_decode.accepted, output.spec_decode.drafted, strict=True))


@pytest.mark.parametrize(
    ("prompt", "params"),
    [
        (
            [THINK, END_THINK, *ids_of("abcabcab")],
            {"structured_outputs": StructuredOutputs(regex="(abc)+d"), "logit_bias": {ids_of("d")[0]: -9.0}},
        ),
        (ids_of("abab"), {"bad_words": ["cd"], "logit_bias": dict.fromkeys(AB, 9.0), "frequency_penalty": -0.9}),
        (
            [THINK, *ids_of("abab")],
            {"thinking_token_budget": 9, "allowed_token_ids": [*AB, END_THINK], "logit_bias": {END_THINK: -50.0}},
        ),
    ],
)
def test_what_looks_back_at_every_token_is_guessed_for_too(
    prompt: list[int], params: dict[str, Any], pair: Pair
) -> None:
    before = accepted(pair.guessing)
    free = {"temperature": 0.5, "seed": 2, "ignore_eos": True, "max_tokens": 50}
    (((output,),)) = pair.run([Ask(prompt, free | params)])
    assert output.error is None
    assert accepted(pair.guessing) > before + 5


@pytest.mark.parametrize("name", CONFIGS)
def test_every_architecture_can_be_guessed_for(name: str, folders: dict[str, Path]) -> None:
    pair = Pair(folders[name], LOOKUP, reasoning_start=None, reasoning_end=None)
    pair.run([Ask([20, 21, 22] * 4, {**LOOP, "allowed_token_ids": [20, 21, 22], "max_tokens": 50, "logprobs": 1})] * 2)
    assert accepted(pair.guessing) > 10


@pytest.mark.parametrize("options", [{"fused": True}, {"fused": False}, {"quantization": "int8"}])
def test_every_path_through_the_model_verifies(options: dict[str, Any], folder: Path) -> None:
    pair = Pair(folder, LOOKUP, **options)
    pair.run([Ask(ids_of("abab"), {**LOOP, "logprobs": 1})])
    assert accepted(pair.guessing) > 5


@pytest.mark.parametrize("mode", ["processed_logprobs", "raw_logits"])
def test_other_kinds_of_scores_are_the_same_too(mode: str, folder: Path) -> None:
    pair = Pair(folder, LOOKUP, logprobs_mode=mode)
    pair.run([Ask(ids_of("abab"), {**LOOP, "logprobs": 2, "top_p": 0.9, "presence_penalty": 0.2})])
    assert accepted(pair.guessing) > 3


def test_sequences_that_preempt_each_other_are_the_same(folder: Path) -> None:
    pair = Pair(folder, LOOKUP, num_kv_blocks=25, max_model_len=90, max_num_seqs=4)
    pair.run([Ask(ids_of("abab" * 3), {**LOOP, "seed": seed, "max_tokens": 70, "n": 2}) for seed in range(3)])
    assert accepted(pair.guessing) > 30
    assert pair.guessing.core.scheduler.num_preemptions > 0


# --- 2: how it is sent -------------------------------------------------------------------------------------------


def test_what_a_step_accepts_comes_in_one_output(folder: Path) -> None:
    harness = Harness(folder, speculative=LOOKUP)
    handle = harness.add(ids_of("abab"), **LOOP, logprobs=1)
    harness.run()
    output = harness.output(handle)
    assert harness.results[handle, 0].num_outputs == harness.core._num_steps < len(output.token_ids)
    assert isinstance(output.logprobs, Logprobs)
    assert output.logprobs.token_ids[:, 0].tolist() == output.token_ids
    stats = output.spec_decode
    assert stats is not None
    # One token a step beside the accepted ones; the last step may end with an accepted one.
    assert harness.core._num_steps + sum(stats.accepted) - len(output.token_ids) in (0, 1)


def test_an_interval_holds_for_what_is_not_in_one_step(folder: Path) -> None:
    harness = Harness(folder, speculative=LOOKUP)
    often = harness.add(ids_of("abab"), **LOOP)
    seldom = harness.add(ids_of("abab"), **LOOP, stream_interval=10)
    whole = harness.add(ids_of("abab"), **LOOP, stream=False)
    harness.run()
    assert harness.ids(often) == harness.ids(seldom) == harness.ids(whole)
    assert harness.results[whole, 0].num_outputs == 1
    assert harness.results[seldom, 0].num_outputs <= 5 < harness.results[often, 0].num_outputs


def test_labels_change_between_steps_only(folder: Path) -> None:
    harness = Harness(folder, speculative=LOOKUP)
    handle = harness.add(ids_of("abab"), **LOOP)
    for i in range(100):
        harness.core.set_weight_version(f"v{i}")
        harness.tick()
        if not len(harness.streams):
            break
    spans = harness.output(handle).weight_versions
    assert spans is not None
    assert [s.start for s in spans] == [0, *(s.end for s in spans)][:-1]
    assert spans[-1].end == 40
    assert max(s.end - s.start for s in spans) > 1


# --- 3: ends ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_tokens", [*range(1, 14), 200])
def test_length_is_kept_to_the_token(max_tokens: int, folder: Path) -> None:
    harness = Harness(folder, speculative=LOOKUP, max_model_len=60)
    prompt = ids_of("ab" * 4)
    handle = harness.add(prompt, temperature=0.0, ignore_eos=True, max_tokens=max_tokens, logit_bias={AB[0]: 100.0})
    harness.run()
    assert harness.ids(handle) == [AB[0]] * min(max_tokens, 52)
    assert harness.output(handle).finish_reason == "length"
    if max_tokens > 8:
        assert accepted(harness) > 3


def test_a_stop_id_inside_a_guess_ends_there(folder: Path) -> None:
    harness = Harness(folder, speculative=LOOKUP)
    trace = ids_of("abcdefabcdefabcdef")
    handle = harness.add(ids_of("abcdefab"), trace_decode_token_ids=trace, max_tokens=18, logprobs=0)
    harness.run()
    assert harness.ids(handle) == trace
    favoured = {"logit_bias": {AB[0]: 100.0}, "stop_token_ids": [AB[0]], "min_tokens": 3}
    stopped = harness.add(ids_of("cabcab"), temperature=0.0, **favoured)
    harness.run()
    assert harness.ids(stopped)[-1] == AB[0]
    assert harness.output(stopped).stop_reason == AB[0]


# --- 4: nothing is left behind -----------------------------------------------------------------------------------


def test_what_the_prefix_cache_holds_after_guesses_is_the_sequence_s_own(folder: Path) -> None:
    harness = Harness(folder, speculative=LOOKUP, num_kv_blocks=200)
    clean = Harness(folder, enable_prefix_caching=False)
    for seed in range(6):
        prompt = ids_of("abab")
        first = harness.add(prompt, **{**LOOP, "seed": seed})
        harness.run()
        longer = [*prompt, *harness.ids(first)]
        again = harness.add(longer, max_tokens=6, logprobs=3)
        expected = clean.add(longer, max_tokens=6, logprobs=3)
        harness.run()
        clean.run()
        cached = harness.output(again).prompt
        assert cached is not None
        assert (cached.num_cached_tokens or 0) >= len(longer) - 5
        assert harness.ids(again) == clean.ids(expected)
        torch.testing.assert_close(
            torch.tensor(harness.output(again).logprobs.logprobs),  # type: ignore[union-attr]
            torch.tensor(clean.output(expected).logprobs.logprobs),  # type: ignore[union-attr]
            atol=1e-4,
            rtol=0,
        )


# --- 5: budgets ---------------------------------------------------------------------------------------------------


def deciding(num_sequences: int, **marks: Any) -> tuple[Drafter, list[Sequence]]:
    """Sequences that end in a long match, and what a drafter knows of them."""
    drafter = Drafter(LOOKUP)
    sequences = [new_request(ids_of("abcdeabcde"), max_tokens=12).sequences[0] for _ in range(num_sequences)]
    for sequence in sequences:
        sequence.drafts = drafter.new_state()
        for name, value in marks.items():
            setattr(sequence.drafts, name, value)
    return drafter, sequences


def test_up_to_the_free_rows_everything_likely_is_guessed() -> None:
    for num in range(1, 4):
        drafter, sequences = deciding(num, trust=0.01)
        guesses = drafter.guess(sequences, 64)
        assert sum(map(len, guesses.values())) == min(5 * num, 8 - num)
        assert guesses[sequences[0]] == ids_of("abcde")[: len(guesses[sequences[0]])]


@pytest.mark.parametrize(("num", "trust", "each"), [(8, 0.4, 2), (8, 0.9, 5), (16, 0.4, 1), (16, 0.9, 5), (24, 0.9, 4)])
def test_beyond_them_a_guess_must_be_worth_its_row(num: int, trust: float, each: int) -> None:
    drafter, sequences = deciding(num, trust=trust)
    found = drafter.guess(sequences, 1000)
    assert [len(draft) for draft in found.values()] == [each] * num


def test_the_step_s_budget_bounds_guesses_and_large_batches_have_none() -> None:
    drafter, sequences = deciding(10, trust=1.0)
    assert sum(map(len, drafter.guess(sequences, 13).values())) == 3
    assert drafter.guess(sequences, 10) == {}
    drafter, sequences = deciding(300, trust=1.0)
    assert drafter.guess(sequences, 1000) == {}
    assert all(len(s.drafts.index) == 0 for s in sequences if s.drafts is not None), "not even looked up"


def test_costs_lie_on_lines_between_what_was_measured() -> None:
    costs = StepCosts((1, 8, 16), (10.0, 17.0, 33.0))
    assert [costs.of(rows) for rows in (1, 2, 8, 12, 16, 20)] == [10, 11, 17, 25, 33, 41]
    assert [costs.of_one_more(rows) for rows in (1, 7, 8, 15, 16, 99)] == [1, 1, 2, 2, 2, 2]


def test_a_row_more_is_measured_never_to_be_cheaper(folder: Path) -> None:
    costs = measure_costs(Harness(folder).core.runner)
    assert costs.rows == (1, 4, 8, 16, 32)
    assert 0 < costs.times[0] < 1
    assert list(costs.times) == sorted(costs.times)
    assert measure_costs(Harness(folder, num_kv_blocks=30, max_model_len=90).core.runner).rows == (1, 4, 8, 16)


def test_a_busy_core_keeps_its_budget(folder: Path) -> None:
    harness = Harness(folder, speculative=LOOKUP, max_num_seqs=24, num_kv_blocks=400, max_num_batched_tokens=30)
    scheduler = harness.core.scheduler
    schedule = scheduler.schedule
    guessed = []

    def watching() -> list[Any]:
        chunks = schedule()
        assert sum(c.num_rows for c in chunks) <= 30
        guessed.append(sum(len(c.draft) for c in chunks))
        return chunks

    scheduler.schedule = watching  # type: ignore[method-assign]
    for i in range(20):
        harness.add(ids_of("abab"), **{**LOOP, "seed": i, "max_tokens": 10 + 3 * i})
    harness.run()
    assert sum(guessed) > 20


# --- 6: faults ----------------------------------------------------------------------------------------------------


def test_a_fault_while_a_guess_is_verified_ends_that_sequence_with_what_it_had(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Harness(folder)
    asked = {**LOOP, "logprobs": 0}
    good, bad = {**asked, "seed": 5}, {**asked, "seed": 6}
    expected = [whole.add(ids_of("abab"), **params) for params in (good, bad)]
    whole.run()
    harness = Harness(folder, speculative=LOOKUP)
    handles = [harness.add(ids_of("abab"), **params) for params in (good, bad)]
    calls = 0

    def fails(logits: torch.Tensor, samplers: Seq[SequenceSampler], **options: Any) -> SampleOutput:
        nonlocal calls
        calls += 1
        if any(s.params.seed == 6 and s.num_output_tokens == 20 for s in samplers):
            raise RuntimeError("cannot")
        return sample(logits, samplers, **options)

    monkeypatch.setattr(model_step, "sample", fails)
    harness.run()
    assert harness.output(handles[1]).finish_reason == "error"
    assert harness.ids(handles[1]) == whole.ids(expected[1])[:20]
    assert harness.ids(handles[0]) in (whole.ids(expected[0]), whole.ids(expected[0])[: len(harness.ids(handles[0]))])
    core = harness.core
    assert core.idle
    assert core.scheduler.pool.usage == 0


# --- 7: rests -----------------------------------------------------------------------------------------------------


def test_wrong_guesses_make_a_sequence_rest_longer_each_time_and_a_right_one_ends_that() -> None:
    drafter, (sequence,) = deciding(1)
    sequence.request.max_tokens = 1000
    state = sequence.drafts
    assert state is not None
    waits = []
    for _ in range(9):
        wait = 0
        while not drafter.guess([sequence], 64):
            wait += 1
            assert wait <= LONGEST_REST
            sequence.token_ids.append(AB[0])
        waits.append(wait)
        drafter.verifying(sequence, 2)
    assert waits[0] == 0
    assert waits[1:] == sorted(waits[1:])
    assert waits[-1] == LONGEST_REST
    drafter.was_right(sequence)
    state.trust = 0.02
    assert drafter.guess([sequence], 64)
    assert (state.drafted[-1], state.accepted[-1]) == (2, 1)
    assert state.trust == pytest.approx(0.7 * 0.02 + 0.3 * 0.5)


def test_without_speculation_nothing_is_kept_or_told(folder: Path) -> None:
    harness = Harness(folder)
    handle = harness.add(ids_of("abab"), **LOOP)
    harness.run()
    assert LocalEngineOptions().speculative is None
    assert harness.output(handle).spec_decode is None
    assert harness.stats.accepted_per_position == ()
    assert not harness.core._info.capabilities.speculation
