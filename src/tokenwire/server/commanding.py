"""How control routes reach the engine: a command that it does not obey is a 501 with the way out."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from tokenwire.engine.control import Control
from tokenwire.errors import BodyValidationError, InvalidRequestError, NotServedError
from tokenwire.server.absent import not_served
from tokenwire.server.body import read_body
from tokenwire.server.context import engine_of, server_of
from tokenwire.wire.codec import decode

T = TypeVar("T", bound=msgspec.Struct)

_BOOLS = {"true": True, "1": True, "false": False, "0": False}


async def command(request: Request, message: Control) -> dict[str, Any]:
    """The engine's facts. Raises `NotServedError` when it does not obey this kind of message."""
    engine = engine_of(server_of(request.scope))
    require_control(request, type(message))
    return await engine.control(message)


def require_control(request: Request, kind: type[Control]) -> None:
    """Raises `NotServedError` unless the engine obeys this kind of message."""
    if not obeys(request, kind):
        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        engine = engine_of(server_of(request.scope)).info.name
        raise not_served(path) or NotServedError(f"{path} is not implemented by the {engine} engine.")


def obeys(request: Request, kind: type[Control]) -> bool:
    return tag_of(kind) in engine_of(server_of(request.scope)).info.capabilities.controls


def tag_of(kind: type[Control]) -> str:
    return str(kind.__struct_config__.tag)


async def read_command(kind: type[T], request: Request, *, optional: bool = False) -> T:
    """The JSON body as `kind`, whatever type it says it is: trainers send it bare.

    An empty one counts as `{}` where the body is `optional`. Raises `BodyValidationError`.
    """
    server = server_of(request.scope)
    body = await read_body(request.scope, request.receive, server.settings.network.max_body_bytes)
    if not body and not optional:
        raise BodyValidationError([("body", "a JSON object is required")])
    if not body.strip() or body.strip() == b"null":
        body = b"{}"
    value, unknown = decode(kind, body, "json")
    server.note_unknown(unknown)
    return value


def query_bool(request: Request, name: str, default: bool) -> bool:
    """A query parameter as true/false or 1/0. Raises `InvalidRequestError` for anything else."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if text.lower() not in _BOOLS:
        raise InvalidRequestError(f"Query parameter {name} must be true or false, got {text!r}.", param=name)
    return _BOOLS[text.lower()]


def query_choice(request: Request, name: str, choices: tuple[str, ...], default: str) -> Any:
    """A query parameter that is one of `choices`. Raises `InvalidRequestError` for anything else."""
    text = request.query_params.get(name, default)
    if text not in choices:
        raise InvalidRequestError(f"Query parameter {name} must be {_either(choices)}, got {text!r}.", param=name)
    return text


def _either(choices: tuple[str, ...]) -> str:
    return f"{', '.join(choices[:-1])} or {choices[-1]}"
