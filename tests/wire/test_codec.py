"""Bytes to wire types.

1. A well-formed body takes one strict pass; the lenient road gives the same object for what lenient servers accept.
2. Every problem is reported with its path; at most ten of them, and the total.
3. Unknown fields are named, never silently lost; some objects refuse them.
4. No body whatever makes anything but a value or a `BodyValidationError`.
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenwire.errors import BodyValidationError, InvalidRequestError
from tokenwire.wire import codec
from tokenwire.wire.generate import GenerateRequest, ParseContext, request_with_ids_below
from tokenwire.wire.sampling import SamplingParams
from tokenwire.wire.sampling_rules import SamplingLimits, check_against, normalize


def decode(value: Any) -> GenerateRequest:
    return codec.decode(GenerateRequest, json.dumps(value).encode())[0]


def problems(body: bytes) -> list[tuple[str, str]]:
    with pytest.raises(BodyValidationError) as caught:
        codec.decode(GenerateRequest, body)
    return caught.value.problems


@pytest.mark.parametrize("ids", [[1, 2], [1.0, 2.0], ["1", "2"], [True, "2"]])
def test_ids_may_come_as_whole_floats_strings_and_bools(ids: list[Any]) -> None:
    assert decode({"token_ids": ids, "sampling_params": {}}).token_ids == [1, 2]


def test_numbers_and_flags_are_taken_from_strings_where_they_are_meant() -> None:
    sampling = {"logprobs": True, "temperature": "0.5", "ignore_eos": "true", "n": 2.0, "logit_bias": {"7": 1}}
    params = decode({"token_ids": [1], "sampling_params": sampling}).sampling_params
    assert (params.logprobs, params.temperature, params.ignore_eos, params.n) == (1, 0.5, True, 2)
    assert params.logit_bias == {7: 1.0}


def test_an_omitted_max_tokens_is_not_the_same_as_null_or_a_number() -> None:
    values = [decode({"token_ids": [1], "sampling_params": s}).sampling_params.max_tokens
              for s in ({}, {"max_tokens": None}, {"max_tokens": 16})]  # fmt: skip
    assert values == [msgspec.UNSET, None, 16]


@pytest.mark.parametrize(
    ("body", "path", "words"),
    [
        (b"", "body", "Field required"),
        (b"null", "body", "Field required"),
        (b'"x"', "body", "dictionary or object"),
        (b"[1]", "body", "dictionary or object"),
        (b"{not json", "body", "JSON decode error"),
        (b"[" * 100_000, "body", "nested too deeply"),
        (b'{"token_ids":[1]}', "body.sampling_params", "Field required"),
        (b'{"token_ids":[],"sampling_params":{}}', "body.token_ids", "at least 1 item"),
        (b'{"token_ids":[1,-1],"sampling_params":{}}', "body.token_ids.1", "greater than or equal to 0"),
        (b'{"token_ids":[1,null],"sampling_params":{}}', "body.token_ids.1", "valid integer"),
        (b'{"token_ids":[1.5],"sampling_params":{}}', "body.token_ids.0", "fractional part"),
        (b'{"token_ids":[1],"sampling_params":null}', "body.sampling_params", "dictionary"),
        (b'{"token_ids":[1],"sampling_params":{"n":null}}', "body.sampling_params.n", "valid integer"),
        (b'{"token_ids":[1],"sampling_params":{"top_p":null}}', "body.sampling_params.top_p", "valid number"),
        (b'{"token_ids":[1],"sampling_params":{"stop":5}}', "body.sampling_params.stop", "valid string"),
        (b'{"token_ids":[1],"sampling_params":{},"priority":18446744073709551616}', "body.priority", "64 bits"),
        (b'{"token_ids":[1],"sampling_params":{},"output_mode":"json"}', "body.output_mode", "'text'"),
        (b'{"token_ids":[1],"sampling_params":{},"reasoning_parser_kwargs":{"foo":1}}',
         "body.reasoning_parser_kwargs.foo", "not permitted"),
    ],
)  # fmt: skip
def test_a_problem_is_reported_with_its_path(body: bytes, path: str, words: str) -> None:
    found = problems(body)
    assert found[0][0] == path
    assert words in found[0][1]


def test_at_most_ten_problems_are_listed_and_all_are_counted() -> None:
    with pytest.raises(BodyValidationError, match="25 validation errors") as caught:
        decode({"token_ids": ["x"] * 25, "sampling_params": {}})
    assert len(caught.value.problems) == 10


def test_unknown_fields_are_named_at_every_depth() -> None:
    value = {"token_ids": [1], "foo": 1, "sampling_params": {"best_of": 2}, "parse_context": {"bar": 3}}
    request, unknown = codec.decode(GenerateRequest, json.dumps(value).encode())
    assert set(unknown) == {"foo", "sampling_params.best_of", "parse_context.bar"}
    assert request.parse_context == ParseContext()


def test_message_pack_takes_ids_as_raw_bytes() -> None:
    body = msgspec.msgpack.encode({"token_ids": np.array([3, 70000], "<i4").tobytes(), "sampling_params": {"n": 1}})
    assert codec.decode(GenerateRequest, body, "msgpack")[0].token_ids == [3, 70000]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
FIELDS = [*GenerateRequest.__struct_fields__, "unknown"]
SAMPLING = [*SamplingParams.__struct_fields__, "unknown"]
LIMITS = SamplingLimits(vocab_size=100, max_model_len=50)


@given(
    st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4),
    st.dictionaries(st.sampled_from(SAMPLING), JSON, max_size=4),
)
def test_any_values_in_any_fields_give_a_request_or_a_named_problem(fields: Any, sampling: Any) -> None:
    body = json.dumps({"token_ids": [1], **fields, "sampling_params": sampling}).encode()
    try:
        request, _ = codec.decode(GenerateRequest, body)
        check_against(normalize(request.sampling_params), LIMITS)
        if request.features is not None:
            request.features.check(len(request.token_ids), has_ec_transfer=False)
    except InvalidRequestError:
        return  # any other exception fails the test


@given(st.binary(max_size=60))
def test_any_bytes_are_a_body_validation_error(body: bytes) -> None:
    for fmt in ("json", "msgpack"):
        with pytest.raises(BodyValidationError):
            codec.decode(GenerateRequest, body, fmt)


@given(st.builds(SamplingParams, n=st.integers(1, 5), top_k=st.integers(-1, 9), seed=st.none() | st.integers(-9, 9)))
def test_normalising_twice_changes_nothing(params: SamplingParams) -> None:
    once = normalize(params)
    assert normalize(once) == once


def test_greedy_resets_what_it_overrides_and_small_temperatures_are_raised() -> None:
    greedy = normalize(SamplingParams(temperature=1e-6, top_p=0.5, top_k=3, min_p=0.1))
    assert (greedy.temperature, greedy.top_p, greedy.top_k, greedy.min_p) == (0.0, 1.0, 0, 0.0)
    assert normalize(SamplingParams(temperature=0.001)).temperature == 0.01
    assert normalize(SamplingParams(seed=-1)).seed is None


RULES: list[tuple[dict[str, Any], str]] = [
    ({"n": 0}, "n must be at least 1"),
    ({"n": 2, "temperature": 0}, "greedy"),
    ({"temperature": -1}, "non-negative"),
    ({"temperature": 2.5}, r"\[0, 2\]"),
    ({"top_p": 0}, r"\(0, 1\]"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "greater than zero"),
    ({"max_tokens": 0}, "at least 1"),
    ({"max_tokens": 2, "min_tokens": 5}, "max_tokens=2"),
    ({"logprobs": -2}, "logprobs"),
    ({"logprobs": 21}, "max allowed: 20"),
    ({"prompt_logprobs": 21}, "max allowed: 20"),
    ({"logprob_token_ids": [1, 2], "logprobs": 3}, "length"),
    ({"logprob_token_ids": list(range(129))}, "128"),
    ({"logprob_token_ids": [100]}, "Vocabulary size: 100"),
    ({"stop_token_ids": [-1]}, "Vocabulary size: 100"),
    ({"logit_bias": {"100": 1}}, "Vocabulary size: 100"),
    ({"allowed_token_ids": []}, "empty"),
    ({"allowed_token_ids": [100]}, "out-of-vocab"),
    ({"stop": [""]}, "empty string"),
    ({"stop": "x", "detokenize": False}, "detokenize"),
    ({"bad_words": [""]}, "empty string"),
    ({"prompt_logprob_start": 3}, "requires prompt_logprob_token_ids"),
    ({"prompt_logprob_token_ids": [[1]] * 60}, "max_model_len-1"),
    ({"seed": 2**63}, "64 bits"),
    ({"stream_interval": 0}, "stream_interval"),
    ({"output_kind": 3}, "output_kind"),
    ({"thinking_token_budget": -2}, "thinking_token_budget"),
    ({"repetition_detection": {"max_pattern_size": 1, "min_pattern_size": 5}}, "min_pattern_size"),
    ({"repetition_detection": {"max_pattern_size": 3, "min_pattern_size": 1, "min_count": 1}}, "min_count"),
    ({"trace_decode_token_ids": [1], "n": 2}, "n"),
    ({"structured_outputs": {}}, "none are specified"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "multiple"),
    ({"structured_outputs": {"json": "{not json"}}, "Invalid JSON"),
    ({"structured_outputs": {"json_object": False}}, "json_object"),
    ({"structured_outputs": {"regex": "a\0"}}, "NUL"),
    ({"structured_outputs": {"json": json.loads("[" * 70 + "]" * 70)}}, "valid string|nested deeper"),
    ({"structured_outputs": {"json": "[" * 70 + "]" * 70}}, "nested deeper than 64"),
]


@pytest.mark.parametrize(("sampling", "words"), RULES)
def test_each_rule_of_sampling_has_its_own_sentence(sampling: dict[str, Any], words: str) -> None:
    def run() -> None:
        check_against(normalize(decode({"token_ids": [1], "sampling_params": sampling}).sampling_params), LIMITS)

    with pytest.raises(InvalidRequestError, match=words):
        run()


def test_without_a_cap_the_vocabulary_is_the_most_logprobs() -> None:
    uncapped = dataclasses.replace(LIMITS, max_logprobs=-1)
    for count in (-1, 100):
        check_against(normalize(SamplingParams(logprobs=count, prompt_logprobs=count)), uncapped)
    with pytest.raises(InvalidRequestError, match="max allowed: 100"):
        check_against(normalize(SamplingParams(logprobs=101)), uncapped)


@pytest.mark.parametrize("escape", [r"\ud800", r"\uDFFF", r"a\udc00\ud800"])
@pytest.mark.parametrize(
    "body, where",
    [
        ('{"token_ids": [1], "sampling_params": {}, "cache_salt": "%s"}', "body.cache_salt"),
        ('{"token_ids": [1], "sampling_params": {}, "request_id": "%s"}', "body.request_id"),
        ('{"token_ids": [1], "sampling_params": {}, "model": "%s"}', "body.model"),
        ('{"token_ids": [1], "sampling_params": {"stop": ["a", "%s"]}}', "body.sampling_params.stop.1"),
        ('{"token_ids": [1], "sampling_params": {}, "%s": 1}', "body (a name in it)"),
    ],
)
def test_half_of_a_surrogate_pair_is_refused_by_the_name_of_its_field(body: str, where: str, escape: str) -> None:
    with pytest.raises(BodyValidationError, match="lone surrogates") as caught:
        codec.decode(GenerateRequest, (body % escape).encode())
    assert where in str(caught.value)
    str(caught.value).encode()  # the reply can be written


def test_whole_surrogate_pairs_are_text() -> None:
    body = rb'{"token_ids": [1], "sampling_params": {}, "cache_salt": "\ud83d\ude00 \u00e9"}'
    assert codec.decode(GenerateRequest, body)[0].cache_salt == "\U0001f600 \u00e9"


@given(st.lists(st.integers(-2, 120), max_size=5), st.booleans())
def test_a_narrower_request_refuses_nothing_that_the_plain_one_takes(ids: list[int], odd: bool) -> None:
    body = json.dumps({"token_ids": ids, "sampling_params": {"n": "1"} if odd else {}}).encode()
    narrower = request_with_ids_below(100)
    if min(ids, default=-1) < 0:
        with pytest.raises(BodyValidationError) as plainly:
            codec.decode(GenerateRequest, body)
        with pytest.raises(BodyValidationError, match=re.escape(str(plainly.value))):
            codec.decode(GenerateRequest, body, narrower=narrower)
        return
    plain = codec.decode(GenerateRequest, body)
    request, unknown = codec.decode(GenerateRequest, body, narrower=narrower)
    assert (msgspec.to_builtins(request), unknown) == (msgspec.to_builtins(plain[0]), plain[1])
    assert (100 if not odd and max(ids) < 100 else None) == request.IDS_BELOW
