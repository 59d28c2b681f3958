"""What differs between kinds of worker: how a request is said, how its answer is read, what a worker can tell.

A dialect is pure: it makes calls and reads bytes. Sending, retrying and choosing workers is not its business.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from tokenwire.engine.base import Capabilities, EngineOutput, EngineRequest
from tokenwire.engine.control import Control
from tokenwire.engine.remote.http import HttpClient
from tokenwire.engine.remote.options import RemoteOptions
from tokenwire.errors import TokenwireError, UnsupportedFeatureError

JSON = "application/json"
MSGPACK = "application/msgpack"


@dataclass(slots=True, frozen=True, kw_only=True)
class Call:
    """One HTTP request to a worker."""

    path: str
    body: bytes = b""
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, frozen=True, kw_only=True)
class WorkerFacts:
    """What one worker says of itself; None: it does not say."""

    capabilities: Capabilities
    model: str | None = None
    max_model_len: int | None = None
    vocab_size: int | None = None
    eos_token_ids: tuple[int, ...] | None = None
    max_num_seqs: int | None = None
    max_logprobs: int | None = None
    default_sampling_params: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    is_tokenwire: bool = False


class Reader(Protocol):
    """Reads the answer to one call. Indexes of outputs are those of the call, from 0.

    Every method raises the worker's own error, as one of ours, where the bytes hold one.
    """

    has_enough: bool
    """The rest of the answer is of no interest: the connection may be closed."""

    def whole(self, body: bytes) -> list[EngineOutput]:
        """The outputs of an answer that came in one piece."""

    def piece(self, data: bytes) -> Iterator[EngineOutput]:
        """The outputs that this piece of a stream completes; those before an error come before it is raised."""

    def end(self) -> list[EngineOutput]:
        """The stream's body has ended; what was held back. Raises `GenerationError` if the end came too early."""


class Dialect(ABC):
    """One kind of worker."""

    name: ClassVar[str]
    health_path: ClassVar[str] = "/health"
    max_n: ClassVar[int | None] = None
    """Sequences that one call can ask for; None: any number."""

    def __init__(self, options: RemoteOptions) -> None:
        self.options = options

    @abstractmethod
    async def learn(self, client: HttpClient) -> WorkerFacts:
        """Ask a worker about itself. Raises `TransportError`, or a `ServiceError` if it is no worker of this kind."""

    @abstractmethod
    def call(self, request: EngineRequest, call_id: str, facts: WorkerFacts) -> Call:
        """The request in this dialect. `request.stream` says whether the answer is to be streamed.

        Raises `UnsupportedFeatureError` for what the dialect cannot say.
        """

    @abstractmethod
    def reader(self, request: EngineRequest, content_type: str) -> Reader:
        """For the answer to `call(request, ...)`, which came with this content type."""

    @abstractmethod
    def error(self, status: int, body: bytes) -> TokenwireError:
        """The worker's refusal as one of our errors, with the worker's words."""

    def abort(self, call_id: str) -> Call | None:
        """Ends the call of that id on the worker; None: closing the connection is all there is."""
        return None

    def controls(self, message: Control) -> list[Call]:
        """What to send to every worker. Raises `UnsupportedFeatureError`."""
        raise UnsupportedFeatureError(
            "control",
            value=type(message).__name__,
            where=f"{self.name} workers",
            way_out="Send it to the workers themselves.",
        )

    def first_part(self, request: EngineRequest) -> EngineRequest:
        """The request, or the first of several that are asked one after another and whole."""
        return request

    def next_part(self, part: EngineRequest, outputs: Sequence[EngineOutput]) -> EngineRequest | None:
        """What to ask after a part that was answered whole with these outputs; None: nothing."""
        return None

    def must_stream(self, request: EngineRequest) -> bool:
        """The end of this request is found here, so its answer must come in pieces."""
        return False

    def streams_prompt_scores(self, request: EngineRequest, facts: WorkerFacts) -> bool:
        """False: the scores that this request wants of its prompt come in whole answers only."""
        return True

    def streams_labels(self, facts: WorkerFacts) -> bool:
        """False: weight versions come with the last event of a stream only."""
        return True

    def streams_transfer_params(self, facts: WorkerFacts) -> bool:
        """False: kv and ec transfer params come back in whole answers only."""
        return True
