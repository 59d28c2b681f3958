"""A real server process on the real model answers the recorded requests as the reference server did.

1. Token ids are equal, logprobs within 2e-3, ranks equal, texts equal, usage equal; streams say the same.
2. Bad requests get the same status and the standard error body.
3. What differs on purpose is listed with its reason, and the list is exact.

TOKENWIRE_TEST_URL points the run at a server that is already up (any engine); else one is started.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.conformance.cases import ask, differences, records
from tests.conformance.differences import DIFFERENT, MADE_BY_THE_ENGINE, NOT_COMPARED
from tests.support.process import tokenwire

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

KINDS = {"ok", "bad", "extra"}
OTHER_STAGES = ("/render", "/derender")


def cases() -> list[dict[str, Any]]:
    """Everything about generate and the routes around it; render and derender have suites of their own."""
    return [
        r
        for r in records()
        if r["kind"] in KINDS and not r["path"].endswith(OTHER_STAGES) and r["id"] not in NOT_COMPARED
    ]


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    url = os.environ.get("TOKENWIRE_TEST_URL")
    if url:
        with httpx.Client(base_url=url, timeout=300) as client:
            yield client
        return
    flags = ("--served-model-name", "smol", "--max-model-len", "4096", "--port", "0")
    with tokenwire("serve", *flags) as server:
        server.wait_ready(200)
        with server.client() as client:
            client.timeout = httpx.Timeout(300)
            yield client


def test_every_recorded_answer_is_ours_or_differs_for_a_listed_reason(client: httpx.Client) -> None:
    unexpected = {}
    equal_but_listed = []
    for record in cases():
        found = differences(record, ask(client, record))
        if record["id"] in DIFFERENT:
            if not found:
                equal_but_listed.append(record["id"])
        elif found:
            unexpected[record["id"]] = found[:3]
    assert unexpected == {}
    elsewhere = set() if _is_local(client) else MADE_BY_THE_ENGINE
    assert set(equal_but_listed) - elsewhere == set()


def _is_local(client: httpx.Client) -> bool:
    """Is it our own engine's sampler that answers, and in this server?"""
    engine = client.get("/server_info").json()["engine"]
    return engine["name"] == "local"
