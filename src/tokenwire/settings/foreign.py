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


_CLUSTER = "a replica of the built-in engine is one process on one device of this machine."
_MEDIA = "no media is loaded yet."
_PLUGIN = "a format is an entry of the table in tokenwire/derender/parser/formats."

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
    "--renderer-num-workers": _noted("prompts are rendered in as many threads as it takes.", value=True),
    "--fingerprint-mode": _noted("fingerprints always cover everything.", value=True),
    "--allowed-local-media-path": _noted(_MEDIA, value=True),
    "--allowed-media-domains": _noted(_MEDIA, value=True),
    "--media-io-kwargs": _noted(_MEDIA, value=True),
    "--mm-processor-cache-gb": _noted(_MEDIA, value=True),
    "--limit-mm-per-prompt": _noted(_MEDIA, value=True),
    "--grpc": _refused("tokenwire speaks HTTP only."),
    "--grpc-port": _refused("tokenwire speaks HTTP only.", value=True),
    "--headless": _refused("there is no engine without its server."),
    "--middleware": _refused("put a proxy in front, or wrap `tokenwire.server.app.create_app` in code.", value=True),
    "--enable-ssl-refresh": _refused("restart the server to load new certificates."),
    "--tensor-parallel-size": _refused(_CLUSTER, value=True),
    "--pipeline-parallel-size": _refused(_CLUSTER, value=True),
    "--data-parallel-rank": _refused(_CLUSTER, value=True),
    "--data-parallel-start-rank": _refused(_CLUSTER, value=True),
    "--data-parallel-size-local": _refused(_CLUSTER, value=True),
    "--data-parallel-address": _refused(_CLUSTER, value=True),
    "--data-parallel-rpc-port": _refused(_CLUSTER, value=True),
    "--data-parallel-backend": _refused(_CLUSTER, value=True),
    "--data-parallel-hybrid-lb": _refused(_CLUSTER),
    "--data-parallel-external-lb": _refused(_CLUSTER),
    "--enable-expert-parallel": _refused(_CLUSTER),
    "--kv-transfer-config": _refused("KV transfer is turned on with --kv-transfer-port.", value=True),
    "--ec-transfer-config": _refused("there is no encoder-cache transfer yet.", value=True),
    "--kv-events-config": _refused("there are no KV events yet.", value=True),
    "--weight-transfer-config": _refused("there is no weight transfer yet.", value=True),
    "--worker-extension-cls": _refused("there are no workers to extend.", value=True),
    "--enable-sleep-mode": _refused("the engine cannot sleep yet."),
    "--enable-return-routed-experts": _refused("routed experts are not returned yet."),
    "--enable-tokenizer-info-endpoint": _refused("GET /server_info has the fingerprint of tokenizer and template."),
    "--response-role": _refused("answers are the assistant's.", value=True),
    "--reasoning-effort-map": _refused("efforts reach the chat template as they are.", value=True),
    "--anthropic-disabled-thinking-effort": _refused("disabled thinking is the effort none.", value=True),
    "--sse-keep-alive-interval": _refused("streams carry no keep-alive comments.", value=True),
    "--tool-parser-plugin": _refused(_PLUGIN, value=True),
    "--reasoning-parser-plugin": _refused(_PLUGIN, value=True),
    "--tool-strict-level": _refused("strict tools are as strict as each tool says.", value=True),
}
"""Flag -> what happens to it. A row goes when the feature comes."""
