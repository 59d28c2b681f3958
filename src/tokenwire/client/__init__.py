"""A typed client of the token protocol, sync and async, and token-exact conversations on top of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenwire.client.aio import AsyncChunkStream, AsyncClient
from tokenwire.client.errors import (
    BadReplyError,
    ConnectError,
    ConnectionLostError,
    ReplyError,
    ReplyTimeoutError,
    RouteMissingError,
    StreamTruncatedError,
    TransportError,
)
from tokenwire.client.replies import (
    DerenderChoice,
    DerenderDeltaChoice,
    GenerateChunk,
    GenerateResponse,
    Rendered,
    TextChoice,
    TokensChoice,
)
from tokenwire.client.sync import ChunkStream, Client
from tokenwire.wire.generate import GenerateRequest
from tokenwire.wire.sampling import SamplingParams

if TYPE_CHECKING:
    from tokenwire.client.conversation import AsyncConversation, Conversation
    from tokenwire.client.dialogue import Turn
    from tokenwire.client.record import TrainingRecord

__all__ = [
    "AsyncChunkStream",
    "AsyncClient",
    "AsyncConversation",
    "BadReplyError",
    "ChunkStream",
    "Client",
    "ConnectError",
    "ConnectionLostError",
    "Conversation",
    "DerenderChoice",
    "DerenderDeltaChoice",
    "GenerateChunk",
    "GenerateRequest",
    "GenerateResponse",
    "Rendered",
    "ReplyError",
    "ReplyTimeoutError",
    "RouteMissingError",
    "SamplingParams",
    "StreamTruncatedError",
    "TextChoice",
    "TokensChoice",
    "TrainingRecord",
    "TransportError",
    "Turn",
]

# These need numpy, which a plain client does not: they are loaded when first asked for.
_LATER = {
    "AsyncConversation": "conversation",
    "Conversation": "conversation",
    "TrainingRecord": "record",
    "Turn": "dialogue",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
