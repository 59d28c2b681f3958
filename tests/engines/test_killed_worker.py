"""A coordinator and two workers, each a process of its own, under load; one worker is killed in the middle.

1. Every request is answered: with the right ids, or with one error event after tokens had been sent. None hangs.
2. The coordinator goes on with the worker that is left.
3. In a MessagePack stream a token with 20 candidates takes at most a third of JSON's bytes.
"""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Any

import httpx

from tests.support.http import GENERATE, app_of, body, client_of
from tests.support.process import tokenwire
from tokenwire.engine.null import FIRST_ID, NullEngine

NULL = ("serve", "--engine", "null", "--served-model-name", "m", "--port", "0", "--disable-uvicorn-access-log")
NUM_REQUESTS, NUM_TOKENS = 60, 60


async def ask(client: httpx.AsyncClient, streamed: bool) -> tuple[list[int], list[dict[str, Any]]]:
    """Ids and errors of one request."""
    async with asyncio.timeout(30):
        reply = await client.post(GENERATE, json=body(max_tokens=NUM_TOKENS, stream=streamed))
    if not streamed:
        answer = reply.json()
        return (answer["choices"][0]["token_ids"], []) if reply.status_code == 200 else ([], [answer["error"]])
    events = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
    assert events[-1] == "[DONE]"
    parsed = [json.loads(event) for event in events[:-1]]
    ids = [i for event in parsed for choice in event.get("choices", ()) for i in choice["token_ids"]]
    return ids, [event["error"] for event in parsed if "error" in event]


async def under_load(address: str, kill: Any) -> list[tuple[list[int], list[dict[str, Any]]]]:
    async with httpx.AsyncClient(base_url=address, timeout=60) as client:
        tasks = [asyncio.create_task(ask(client, streamed=i % 2 == 0)) for i in range(NUM_REQUESTS)]
        await asyncio.sleep(0.6)
        kill()
        return await asyncio.gather(*tasks)


def test_every_request_is_answered_when_a_worker_is_killed() -> None:
    with tokenwire(*NULL, "--null-step-ms", "20") as one, tokenwire(*NULL, "--null-step-ms", "20") as other:
        one.wait_ready()
        other.wait_ready()
        workers = ("--worker", one.address, other.address)
        flags = ("serve", "--engine", "remote", *workers, "--port", "0", "--served-model-name", "m")
        with tokenwire(*flags, "--disable-uvicorn-access-log") as coordinator:
            coordinator.wait_ready()
            answers = asyncio.run(under_load(coordinator.address, lambda: one.signal(signal.SIGKILL)))
            with coordinator.client() as client:
                assert client.get("/readyz").status_code == 200
                assert client.post(GENERATE, json=body(max_tokens=1)).status_code == 200
    right = list(range(FIRST_ID, FIRST_ID + NUM_TOKENS))
    for ids, errors in answers:
        if errors:
            assert ids == right[: len(ids)]
            assert ids, "a request without tokens was not tried elsewhere"
            assert [error["code"] for error in errors] == [503]
        else:
            assert ids == right
    assert sum(not errors for _, errors in answers) >= NUM_REQUESTS // 2
    # Whole answers give nothing out before their end, so all of them were tried again.
    assert not any(errors for _, errors in answers[1::2])


async def test_a_msgpack_stream_takes_a_third_of_jsons_bytes() -> None:
    engine = NullEngine()
    await engine.start()
    sizes = {}
    async with client_of(app_of(engine)) as client:
        for accept in ("application/json", "application/msgpack"):
            asked = {**body(max_tokens=50, logprobs=20, stream=True), "request_id": "x" * 32}
            if accept.endswith("msgpack"):
                asked["logprobs_format"] = "packed"
            sizes[accept] = len((await client.post(GENERATE, json=asked, headers={"accept": accept})).content)
    await engine.close()
    assert sizes["application/msgpack"] * 3 <= sizes["application/json"]
