"""Errors in Anthropic's shape, for the paths that speak its protocol."""

from __future__ import annotations

from starlette.types import Scope

from tokenwire.server.errors import error_body
from tokenwire.wire.messages_reply import MessagesError, MessagesErrorInfo

PATHS = ("/v1/messages", "/v1/messages/count_tokens")
TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
}
"""By HTTP status; anything else of the caller's is an invalid request, anything else of ours an API error."""


def speaks_messages(scope: Scope) -> bool:
    """Does the caller of this path expect Anthropic's errors?"""
    return str(scope["path"]).removeprefix(scope.get("root_path", "")) in PATHS


def messages_error(error: BaseException) -> MessagesError:
    """What the caller is told; the same sentence as on any other path."""
    told = error_body(error).error
    kind = TYPES.get(told.code) or ("invalid_request_error" if told.code < 500 else "api_error")
    return MessagesError(error=MessagesErrorInfo(type=kind, message=told.message))
