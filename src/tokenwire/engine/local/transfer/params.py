"""`kv_transfer_params` of a request and of its reply, in the names of vLLM's NIXL connector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True, frozen=True)
class Source:
    """Where the blocks of a prompt are kept for this request."""

    host: str
    port: int
    engine_id: str
    request_id: str
    num_tokens: int | None
    """Tokens in the kept blocks; None: not told."""

    @property
    def name(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(slots=True, frozen=True)
class TransferAsk:
    """What a request wants. A pull that cannot be tried has a `problem` in place of its source."""

    keep: bool = False
    """Keep the blocks and tell where they are (`do_remote_decode`)."""
    source: Source | None = None
    problem: str | None = None

    @property
    def pulls(self) -> bool:
        return self.source is not None or self.problem is not None


def read_params(params: Mapping[str, Any] | None) -> TransferAsk | None:
    """None where nothing is asked. Never raises: parameters of another connector cost a pull, not the answer.

    A request that prefills (`do_remote_decode`) may itself bring blocks, those of the turn before.
    """
    if not params:
        return None
    keep = bool(params.get("do_remote_decode"))
    if not params.get("do_remote_prefill") and not (keep and params.get("remote_block_ids")):
        return TransferAsk(keep) if keep else None
    try:
        return TransferAsk(keep, _source(params))
    except ValueError as exc:
        return TransferAsk(keep, problem=str(exc))


def _source(params: Mapping[str, Any]) -> Source:
    num_tokens = params.get("remote_num_tokens")
    return Source(
        host=_of_type(params, "remote_host", str),
        port=_of_type(params, "remote_port", int),
        engine_id=_of_type(params, "remote_engine_id", str),
        request_id=_of_type(params, "remote_request_id", str),
        num_tokens=num_tokens if isinstance(num_tokens, int) else None,
    )


def _of_type(params: Mapping[str, Any], name: str, kind: type) -> Any:
    value = params.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{name} must be {'an int' if kind is int else 'a string'}, got {value!r:.80}")
    return value


def offer(
    *, host: str, port: int, engine_id: str, request_id: str, blocks: Sequence[int], num_tokens: int
) -> dict[str, Any]:
    """The reply's parameters: given to a decode worker as they are, they make it pull. Block ids are only shown."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [list(blocks)],
        "remote_engine_id": engine_id,
        "remote_request_id": request_id,
        "remote_host": host,
        "remote_port": port,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": num_tokens,
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
    }
