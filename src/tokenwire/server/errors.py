"""The one place where an error becomes an HTTP status: a table of classes, looked up along the MRO.

Only our own types are told to the caller in their own words. Anything else is our bug: one fixed sentence, and the
details in the log.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import msgspec

from tokenwire import errors
from tokenwire.wire.codec import Format, encode

logger = logging.getLogger(__name__)

UNEXPECTED = "The server had an error while processing your request."
MEDIA_TYPES: dict[Format, bytes] = {"json": b"application/json", "msgpack": b"application/msgpack"}


class Status(NamedTuple):
    code: int
    type: str


TABLE: dict[type[BaseException], Status] = {
    errors.BodyValidationError: Status(400, "Bad Request"),
    errors.InvalidRequestError: Status(400, "BadRequestError"),
    errors.CallerError: Status(400, "BadRequestError"),
    errors.AuthenticationError: Status(401, "AuthenticationError"),
    errors.PermissionDeniedError: Status(403, "PermissionDeniedError"),
    errors.ModelNotFoundError: Status(404, "NotFoundError"),
    errors.AdapterNotFoundError: Status(404, "NotFoundError"),
    errors.PrefixMismatchError: Status(409, "ConflictError"),
    errors.CacheAbsentError: Status(412, "PreconditionFailedError"),
    errors.BodyTooLargeError: Status(413, "PayloadTooLargeError"),
    errors.MediaError: Status(422, "UnprocessableEntityError"),
    errors.NotServedError: Status(501, "NotImplementedError"),
    errors.OverloadedError: Status(503, "Service Unavailable"),
    errors.EngineUnavailableError: Status(503, "ServiceUnavailableError"),
    errors.GenerationError: Status(500, "InternalServerError"),
    errors.EngineDeadError: Status(500, "InternalServerError"),
    Exception: Status(500, "InternalServerError"),
}


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    type: str
    param: str | None = None
    code: int


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """`{"error": {"message", "type", "param", "code"}}`; `code` is the HTTP status."""

    error: ErrorInfo


def status_of(error: BaseException) -> Status:
    """The row of the nearest class that the table knows."""
    return next(TABLE[cls] for cls in type(error).__mro__ if cls in TABLE)


def error_body(error: BaseException) -> ErrorBody:
    """What the caller is told. Unexpected errors and a dead engine are named by one sentence only."""
    status = status_of(error)
    message, param = UNEXPECTED, None
    if isinstance(error, errors.TokenwireError) and not isinstance(error, errors.EngineDeadError):
        message, param = error.message, error.param
    return ErrorBody(error=ErrorInfo(message=message, type=status.type, param=param, code=status.code))


def error_headers(error: BaseException) -> list[tuple[bytes, bytes]]:
    """Headers that belong to this error: when to come back, how to authenticate, that the connection ends."""
    if isinstance(error, errors.OverloadedError | errors.EngineUnavailableError):
        return [(b"retry-after", str(error.retry_after_s).encode())]
    if isinstance(error, errors.AuthenticationError):
        return [(b"www-authenticate", b"Bearer")]
    if isinstance(error, errors.BodyTooLargeError):
        return [(b"connection", b"close")]
    return []


def encode_error(error: BaseException, fmt: Format) -> bytes:
    return encode(error_body(error), fmt)


def log_error(error: BaseException, what: str, *, stack: bool = False) -> None:
    """Our faults with their stack; the caller's at debug level, or with their stack where that was asked for."""
    if not isinstance(error, errors.TokenwireError):
        logger.error("%s failed unexpectedly", what, exc_info=error)
    elif isinstance(error, errors.CallerError):
        logger.log(logging.INFO if stack else logging.DEBUG, "%s: %s", what, error, exc_info=error if stack else None)
    elif isinstance(error, errors.OverloadedError | errors.EngineUnavailableError):
        logger.info("%s: %s", what, error)
    else:
        logger.error("%s: %s", what, error, exc_info=error)
