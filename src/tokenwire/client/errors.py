"""What a client raises: server errors come back as the same `tokenwire.errors` types, made from status and body.

Every error of this module is a `ReplyError` (the server answered with an error) or a `TransportError` (it did not
answer, or not in the protocol). A reply error is also an instance of the family type it stands for, so
`except ModelNotFoundError` works the same in a client as in the server; `status` has the HTTP status.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import msgspec

from tokenwire import errors as family


class TransportError(family.ServiceError):
    """No usable answer came. `status` is None: there is no HTTP status to give."""

    status: int | None = None


class ConnectError(TransportError):
    """The server could not be reached; nothing was sent."""


class ConnectionLostError(TransportError):
    """The connection broke before the reply was whole; the request may have run."""


class ReplyTimeoutError(TransportError):
    """No bytes came for as long as `timeout` allows."""


class BadReplyError(TransportError):
    """The reply is not what the protocol says it is."""


class StreamTruncatedError(BadReplyError):
    """A stream ended without its end marker, so the output may not be whole."""


class ReplyError(family.TokenwireError):
    """The server answered with an error. Facts that the reply did not carry are -1 or empty."""

    status: int
    """HTTP status, or `code` of an error event inside a stream (whose HTTP status was 200)."""
    error_type: str
    """`type` of the error body, as the server spelled it."""
    retry_after_s: int
    """Whole seconds of `Retry-After`, rounded up; -1 if the server named none."""

    facts: ClassVar[dict[str, Any]] = {}
    patterns: ClassVar[tuple[re.Pattern[str], ...]] = ()

    def __init__(
        self, message: str, *, param: str | None, status: int, error_type: str = "", retry_after_s: int = -1
    ) -> None:
        family.TokenwireError.__init__(self, message, param=param)
        self.status = status
        self.error_type = error_type
        self.retry_after_s = retry_after_s
        for name, (default, read) in self.facts.items():
            setattr(self, name, next((read(m[name]) for m in self._matches() if name in m.groupdict()), default))

    def _matches(self) -> list[re.Match[str]]:
        return [match for pattern in self.patterns if (match := pattern.search(self.message))]

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _rebuild, (type(self), self.message, self.param, self.status, self.error_type, self.retry_after_s)


def _rebuild(
    kind: type[ReplyError], message: str, param: str | None, status: int, error_type: str, retry_after_s: int
) -> ReplyError:
    return kind(message, param=param, status=status, error_type=error_type, retry_after_s=retry_after_s)


class RouteMissingError(ReplyError, family.CallerError):
    """The server has no such route, or not on this method."""


class CallerReplyError(ReplyError, family.CallerError):
    """A 4xx of no closer kind."""


class ServiceReplyError(ReplyError, family.ServiceError):
    """A 5xx of no closer kind."""


class InvalidRequestReply(ReplyError, family.InvalidRequestError):
    """400."""


class PromptTooLongReply(ReplyError, family.PromptTooLongError):
    facts: ClassVar[dict[str, Any]] = {"prompt_len": (-1, int), "max_model_len": (-1, int), "max_prompt_len": (-1, int)}
    patterns: ClassVar[tuple[re.Pattern[str], ...]] = (
        re.compile(r"Input length \((?P<prompt_len>\d+)\) exceeds model's maximum context length"),
        re.compile(r"prompt \(length (?P<prompt_len>\d+)\) plus the number of requested output tokens"),
        re.compile(r"maximum context length \((?P<max_model_len>\d+)\)"),
        re.compile(r"maximum model length of (?P<max_model_len>\d+)"),
    )


class BodyValidationReply(ReplyError, family.BodyValidationError):
    def __init__(self, message: str, **known: Any) -> None:
        super().__init__(message, **known)
        lines = (line.strip().partition(": ") for line in message.splitlines()[1:])
        self.problems = [(path, sentence) for path, colon, sentence in lines if colon]


class InvalidStateReply(ReplyError, family.InvalidStateError):
    """400 about a client-carried `stream_state`."""


class AuthenticationReply(ReplyError, family.AuthenticationError):
    """401."""


class PermissionDeniedReply(ReplyError, family.PermissionDeniedError):
    """403."""


class ModelNotFoundReply(ReplyError, family.ModelNotFoundError):
    facts: ClassVar[dict[str, Any]] = {"model": ("", str)}
    patterns: ClassVar[tuple[re.Pattern[str], ...]] = (re.compile(r"The model `(?P<model>.*?)` does not exist"),)


class PrefixMismatchReply(ReplyError, family.PrefixMismatchError):
    facts: ClassVar[dict[str, Any]] = {"position": (-1, int)}
    patterns: ClassVar[tuple[re.Pattern[str], ...]] = (re.compile(r"position (?P<position>\d+)"),)


class CacheAbsentReply(ReplyError, family.CacheAbsentError):
    facts: ClassVar[dict[str, Any]] = {"cached_tokens": (-1, int), "needed_tokens": (-1, int)}
    patterns: ClassVar[tuple[re.Pattern[str], ...]] = (
        re.compile(r"holds (?P<cached_tokens>\d+) of the (?P<needed_tokens>\d+) prompt tokens"),
    )


class BodyTooLargeReply(ReplyError, family.BodyTooLargeError):
    facts: ClassVar[dict[str, Any]] = {"limit_bytes": (-1, int)}
    patterns: ClassVar[tuple[re.Pattern[str], ...]] = (re.compile(r"limit of (?P<limit_bytes>\d+) bytes"),)


class MediaReply(ReplyError, family.MediaError):
    """422."""


class OverloadedReply(ReplyError, family.OverloadedError):
    """503 of admission."""


class EngineUnavailableReply(ReplyError, family.EngineUnavailableError):
    """503 of an engine that is paused, draining or restarting."""


class GenerationReply(ReplyError, family.GenerationError):
    """500."""


_BY_STATUS: Mapping[int, type[ReplyError]] = {
    401: AuthenticationReply,
    403: PermissionDeniedReply,
    405: RouteMissingError,
    409: PrefixMismatchReply,
    412: CacheAbsentReply,
    413: BodyTooLargeReply,
    422: MediaReply,
    500: GenerationReply,
    501: RouteMissingError,
}


def _kind(status: int, error_type: str, message: str) -> type[ReplyError]:
    """The family type of an error reply."""
    if status == 400:
        return _kind_of_400(error_type, message)
    if status == 404:
        return ModelNotFoundReply if "The model `" in message else RouteMissingError
    if status == 422 and error_type != "UnprocessableEntityError":
        return InvalidRequestReply  # how FastAPI and others refuse a body
    if status == 503:
        return OverloadedReply if error_type == "Service Unavailable" else EngineUnavailableReply
    fallback = CallerReplyError if 400 <= status < 500 else ServiceReplyError
    return _BY_STATUS.get(status, fallback)


def _kind_of_400(error_type: str, message: str) -> type[ReplyError]:
    if message.startswith("invalid stream_state"):
        return InvalidStateReply
    if any(pattern.search(message) for pattern in PromptTooLongReply.patterns[:2]):
        return PromptTooLongReply
    if re.match(r"\d+ validation errors?:", message):
        return BodyValidationReply
    return InvalidRequestReply


class _ErrorInfo(msgspec.Struct):
    message: str = ""
    type: str | None = None
    param: str | None = None
    code: int | str | None = None


class _ErrorBody(msgspec.Struct):
    error: _ErrorInfo | str | None = None
    detail: str | list[Any] | dict[str, Any] | None = None  # Starlette's and FastAPI's own errors


def error_from_reply(status: int, body: bytes | Mapping[str, Any], *, where: str, retry_after: str = "") -> ReplyError:
    """The error that a reply with this status stands for; a body of any shape will do."""
    info = _read(body)
    message = info.message or f"{where} answered {status} without a message."
    kind = _kind(status, info.type or "", message)
    if kind is RouteMissingError:
        message = f"{where} does not exist on this server ({status}: {message})"
    return kind(
        message,
        param=info.param,
        status=status,
        error_type=info.type or "",
        retry_after_s=seconds_of_retry_after(retry_after),
    )


def error_from_event(body: Mapping[str, Any], *, where: str) -> ReplyError:
    """The error of an error event in a stream; its `code` stands in for the status."""
    code = str(_read(body).code)
    return error_from_reply(int(code) if code.isdigit() else 500, body, where=where)


def _read(body: bytes | Mapping[str, Any]) -> _ErrorInfo:
    try:
        if isinstance(body, bytes):
            parsed = msgspec.json.decode(body, type=_ErrorBody)
        else:
            parsed = msgspec.convert(body, _ErrorBody)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        text = body.decode("utf-8", "replace") if isinstance(body, bytes) else str(body)
        return _ErrorInfo(message=text[:500].strip())
    if isinstance(parsed.error, _ErrorInfo):
        return parsed.error
    return _ErrorInfo(message=parsed.error or ("" if parsed.detail is None else str(parsed.detail)))


def seconds_of_retry_after(value: str) -> int:
    """`Retry-After` (seconds or an HTTP date) in whole seconds from now, rounded up; -1 when absent or unreadable."""
    value = value.strip()
    if not value:
        return -1
    if value.isdigit():
        return int(value)
    from datetime import UTC, datetime
    from email.utils import parsedate_to_datetime

    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return -1
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0, int((moment - datetime.now(UTC)).total_seconds() + 1))
