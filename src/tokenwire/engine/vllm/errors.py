"""vLLM's exceptions as ours. Classes are told by name along their ancestry: they have moved between modules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tokenwire.errors import (
    EngineDeadError,
    EngineUnavailableError,
    GenerationError,
    InvalidRequestError,
    MediaError,
    OverloadedError,
    TokenwireError,
)

_BY_NAME: dict[str, type[TokenwireError]] = {
    "EngineDeadError": EngineDeadError,
    "RetryableRequestError": EngineUnavailableError,
    "GracefulHTTPError": OverloadedError,
    "VLLMUnprocessableEntityError": MediaError,
    "VLLMClientError": InvalidRequestError,
    "VLLMValidationError": InvalidRequestError,
    "VLLMServerError": GenerationError,
    # What vLLM's checks of a request raise where they have no class of their own.
    "ValueError": InvalidRequestError,
    "TypeError": InvalidRequestError,
    "OverflowError": InvalidRequestError,
    "NotImplementedError": InvalidRequestError,
}


def translate(exc: Exception) -> TokenwireError:
    """The nearest of our errors, with vLLM's sentence."""
    if isinstance(exc, TokenwireError):
        return exc
    kind = next((_BY_NAME[c.__name__] for c in type(exc).__mro__ if c.__name__ in _BY_NAME), GenerationError)
    message = str(exc) or type(exc).__name__
    if issubclass(kind, InvalidRequestError):
        parameter = getattr(exc, "parameter", None)
        return kind(message, param=parameter if isinstance(parameter, str) else None)
    return kind(message)


@contextmanager
def translated() -> Iterator[None]:
    """Whatever vLLM raises inside leaves as one of our errors."""
    try:
        yield
    except TokenwireError:
        raise
    except Exception as exc:
        raise translate(exc) from exc
