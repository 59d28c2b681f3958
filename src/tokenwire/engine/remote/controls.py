"""A control message sent to every worker that is up, and their answers made one."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from tokenwire.engine.control import (
    CollectiveRpc,
    Control,
    IsSleeping,
    LoadAdapter,
    Pause,
    Profile,
    ReleaseKvCache,
    ResetEncoderCache,
    ResetMediaCache,
    ResetPrefixCache,
    Resume,
    Sleep,
    UnloadAdapter,
    WakeUp,
    WeightTransfer,
)
from tokenwire.engine.remote.dialects.base import Call
from tokenwire.engine.remote.http import TransportError
from tokenwire.engine.remote.worker import Worker
from tokenwire.engine.replicas import merge_facts
from tokenwire.errors import EngineUnavailableError, UnsupportedFeatureError

ALL_CONTROLS = frozenset(
    str(kind.__struct_config__.tag)
    for kind in (
        Pause,
        Resume,
        ResetPrefixCache,
        Sleep,
        WakeUp,
        LoadAdapter,
        UnloadAdapter,
        WeightTransfer,
        CollectiveRpc,
        IsSleeping,
        ReleaseKvCache,
        ResetMediaCache,
        ResetEncoderCache,
        Profile,
    )
)


async def send(message: Control, workers: list[Worker], timeout_s: float | None) -> dict[str, Any]:
    """Send to all at once. Facts of the answers are merged: lists joined, `success` only if all had it.

    Raises the first refusal; a worker without the route is an `UnsupportedFeatureError`.
    """
    answers = await asyncio.gather(*(_send_one(message, worker, timeout_s) for worker in workers))
    return merge_facts(answers)


async def _send_one(message: Control, worker: Worker, timeout_s: float | None) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for call in worker.dialect.controls(message):
        facts |= await _call(message, worker, call, timeout_s)
    if isinstance(message, WakeUp):
        facts = {"success": facts.get("status") != "sleeping"}
    return facts


async def _call(message: Control, worker: Worker, call: Call, timeout_s: float | None) -> dict[str, Any]:
    try:
        status, body = await worker.client.fetch(
            call.method, call.path, headers=call.headers, body=call.body, timeout_s=timeout_s
        )
    except TransportError as exc:
        raise EngineUnavailableError(f"The worker {worker.url} did not answer {call.path}: {exc}.") from exc
    if status in (404, 405):
        raise UnsupportedFeatureError(
            "control",
            value=str(type(message).__struct_config__.tag),
            where=f"the worker {worker.url}",
            way_out="vLLM has its control routes only with VLLM_SERVER_DEV_MODE=1.",
        )
    if status >= 400:
        raise worker.dialect.error(status, body)
    try:
        value = msgspec.json.decode(body) if body else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        value = None  # vLLM answers adapters in plain text
    return value if isinstance(value, dict) else {}
