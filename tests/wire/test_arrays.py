"""Ids as raw bytes.

1. Packing and unpacking are inverse for every int32, and little-endian on every machine.
2. Bytes that are no ids are an error, never other ids.
3. A MessagePack request with raw ids is the request with a list; what is wrong with it is named as for a list.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenwire.errors import BodyValidationError
from tokenwire.service.logprob_shapes import ragged
from tokenwire.wire import codec
from tokenwire.wire.arrays import RaggedIds, pack_ids, unpack_ids
from tokenwire.wire.generate import GenerateRequest
from tokenwire.wire.sampling import SamplingParams

int32 = st.integers(-(2**31), 2**31 - 1)


@given(st.lists(int32))
def test_ids_survive_as_little_endian_int32(ids: list[int]) -> None:
    assert pack_ids(ids) == np.array(ids, "<i4").tobytes()
    assert unpack_ids(pack_ids(ids)) == ids


@pytest.mark.parametrize("ids", [[2**31], [1, 2**31], [-(2**31) - 1, 0]])
def test_what_does_not_fit_is_not_cut(ids: list[int]) -> None:
    with pytest.raises(OverflowError):
        pack_ids(ids)


@given(st.binary().filter(lambda data: len(data) % 4))
def test_a_broken_number_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="whole number of int32"):
        unpack_ids(data)


@given(st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=4), max_size=5))
def test_lists_of_different_lengths_are_two_arrays(lists: list[list[int]]) -> None:
    packed = ragged([np.array(ids, np.int32) for ids in lists])
    assert list(packed) == lists
    assert list(msgspec.msgpack.decode(msgspec.msgpack.encode(packed), type=RaggedIds)) == lists


@pytest.mark.parametrize(("counts", "ids"), [([2], [1]), ([1], [1, 2]), ([-1, 2], [1]), ([], [1])])
def test_lists_that_do_not_add_up_are_an_error(counts: list[int], ids: list[int]) -> None:
    with pytest.raises(ValueError, match="counts add up to"):
        list(RaggedIds(counts=pack_ids(counts), token_ids=pack_ids(ids)))


def decode(**fields: Any) -> GenerateRequest:
    body = {"sampling_params": {"max_tokens": 1}, **fields}
    return codec.decode(GenerateRequest, msgspec.msgpack.encode(body), "msgpack")[0]


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=40))
def test_raw_ids_make_the_same_request(ids: list[int]) -> None:
    assert decode(token_ids=pack_ids(ids), priority=3) == decode(token_ids=ids, priority=3)
    assert type(decode(token_ids=pack_ids(ids))) is GenerateRequest
    request = GenerateRequest(token_ids=ids, sampling_params=SamplingParams())
    assert codec.decode(GenerateRequest, codec.encode(request.with_raw_ids(), "msgpack"), "msgpack")[0] == request


def test_ids_that_do_not_fit_travel_as_a_list() -> None:
    request = GenerateRequest(token_ids=[1, 2**40], sampling_params=SamplingParams())
    assert request.with_raw_ids() is request


@pytest.mark.parametrize(
    ("raw", "path", "words"),
    [
        (b"", "body.token_ids", "at least 1 item"),
        (b"\1\0\0", "body.token_ids", "3 bytes are not a whole number of int32"),
        (pack_ids([5, -1]), "body.token_ids.1", "greater than or equal to 0"),
        ("QUI=", "body.token_ids", "valid list"),
    ],
)
def test_what_is_wrong_with_raw_ids_is_named(raw: Any, path: str, words: str) -> None:
    with pytest.raises(BodyValidationError) as caught:
        decode(token_ids=raw)
    (found, sentence), *others = caught.value.problems
    assert (found, others) == (path, [])
    assert words in sentence


def test_unknown_fields_beside_raw_ids_are_named() -> None:
    body = msgspec.msgpack.encode({"token_ids": pack_ids([1]), "sampling_params": {}, "foo": 1})
    request, unknown = codec.decode(GenerateRequest, body, "msgpack")
    assert (request.token_ids, unknown) == ([1], ("foo",))


def test_raw_ids_mean_nothing_in_json() -> None:
    with pytest.raises(BodyValidationError, match="valid list"):
        codec.decode(GenerateRequest, b'{"token_ids": "AQAAAA==", "sampling_params": {}}')
