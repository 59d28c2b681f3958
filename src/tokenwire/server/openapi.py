"""The OpenAPI description, made from the table of routes and the wire types themselves."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from tokenwire import __version__
from tokenwire.server.errors import ErrorBody
from tokenwire.server.routing import RouteSpec

_REF = "#/components/schemas/{name}"


def openapi(routes: Iterable[RouteSpec], *, root_path: str = "") -> dict[str, Any]:
    """An OpenAPI 3.1 document as plain data."""
    specs = list(routes)
    schemas = _Schemas()
    paths: dict[str, dict[str, Any]] = {}
    for spec in specs:
        for method in spec.methods:
            paths.setdefault(spec.path, {})[method.lower()] = _operation(spec, schemas, method)
    return {
        "openapi": "3.1.0",
        "info": {"title": "tokenwire", "version": __version__, "description": "Token ids in, token ids out."},
        "servers": [{"url": root_path or "/"}],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


class _Schemas:
    """JSON schemas of wire types, collected under their names."""

    def __init__(self) -> None:
        self.components: dict[str, Any] = {}

    def of(self, kind: Any) -> dict[str, Any]:
        """The schema of a type; Structs become references.

        msgspec describes what it can decode. Replies also have unions of Structs without a tag, which nobody here
        decodes: those are taken apart first.
        """
        if typing.get_origin(kind) in (types.UnionType, typing.Union):
            return {"anyOf": [self.of(member) for member in typing.get_args(kind) if member is not msgspec.UnsetType]}
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and any(_open_fields(kind)):
            return self._taken_apart(kind)
        (schema,), components = msgspec.json.schema_components([kind], ref_template=_REF)
        self.components.update(components)
        return schema

    def _taken_apart(self, kind: type[msgspec.Struct]) -> dict[str, Any]:
        names = set(_open_fields(kind))
        rest = [
            (f.encode_name, f.type, f.default if f.default is not msgspec.NODEFAULT else msgspec.NODEFAULT)
            for f in msgspec.structs.fields(kind)
            if f.name not in names
        ]
        plain = msgspec.defstruct(kind.__name__, [_field(*row) for row in rest], kw_only=True)
        self.of(plain)
        schema = self.components[kind.__name__]
        schema["description"] = kind.__doc__ or ""
        for field in msgspec.structs.fields(kind):
            if field.name in names:
                schema["properties"][field.encode_name] = self.of(field.type)
        return {"$ref": _REF.format(name=kind.__name__)}


def _field(name: str, kind: Any, default: Any) -> Any:
    return (name, kind) if default is msgspec.NODEFAULT else (name, kind, default)


def _open_fields(kind: type[msgspec.Struct]) -> Iterator[str]:
    """Fields whose type is a union of several Structs."""
    for field in msgspec.structs.fields(kind):
        members = typing.get_args(field.type)
        if sum(isinstance(member, type) and issubclass(member, msgspec.Struct) for member in members) > 1:
            yield field.name


def _operation(spec: RouteSpec, schemas: _Schemas, method: str) -> dict[str, Any]:
    name = spec.path.replace("/", "_").replace("{", "").replace("}", "")
    operation: dict[str, Any] = {
        "summary": spec.summary,
        "operationId": f"{method.lower()}{name}",
        "tags": [spec.tag],
        "responses": {"200": _reply(spec, schemas), "default": _json("An error.", schemas.of(ErrorBody))},
    }
    if spec.request is not None:
        body = _json("", schemas.of(spec.request))
        operation["requestBody"] = {"required": True, "content": body["content"]}
    if spec.control or spec.path.startswith(("/v1", "/inference")):
        operation["security"] = [{"bearer": []}, {}]
    return operation


def _reply(spec: RouteSpec, schemas: _Schemas) -> dict[str, Any]:
    reply: dict[str, Any] = {"description": "OK"}
    if spec.response is not None:
        schema = schemas.of(spec.response)
        reply = _json("OK", schema)
        if spec.choices:
            any_of = {"anyOf": [schemas.of(choice) for choice in spec.choices]}
            schemas.components[spec.response.__name__]["properties"]["choices"]["items"] = any_of
    if spec.streams:
        events = {"schema": {"type": "string", "description": "`data: {json}` events, the last one `data: [DONE]`"}}
        reply.setdefault("content", {})["text/event-stream"] = events
    return reply


def _json(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}
