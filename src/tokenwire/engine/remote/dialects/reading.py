"""JSON bodies of workers of other makes, as the types that their dialects expect."""

from __future__ import annotations

from typing import Any

import msgspec

from tokenwire.errors import GenerationError


def decode_answer(decoder: msgspec.json.Decoder[Any], body: bytes, *, server: str) -> Any:
    """Raises `GenerationError` for a body that is not what `server` sends."""
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise GenerationError(f"the worker's answer is not what {server} sends: {exc}") from exc
