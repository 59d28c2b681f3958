"""`/v1/models`: what may stand in `model`, in vLLM's shape; adapters carry the context length too."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tokenwire.server.context import Server, server_of
from tokenwire.server.responses import WireResponse
from tokenwire.server.routing import RouteSpec


class ModelPermission(msgspec.Struct, frozen=True, kw_only=True):
    """Of no use but that OpenAI's older clients look for it."""

    id: str = msgspec.field(default_factory=lambda: f"modelperm-{uuid.uuid4().hex}")
    object: Literal["model_permission"] = "model_permission"
    created: int
    allow_create_engine: bool = False
    allow_sampling: bool = True
    allow_logprobs: bool = True
    allow_search_indices: bool = False
    allow_view: bool = True
    allow_fine_tuning: bool = False
    organization: str = "*"
    group: str | None = None
    is_blocking: bool = False


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """One name. `root` is where its weights come from; `parent` the base model of an adapter."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "tokenwire"
    root: str
    parent: str | None = None
    max_model_len: int | None
    permission: list[ModelPermission]


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelCard]


def _cards(server: Server) -> Iterator[ModelCard]:
    models, created = server.models, server.created
    named: list[tuple[str, str, str | None]] = [(name, models.root, None) for name in models.served_names]
    named += [(adapter.name, adapter.path, adapter.parent) for adapter in models.adapters()]
    for name, root, parent in named:
        yield ModelCard(
            id=name,
            created=created,
            root=root,
            parent=parent,
            max_model_len=server.max_model_len,
            permission=[ModelPermission(created=created)],
        )


async def list_models(request: Request) -> Response:
    return WireResponse(ModelList(data=list(_cards(server_of(request.scope)))))


ROUTES = [
    RouteSpec(
        path="/v1/models", endpoint=list_models, summary="Names of the model and its adapters.", response=ModelList
    )
]
