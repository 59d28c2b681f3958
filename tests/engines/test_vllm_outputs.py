"""What vLLM gives, as ours; with stand-ins of vLLM's shapes, so that no vLLM is needed.

1. Flat scores become arrays whose column 0 is the sampled token; rows keep their ranks. Lists of dicts give the same.
2. The prompt's first position has no row.
3. Everything that rides on outputs is carried; what an older vLLM does not have is absent.
4. vLLM's exceptions are told by name.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.engines.remote import request
from tokenwire.engine.base import EngineOutput, Logprobs, WeightSpan
from tokenwire.engine.vllm.errors import translate
from tokenwire.engine.vllm.outputs import OutputMaker, prompt_scores, scores
from tokenwire.engine.vllm.support import Support, flag
from tokenwire.errors import (
    EngineDeadError,
    EngineUnavailableError,
    GenerationError,
    InvalidRequestError,
    OverloadedError,
    TokenwireError,
    UnsupportedFeatureError,
)

Row = list[tuple[int, float, int | None]]


class Flat:
    """The attributes of vLLM's FlatLogprobs that count."""

    def __init__(self, rows: list[Row]) -> None:
        self.start_indices: list[int] = []
        self.end_indices: list[int] = []
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.ranks: list[int | None] = []
        for row in rows:
            self.start_indices.append(len(self.token_ids))
            for token_id, logprob, rank in row:
                self.token_ids.append(token_id)
                self.logprobs.append(logprob)
                self.ranks.append(rank)
            self.end_indices.append(len(self.token_ids))

    def __len__(self) -> int:
        return len(self.start_indices)

    def __getitem__(self, at: int) -> dict[int, Any]:
        return {
            self.token_ids[i]: SimpleNamespace(logprob=self.logprobs[i], rank=self.ranks[i])
            for i in range(self.start_indices[at], self.end_indices[at])
        }


ROWS: list[Row] = [[(5, -2.0, 9), (7, -0.1, 1), (8, -0.5, 2)], [(7, -0.1, 1), (7, -0.1, 1), (8, -0.5, 2)]]


def as_dicts(rows: list[Row]) -> list[dict[int, Any]]:
    return [{i: SimpleNamespace(logprob=p, rank=r) for i, p, r in row} for row in rows]


def assert_same(left: Logprobs | None, right: Logprobs | None) -> None:
    assert left is not None
    assert right is not None
    np.testing.assert_array_equal(left.token_ids, right.token_ids)
    np.testing.assert_array_equal(left.logprobs, right.logprobs)
    np.testing.assert_array_equal(left.ranks, right.ranks)


def test_flat_scores_become_arrays() -> None:
    got = scores(Flat(ROWS))
    assert got is not None
    assert got.token_ids.tolist() == [[5, 7, 8], [7, 7, 8]]
    assert got.ranks.tolist() == [9, 1]
    assert (got.token_ids.dtype, got.logprobs.dtype) == (np.int32, np.float32)


def test_lists_of_dicts_give_the_same_arrays() -> None:
    assert_same(scores(as_dicts(ROWS)), scores(Flat(ROWS)))


def test_rows_of_different_width_are_padded() -> None:
    got = scores(Flat([ROWS[0], [(4, -0.3, 1)]]))
    assert got is not None
    assert got.token_ids[1].tolist()[0] == 4
    assert -1 in got.token_ids[1].tolist()


def test_the_first_prompt_position_has_no_row() -> None:
    got = prompt_scores(Flat([[], *ROWS]))
    assert_same(got, scores(Flat(ROWS)))
    assert_same(prompt_scores([None, *as_dicts(ROWS)]), got)
    assert prompt_scores(Flat([[]])) is None
    assert prompt_scores(None) is None


def test_an_unknown_rank_is_zero() -> None:
    got = scores(Flat([[(5, float("nan"), None)]]))
    assert got is not None
    assert got.ranks.tolist() == [0]


def result(**fields: Any) -> Any:
    completion = {"token_ids": [5, 7], "logprobs": None, "finish_reason": None, "stop_reason": None}
    completion |= {k: fields.pop(k) for k in list(fields) if k in completion or k.startswith("c_")}
    named = {k.removeprefix("c_"): v for k, v in completion.items()}
    return SimpleNamespace(outputs=[SimpleNamespace(**named)], **fields)


def make(given: Any, *, index: int = 0, **sampling: Any) -> EngineOutput:
    return OutputMaker(request(n=2, **sampling), index).make(given)


def test_everything_of_a_last_output_is_carried() -> None:
    spec = SimpleNamespace(
        num_spec_tokens=3, histogram=[1, 0, 0, 1], num_draft_tokens=6, per_step_accepted=[], per_step_drafted=[]
    )
    output = make(
        result(
            logprobs=Flat(ROWS),
            finish_reason="stop",
            stop_reason=7,
            c_routed_experts=np.zeros((2, 1, 2), np.uint8),
            c_sampling_mask=SimpleNamespace(token_ids=[[1, 2], [3]]),
            c_weight_versions=[SimpleNamespace(version="v", start=0, end=2)],
            c_spec_decode_metrics=spec,
            num_cached_tokens=16,
            kv_transfer_params={"blk": [1]},
            ec_transfer_params={"e": 1},
            prompt_logprobs=Flat([[], *ROWS]),
            prompt_token_id_logprobs=np.zeros((1, 2)),
            encoder_prompt_token_ids=[1, 2, 3],
        ),
        logprobs=2,
    )
    assert output.logprobs is not None
    assert output.routed_experts is not None
    assert output.sampling_mask is not None
    assert [mask.tolist() for mask in output.sampling_mask] == [[1, 2], [3]]
    assert output.weight_versions == [WeightSpan("v", 0, 2)]
    assert output.spec_decode is not None
    assert (output.spec_decode.accepted, output.spec_decode.drafted) == ([0, 3], [3, 3])
    assert (output.kv_transfer_params, output.ec_transfer_params) == ({"blk": [1]}, {"e": 1})
    assert output.prompt is not None
    assert (output.prompt.num_cached_tokens, output.prompt.num_encoder_tokens) == (16, 3)
    assert output.prompt.logprobs is not None
    assert output.prompt.token_id_logprobs is not None


def test_an_older_vllm_lacks_the_newer_fields() -> None:
    output = make(result(finish_reason="length"))
    assert (output.weight_versions, output.spec_decode, output.routed_experts) == (None, None, None)


def test_prompt_facts_ride_on_the_first_sequence_once() -> None:
    maker = OutputMaker(request(), 0)
    assert maker.make(result(num_cached_tokens=3)).prompt is not None
    assert maker.make(result(num_cached_tokens=3)).prompt is None
    assert make(result(num_cached_tokens=3), index=1).prompt is None


# --- errors, support


def exception(*names: str) -> Exception:
    """An exception whose ancestry has these class names, nearest first."""
    base: type[Exception] = Exception
    for name in reversed(names):
        base = type(name, (base,), {})
    return base("vLLM's sentence")


@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (exception("EngineDeadError", "VLLMServerError"), EngineDeadError),
        (exception("VLLMValidationError", "VLLMClientError"), InvalidRequestError),
        (exception("RetryableRequestError", "GenerationError", "VLLMServerError"), EngineUnavailableError),
        (exception("GracefulHTTPError", "VLLMError"), OverloadedError),
        (exception("EngineGenerateError", "VLLMServerError"), GenerationError),
        (ValueError("vLLM's sentence"), InvalidRequestError),
        (RuntimeError("vLLM's sentence"), GenerationError),
    ],
)
def test_an_exception_is_told_by_the_names_of_its_classes(raised: Exception, error: type[TokenwireError]) -> None:
    got = translate(raised)
    assert type(got) is error
    assert got.message == "vLLM's sentence"


def test_an_argument_that_this_vllm_does_not_take_is_refused_by_name() -> None:
    support = Support(frozenset({"priority"}), frozenset())
    assert support.keep({"priority": 2, "session_id": None}, "x") == {"priority": 2}
    with pytest.raises(UnsupportedFeatureError, match="session_id"):
        support.keep({"session_id": "s"}, "x")


def test_a_flag_is_found_in_whatever_section_it_stands() -> None:
    assert flag(SimpleNamespace(aux=SimpleNamespace(wanted=True)), "wanted")
    assert not flag(SimpleNamespace(aux=SimpleNamespace(wanted=False)), "wanted")
    assert not flag(SimpleNamespace(), "wanted")
