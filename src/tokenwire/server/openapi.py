"""The OpenAPI description, made from the table of routes and the wire types themselves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from tokenwire import __version__
from tokenwire.server.errors import ErrorBody
from tokenwire.server.routing import RouteSpec

_REF = "#/components/schemas/{name}"


def openapi(routes: Iterable[RouteSpec], *, root_path: str = "") -> dict[str, Any]:
    """An OpenAPI 3.1 document as plain data."""
    routes = list(routes)
    types = [kind for spec in routes for kind in (spec.request, spec.response) if kind is not None]
    # A wire type may stand on several routes; order keeps the document stable.
    unique = list(dict.fromkeys([*types, ErrorBody]))
    schemas, components = msgspec.json.schema_components(unique, ref_template=_REF)
    schema_of = dict(zip(unique, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for spec in routes:
        for method in spec.methods:
            paths.setdefault(spec.path, {})[method.lower()] = _operation(spec, schema_of, method)
    return {
        "openapi": "3.1.0",
        "info": {"title": "tokenwire", "version": __version__, "description": "Token ids in, token ids out."},
        "servers": [{"url": root_path or "/"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(spec: RouteSpec, schema_of: dict[Any, Any], method: str) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": spec.summary,
        "operationId": f"{method.lower()}{spec.path.replace('/', '_').replace('{', '').replace('}', '')}",
        "tags": [spec.tag],
        "responses": {"200": _reply(spec, schema_of)},
    }
    if spec.request is not None:
        content = {"application/json": {"schema": schema_of[spec.request]}}
        operation["requestBody"] = {"required": True, "content": content}
        operation["responses"]["default"] = {
            "description": "An error.",
            "content": {"application/json": {"schema": schema_of[ErrorBody]}},
        }
    if spec.control or spec.path.startswith(("/v1", "/inference")):
        operation["security"] = [{"bearer": []}, {}]
    return operation


def _reply(spec: RouteSpec, schema_of: dict[Any, Any]) -> dict[str, Any]:
    reply: dict[str, Any] = {"description": "OK"}
    if spec.response is not None:
        reply["content"] = {"application/json": {"schema": schema_of[spec.response]}}
    if spec.streams:
        events = {"schema": {"type": "string", "description": "`data: {json}` events, the last one `data: [DONE]`"}}
        reply.setdefault("content", {})["text/event-stream"] = events
    return reply
