"""The cases: what is asked, of whom, and how often."""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """`requests` of these one after another on each of `clients` connections at a time."""

    name: str
    stream: bool
    tokens: int
    logprobs: int | None = None
    prompt: int = 512
    clients: int = 1
    requests: int = 5
    stepped: bool = False
    """From an engine that takes 30 ms a step, one token each; else tokens are there at once."""
    level: str = "tokens"
    packed: bool = False
    """MessagePack both ways."""

    def body(self) -> bytes:
        sampling: dict[str, object] = {"max_tokens": self.tokens, "temperature": 1.0, "detokenize": False}
        if self.logprobs is not None:
            sampling["logprobs"] = self.logprobs
        request: dict[str, object] = {
            "token_ids": list(range(1, self.prompt + 1)),
            "sampling_params": sampling,
            "stream": self.stream,
        }
        if self.level != "tokens":
            request["output_mode"] = self.level
            del sampling["detokenize"]
        if self.level == "derender":
            request["parse_context"] = {}
        if not self.packed:
            return json.dumps(request).encode()
        import msgspec

        request["token_ids"] = array("i", range(1, self.prompt + 1)).tobytes()
        return msgspec.msgpack.encode(request)


STEP_MS = 30

SHARED_CASES = (
    Case("stream", True, 2000),
    Case("stream, logprobs 5", True, 1000, 5),
    Case("whole", False, 8000),
    Case("whole, logprobs 20", False, 2000, 20, requests=3),
    Case("short whole", False, 16, prompt=64, requests=200),
    Case("32k prompt, one token", False, 1, prompt=32000, requests=20),
    Case("256 streams, a token a step", True, 64, prompt=64, clients=256, requests=1, stepped=True),
)
"""These the peer can do too."""

OWN_CASES = (
    Case("text stream", True, 2000, level="text"),
    Case("text stream, logprobs 5", True, 1000, 5, level="text"),
    Case("derender stream", True, 2000, level="derender"),
    Case("text whole", False, 8000, level="text"),
    Case("256 text streams, a token a step", True, 64, prompt=64, clients=256, requests=1, stepped=True, level="text"),
    Case("packed stream", True, 2000, packed=True),
    Case("packed whole", False, 8000, packed=True),
    Case("packed whole, logprobs 20", False, 2000, 20, requests=3, packed=True),
    Case("packed 32k prompt, one token", False, 1, prompt=32000, requests=20, packed=True),
)
