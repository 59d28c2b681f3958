"""Everything a route may need, built once: the state of one server, kept on the app and in no module."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from prometheus_client import CollectorRegistry
from starlette.types import Scope

from tokenwire.engine.base import Engine, EngineStatus
from tokenwire.server.metrics import EngineFigures, Metrics
from tokenwire.server.observers import LiveObserver, LogObserver
from tokenwire.server.peers import Peers
from tokenwire.server.tracing import TracingObserver
from tokenwire.service.adapters import AdapterService
from tokenwire.service.chat import ChatService
from tokenwire.service.completion import CompletionService
from tokenwire.service.derender import DerenderService
from tokenwire.service.fields import UnknownFields
from tokenwire.service.generate import GenerateService
from tokenwire.service.messages import MessagesService
from tokenwire.service.models import ModelRegistry
from tokenwire.service.render import RenderService
from tokenwire.service.responses import ResponsesService
from tokenwire.settings import Settings

if TYPE_CHECKING:
    from tokenwire.render.tokenizer import Tokenizer


@dataclass(slots=True, frozen=True, kw_only=True)
class Endpoints:
    """OpenAI's and Anthropic's, one service each."""

    chat: ChatService
    completion: CompletionService
    messages: MessagesService
    responses: ResponsesService


@dataclass(slots=True, kw_only=True)
class Server:
    """A front end without an engine has neither `engine` nor `generate`, and no routes that need them."""

    settings: Settings
    models: ModelRegistry
    metrics: Metrics
    engine: Engine | None = None
    generate: GenerateService | None = None
    adapters: AdapterService | None = None
    """Set with an engine; whether that takes adapters is its own to say."""
    tokenizer: Tokenizer | None = None
    derender: DerenderService | None = None
    """Set with a tokenizer, as is `render`."""
    render: RenderService | None = None
    endpoints: Endpoints | None = None
    """The ordinary endpoints; they need an engine and a tokenizer."""
    log: LogObserver | None = None
    """Set when requests are logged."""
    tracing: TracingObserver | None = None
    peers: Peers | None = None
    """The other front ends of this server, where there are several."""
    fields: UnknownFields
    """Shared by all routes that read bodies."""
    live: LiveObserver = field(default_factory=LiveObserver)
    registry: CollectorRegistry = field(init=False)
    render_fingerprint: str | None = None
    created: int = field(default_factory=lambda: int(time.time()))
    draining: bool = False
    """The process was told to stop: no new work, and `/readyz` is red."""
    num_in_flight: int = 0
    """Requests on generation routes, for `/load`; counted with --enable-server-load-tracking."""

    def __post_init__(self) -> None:
        self.registry = self.metrics.registry()

    def note_unknown(self, names: tuple[str, ...]) -> None:
        """Fields that decoding passed over, on routes outside the token service. Raises `BodyValidationError`."""
        if names:
            self.fields.note(names)
            self.metrics.note_unknown(names)

    @property
    def is_healthy(self) -> bool:
        """False once the engine is dead or starting again."""
        if self.engine is None:
            return True
        return is_up(self.engine)

    @property
    def is_ready(self) -> bool:
        """Would a request that comes now be served?"""
        ready = self.engine is None or self.engine.status is EngineStatus.READY
        return ready and not self.draining

    @property
    def max_model_len(self) -> int | None:
        """The engine's; on a front end what the settings or the model's files say."""
        if self.engine is not None:
            return self.engine.info.max_model_len
        return self.settings.model.max_model_len if self.render is None else self.render.options.max_model_len

    async def read_engine(self) -> None:
        """Bring the engine's figures in `metrics` up to date."""
        replicas = () if self.engine is None else self.engine.replicas
        figures = self.metrics.engines
        figures += [EngineFigures() for _ in range(len(replicas) - len(figures))]
        for replica, known in zip(replicas, figures, strict=False):
            known.take(await replica.stats(), up=is_up(replica))

    def drain(self) -> None:
        self.draining = True
        if self.generate is not None:
            self.generate.draining = True


def is_up(engine: Engine) -> bool:
    """False once it is dead or starting again."""
    return engine.status in (EngineStatus.READY, EngineStatus.PAUSED, EngineStatus.FROZEN)


def server_of(scope: Scope) -> Server:
    """The server that handles this request."""
    return cast(Server, scope["app"].state.server)


def engine_of(server: Server) -> Engine:
    """The engine, on routes that exist only with one."""
    assert server.engine is not None
    return server.engine


def adapters_of(server: Server) -> AdapterService:
    """The adapters' service, on routes that exist only with an engine."""
    assert server.adapters is not None
    return server.adapters


def generate_of(server: Server) -> GenerateService:
    """The token service, on routes that exist only with an engine."""
    assert server.generate is not None
    return server.generate
