"""vLLM's exceptions as ours. Classes are told by name along their ancestry: they have moved between modules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from tokenwire.errors import (
    AdapterNotFoundError,
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
    "LoRAAdapterNotFoundError": AdapterNotFoundError,
    "ProfilerAlreadyActiveError": InvalidRequestError,
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
    message = _sentence(exc)
    if issubclass(kind, InvalidRequestError):
        parameter = getattr(exc, "parameter", None)
        return kind(message, param=parameter if isinstance(parameter, str) else None)
    return kind(message)


def _sentence(exc: Exception) -> str:
    """vLLM's words, out of the wrapping that they get on their way from a worker."""
    text = re.sub(r"^Call to \w+ method failed: ", "", str(exc))
    inner = re.match(r"Worker failed with error ['\"](.*)['\"], please check the stack trace", text, re.DOTALL)
    return (inner[1] if inner else text) or type(exc).__name__


@contextmanager
def adapter_errors(path: str) -> Iterator[None]:
    """What vLLM says while it loads an adapter is about the adapter, except that the engine is gone."""
    try:
        yield
    except Exception as exc:
        error = translate(exc)
        if "No adapter found" in error.message:
            raise AdapterNotFoundError(f"No adapter is stored at '{path}'.", param="lora_path") from exc
        if not isinstance(error, GenerationError):
            raise error from exc
        raise InvalidRequestError(error.message, param="lora_path") from exc


@contextmanager
def translated() -> Iterator[None]:
    """Whatever vLLM raises inside leaves as one of our errors."""
    try:
        yield
    except TokenwireError:
        raise
    except Exception as exc:
        raise translate(exc) from exc
