"""The one exception family. Inner code raises these and knows no HTTP; `server/errors.py` maps class to status.

TokenwireError
├── CallerError                   the request is at fault; sending it again unchanged will fail again
│   ├── InvalidRequestError       a rule of the request is broken
│   │   ├── BodyValidationError   the body is not of the declared shape
│   │   ├── UnsupportedFeatureError  the engine or this server cannot do what a field asks
│   │   ├── PromptTooLongError    more prompt tokens than the context holds
│   │   └── InvalidStateError     a client-carried `stream_state` that we did not write
│   ├── AuthenticationError       no key, or a wrong one
│   ├── PermissionDeniedError     the route is closed to this caller
│   ├── ModelNotFoundError        no such model or adapter
│   ├── AdapterNotFoundError      nothing to load or unload
│   ├── NotServedError            a route of the protocol that this server does not have
│   ├── PrefixMismatchError       the template cannot continue the given prefix ids
│   ├── CacheAbsentError          `Prefer: if-available`, and the prompt is not in the cache
│   ├── BodyTooLargeError         over the body limit
│   └── MediaError                media that cannot be fetched or decoded
└── ServiceError                  our side is at fault or busy; the same request may succeed later
    ├── OverloadedError           admission is full
    ├── EngineUnavailableError    paused, draining, starting, restarting
    ├── GenerationError           the engine failed on this request
    └── EngineDeadError           the engine process is gone and will not come back
"""

from __future__ import annotations

from collections.abc import Sequence


class TokenwireError(Exception):
    """Base of all errors that reach a caller. `param` names the offending field, if one is to blame."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class CallerError(TokenwireError):
    """The request is at fault."""


class ServiceError(TokenwireError):
    """Our side is at fault, or busy."""


class InvalidRequestError(CallerError):
    """A rule of the request is broken; the message names field, value and limit."""


class BodyValidationError(InvalidRequestError):
    """The body does not have the declared shape. `problems` are `(path, sentence)` pairs, at most ten."""

    def __init__(self, problems: Sequence[tuple[str, str]], *, total: int | None = None) -> None:
        self.problems = list(problems)
        total = len(self.problems) if total is None else total
        lines = "\n".join(f"  {path}: {sentence}" for path, sentence in self.problems)
        noun = "validation error" if total == 1 else "validation errors"
        super().__init__(f"{total} {noun}:\n{lines}", param=self.problems[0][0] if self.problems else None)


class UnsupportedFeatureError(InvalidRequestError):
    """`field` asks for something that `where` (an engine or a server mode) cannot do."""

    def __init__(self, field: str, *, value: object, where: str, way_out: str) -> None:
        self.field = field
        self.value = value
        self.where = where
        shown = repr(value)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        super().__init__(f"{field}={shown} is not supported by {where}. {way_out}", param=field)


class PromptTooLongError(InvalidRequestError):
    """The prompt does not fit; sizes in tokens."""

    def __init__(self, prompt_len: int, max_prompt_len: int, max_model_len: int) -> None:
        self.prompt_len = prompt_len
        self.max_prompt_len = max_prompt_len
        self.max_model_len = max_model_len
        if prompt_len > max_model_len:
            message = f"Input length ({prompt_len}) exceeds model's maximum context length ({max_model_len})."
        else:
            message = (
                f"The prompt (length {prompt_len}) plus the number of requested output tokens (at least 1) is longer "
                f"than the maximum model length of {max_model_len}. Shorten token_ids or raise max_model_len."
            )
        super().__init__(message, param="token_ids")


class InvalidStateError(InvalidRequestError):
    """A `stream_state` that does not hold together."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"invalid stream_state: {reason}", param="stream_state")


class AuthenticationError(CallerError):
    """No API key, or a wrong one."""


class PermissionDeniedError(CallerError):
    """The route exists but is closed to this caller."""


class ModelNotFoundError(CallerError):
    """No model or adapter of that name."""

    def __init__(self, model: str, aliases: Sequence[str] = ()) -> None:
        self.model = model
        known = f" Valid aliases: {', '.join(aliases)}." if aliases else ""
        super().__init__(f"The model `{model}` does not exist.{known}", param="model")


class AdapterNotFoundError(CallerError):
    """No adapter is loaded under that name, or none is stored at that place; the message says which."""


class NotServedError(CallerError):
    """The protocol knows the route; this server has nothing behind it."""


class PrefixMismatchError(CallerError):
    """The rendered prompt cannot begin with the given ids; `position` is the first id that differs."""

    def __init__(self, position: int, reason: str) -> None:
        self.position = position
        super().__init__(
            "The prompt cannot continue prefix_token_ids unchanged "
            f"(first difference at position {position}): {reason}",
            param="prefix_token_ids",
        )


class CacheAbsentError(CallerError):
    """The caller prefers no answer to a recomputed prompt, and the prompt is not in the cache."""

    def __init__(self, cached_tokens: int, needed_tokens: int) -> None:
        self.cached_tokens = cached_tokens
        self.needed_tokens = needed_tokens
        super().__init__(
            f"The KV cache holds {cached_tokens} of the {needed_tokens} prompt tokens needed, "
            "and the request said 'Prefer: if-available'."
        )


class BodyTooLargeError(CallerError):
    """The request body is over the limit; sizes in bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        super().__init__(f"The request body is larger than the limit of {limit_bytes} bytes (--max-body-bytes).")


class MediaError(CallerError):
    """Media that cannot be fetched or decoded."""


class OverloadedError(ServiceError):
    """Admission is full. `retry_after_s` is a guess in whole seconds."""

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineUnavailableError(ServiceError):
    """The engine cannot take or finish this request now, but may later."""

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class GenerationError(ServiceError):
    """The engine failed while it worked on this request."""


class EngineDeadError(ServiceError):
    """The engine is gone and no restart is left."""
