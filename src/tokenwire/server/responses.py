"""Wire types as ordinary Starlette responses."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from tokenwire.wire.codec import encode


class WireResponse(Response):
    """JSON of a wire object or of plain data, by the wire's own encoder."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return encode(content)
