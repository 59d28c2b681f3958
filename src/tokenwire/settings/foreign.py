"""vLLM's flags that are no settings of ours: accepted where they change nothing, refused where they would."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class ForeignFlag:
    sentence: str
    takes_value: bool = False
    refused: bool = False


def _noted(sentence: str, *, value: bool = False) -> ForeignFlag:
    return ForeignFlag(sentence, takes_value=value)


def _refused(sentence: str, *, value: bool = False) -> ForeignFlag:
    return ForeignFlag(sentence, takes_value=value, refused=True)


_CLUSTER = "the built-in engine is one process on one device."

FOREIGN_FLAGS: dict[str, ForeignFlag] = {
    "--enable-scale-out": _noted("the token routes are always on."),
    "--enable-chunked-prefill": _noted("prompts are always computed in chunks."),
    "--disable-log-requests": _noted("requests are not logged unless --enable-log-requests is given."),
    "--disable-frontend-multiprocessing": _noted("the engine always runs in its own process."),
    "--enforce-eager": _noted("there are no captured graphs."),
    "--async-scheduling": _noted("it is a scheduling detail of another engine."),
    "--swap-space": _noted("there is no swapping; preempted requests are computed again.", value=True),
    "--gpu-memory-utilization": _noted("the size of the KV cache is set in tokens.", value=True),
    "--uvicorn-log-level": _noted("use --log-level.", value=True),
    "--load-format": _noted("the format of the weights is recognised.", value=True),
    "--h11-max-header-count": _noted("the httptools parser has no such limit.", value=True),
    "--grpc": _refused("tokenwire speaks HTTP only."),
    "--grpc-port": _refused("tokenwire speaks HTTP only.", value=True),
    "--headless": _refused("there is no engine without its server."),
    "--middleware": _refused("put a proxy in front, or wrap `tokenwire.server.app.create_app` in code.", value=True),
    "--enable-ssl-refresh": _refused("restart the server to load new certificates."),
    "--tensor-parallel-size": _refused(_CLUSTER, value=True),
    "--pipeline-parallel-size": _refused(_CLUSTER, value=True),
    "--data-parallel-size": _refused(_CLUSTER, value=True),
    "--data-parallel-rank": _refused(_CLUSTER, value=True),
    "--enable-expert-parallel": _refused(_CLUSTER),
    "--speculative-config": _refused("there is no speculative decoding yet.", value=True),
    "--enable-lora": _refused("there are no adapters yet."),
    "--lora-modules": _refused("there are no adapters yet.", value=True),
    "--default-mm-loras": _refused("there are no adapters yet.", value=True),
    "--kv-transfer-config": _refused("there is no KV transfer yet.", value=True),
    "--ec-transfer-config": _refused("there is no encoder-cache transfer yet.", value=True),
    "--kv-events-config": _refused("there are no KV events yet.", value=True),
    "--weight-transfer-config": _refused("there is no weight transfer yet.", value=True),
    "--worker-extension-cls": _refused("there are no workers to extend.", value=True),
    "--enable-sleep-mode": _refused("the engine cannot sleep yet."),
    "--enable-return-routed-experts": _refused("routed experts are not returned yet."),
    "--return-sampling-mask": _refused("the sampling mask is not returned yet."),
}
"""Flag -> what happens to it. A row goes when the feature comes."""
