"""Recorded requests give the recorded ids, or the recorded error.

1. Status; for errors also type, message and param. 2. Ids exactly. 3. Sampling parameters by meaning. 4. Flags around
them: stream, cache salt, reasoning. 5. Every record that is not followed is in `differences.py`, with our answer.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.render.cases import Record, answer, full_recordings, in_tree, recorded_sampling, sampling
from tests.render.differences import SAMPLING, STATUS

RECORDS = {record["id"]: record for record in [*in_tree(), *full_recordings()]}


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS.keys())
async def test_a_recorded_request_gets_the_recorded_answer(record: Record) -> None:
    status, body = await answer(record)
    expected_status, _ = STATUS.get(record["id"], (record["status"], ""))
    assert status == expected_status
    if record["id"] in STATUS:
        return
    if status != 200:
        _check_error(body["error"], record["response"]["error"])
    elif record["kind"] == "tokenize":
        assert body == record["response"]
    elif record["kind"] == "completion":
        assert [request["token_ids"] for request in body] == record["token_ids_list"]
        for request, rest in zip(body, record["response_rest"], strict=True):
            _check_rest(record, request, rest)
    else:
        assert body["token_ids"] == record["token_ids"]
        _check_rest(record, body, record["response_rest"])


def _check_error(error: dict[str, Any], recorded: dict[str, Any]) -> None:
    assert error["type"] == recorded["type"]
    assert error["param"] == recorded["param"]
    assert error["message"] == recorded["message"]


def _check_rest(record: Record, request: dict[str, Any], rest: dict[str, Any]) -> None:
    changes, _ = SAMPLING.get(record["id"], ({}, ""))
    assert sampling(request["sampling_params"]) == recorded_sampling(record, rest["sampling_params"]) | changes
    assert request.get("stream", False) == rest.get("stream", False)
    assert request.get("cache_salt") == rest.get("cache_salt")
    assert request.get("reasoning_ended") == rest.get("reasoning_ended")
    options = {name: on for name, on in (rest.get("stream_options") or {}).items() if on}
    assert (request.get("stream_options") or {}) == options
    kwargs = rest.get("reasoning_parser_kwargs")
    if kwargs is not None:  # the recorded server adds a default of another model family to every request
        kwargs["chat_template_kwargs"].pop("cohere_format", None)
    assert request.get("reasoning_parser_kwargs") == kwargs


def test_every_difference_names_a_record_or_its_recording_is_not_here() -> None:
    full = {record["id"] for record in full_recordings()}
    for name in [*STATUS, *SAMPLING]:
        tokenizer = name.partition("/")[0]
        assert name in full or not any(known.startswith(f"{tokenizer}/") for known in full), name
