"""Who may call what: API keys for the API, the operator's rule for control routes."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from tokenwire.errors import AuthenticationError, PermissionDeniedError
from tokenwire.server.headers import header
from tokenwire.settings import AccessSettings

GUARDED_PREFIXES = ("/v1", "/v2", "/inference", "/invocations", "/generate")


class KeyRing:
    """Knows digests of the keys; comparing takes the same time whichever key, and whether any, matches."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    def require(self, scope: Scope) -> None:
        """Raises `AuthenticationError` unless the request carries one of the keys: as a bearer token, or, as
        Anthropic's clients send it, in `x-api-key`."""
        authorization = header(scope, b"authorization")
        if not authorization and (own := header(scope, b"x-api-key")):
            authorization = f"Bearer {own}"
        if not authorization:
            raise AuthenticationError("An API key is required: send 'Authorization: Bearer KEY'.")
        scheme, _, key = authorization.partition(" ")
        given = _digest(key.strip())
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]
        if scheme.lower() != "bearer" or not any(matches):
            raise AuthenticationError("The API key is not valid.")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


class KeyMiddleware:
    """Guards the API's paths. OPTIONS passes: a browser's preflight carries no key."""

    def __init__(self, app: ASGIApp, keys: Iterable[str]) -> None:
        self._app = app
        self._ring = KeyRing(keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] != "OPTIONS" and _is_guarded(scope):
            self._ring.require(scope)
        await self._app(scope, receive, send)


def _is_guarded(scope: Scope) -> bool:
    path = str(scope["path"]).removeprefix(scope.get("root_path", ""))
    return path.startswith(GUARDED_PREFIXES)


def require_operator(scope: Scope, access: AccessSettings, allowed_origins: Iterable[str] = ()) -> None:
    """With keys set, one of them; without, a caller on this machine, unless any caller was allowed.

    A web page open on this machine is no operator: a request with a foreign Origin is refused. Raises
    `AuthenticationError` or `PermissionDeniedError`.
    """
    if access.api_key:
        KeyRing(access.api_key).require(scope)
        return
    if access.allow_unauthenticated_admin:
        return
    origin = header(scope, b"origin")
    if origin and origin not in allowed_origins:
        raise PermissionDeniedError(f"Control routes do not answer web pages (Origin {origin}). Set --api-key.")
    client = scope.get("client")
    if client is not None and not _is_loopback(client[0]):
        raise PermissionDeniedError(
            f"Without --api-key, control routes answer only callers on the same machine, not {client[0]}. "
            "Set a key, or --allow-unauthenticated-admin."
        )


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host in ("", "localhost")
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
