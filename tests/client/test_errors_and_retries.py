"""Errors of a server as typed exceptions, and what is sent again.

1. Each status and body of an error reply raises the `tokenwire.errors` type it stands for, with status and param.
2. Facts that a message tells (model, position, lengths, limits) are attributes again, as the server's own error had.
3. An error body of any shape, or none, still gives an error that names the route and the status.
4. httpx's exceptions never come through; each becomes one of ours.
5. Without `retries` nothing is sent twice. With it: connect errors, and 503 with Retry-After, and nothing else.
6. A Retry-After beyond the limit is not waited for; dates are understood.
7. Errors survive pickling, as process pools need.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenwire import errors as family
from tokenwire.client import AsyncClient, Client, ReplyError, RouteMissingError, TransportError
from tokenwire.client import errors as ours
from tokenwire.client.errors import error_from_reply, seconds_of_retry_after


def body(message: str, kind: str = "BadRequestError", param: str | None = None) -> bytes:
    return json.dumps({"error": {"message": message, "type": kind, "param": param, "code": 0}}).encode()


def raised(status: int, content: bytes = b"", **headers: str) -> ReplyError:
    response = httpx.Response(status, content=content, headers=headers)
    client = Client("http://x", transport=httpx.MockTransport(lambda _: response))
    with client, pytest.raises(ReplyError) as caught:
        client.generate([1])
    return caught.value


FAMILY: list[tuple[int, str, Exception, str]] = [
    (400, "BadRequestError", family.InvalidRequestError("n must be at least 1, got 0.", param="n"), "n"),
    (400, "Bad Request", family.BodyValidationError([("body.token_ids", "Field required")]), "body.token_ids"),
    (400, "BadRequestError", family.PromptTooLongError(9, 7, 8), "token_ids"),
    (400, "BadRequestError", family.PromptTooLongError(8, 7, 8), "token_ids"),
    (400, "BadRequestError", family.InvalidStateError("too long"), "stream_state"),
    (401, "AuthenticationError", family.AuthenticationError("no key"), ""),
    (403, "PermissionDeniedError", family.PermissionDeniedError("closed"), ""),
    (404, "NotFoundError", family.ModelNotFoundError("m-1", ["a"]), "model"),
    (409, "ConflictError", family.PrefixMismatchError(17, "the template rewrites it"), "prefix_token_ids"),
    (412, "PreconditionFailed", family.CacheAbsentError(16, 40), ""),
    (413, "RequestEntityTooLarge", family.BodyTooLargeError(1000), ""),
    (422, "UnprocessableEntityError", family.MediaError("cannot fetch"), ""),
    (500, "InternalServerError", family.GenerationError("the engine failed"), ""),
    (503, "Service Unavailable", family.OverloadedError("too many requests wait"), ""),
    (503, "ServiceUnavailableError", family.EngineUnavailableError("paused"), ""),
]


NOT_IN_THE_MESSAGE = ("retry_after_s", "max_prompt_len", "aliases")


@pytest.mark.parametrize("status, kind, original, param", FAMILY)
def test_each_error_comes_back_as_the_type_it_was_raised_as(
    status: int, kind: str, original: family.TokenwireError, param: str
) -> None:
    error = raised(status, body(original.message, kind, param or None))
    assert isinstance(error, type(original))
    assert (error.status, error.error_type, error.param) == (status, kind, param or None)
    assert str(error) == error.message == original.message
    for fact, value in vars(original).items():
        if fact not in ("param", *NOT_IN_THE_MESSAGE):
            assert getattr(error, fact) == value


@pytest.mark.parametrize("status, kind, original, param", FAMILY)
def test_errors_survive_pickling(status: int, kind: str, original: family.TokenwireError, param: str) -> None:
    error = raised(status, body(original.message, kind, param or None))
    twin = pickle.loads(pickle.dumps(error))
    assert type(twin) is type(error)
    assert vars(twin) == vars(error)


@pytest.mark.parametrize(
    "status, parent", [(418, family.CallerError), (429, family.CallerError), (507, family.ServiceError)]
)
def test_a_status_of_no_closer_kind_still_says_whose_fault_it_is(status: int, parent: type[Exception]) -> None:
    assert isinstance(raised(status, body("m")), parent)


def test_a_422_that_is_not_about_media_is_about_the_request() -> None:
    error = raised(422, b'{"detail": [{"loc": ["body", "token_ids"], "msg": "too short"}]}')
    assert isinstance(error, family.InvalidRequestError)
    assert "too short" in error.message


@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_route_that_is_not_there_is_named(status: int) -> None:
    error = raised(status, b'{"detail": "Not Found"}')
    assert isinstance(error, RouteMissingError)
    assert str(error) == f"POST /inference/v1/generate does not exist on this server ({status}: Not Found)"


@pytest.mark.parametrize(
    "content", [b"", b"<html>gateway</html>", b"[]", b'"x"', b"\xff", b'{"error": null}', b'{"error": "Unauthorized"}']
)
def test_an_error_body_of_any_shape_will_do(content: bytes) -> None:
    assert raised(502, content).status == 502
    assert str(raised(401, content))


def test_a_messagepack_error_body_is_read() -> None:
    content = msgspec.msgpack.encode({"error": {"message": "no", "type": "BadRequestError", "param": "n", "code": 400}})
    error = raised(400, content, **{"content-type": "application/msgpack"})
    assert (error.message, error.param) == ("no", "n")


def test_a_server_without_messagepack_is_told_apart() -> None:
    refusal = body("Unsupported Media Type: Only 'application/json' is allowed", "Bad Request")
    transport = httpx.MockTransport(lambda _: httpx.Response(400, content=refusal))
    client = Client("http://x", wire="msgpack", transport=transport)
    with client, pytest.raises(family.InvalidRequestError, match='use a client with wire="json"'):
        client.generate([1])


_any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["error", "message", "detail", "code"]), inner)
    ),
    max_leaves=8,
)


@given(st.integers(300, 599), st.binary(max_size=30) | st.builds(lambda v: json.dumps(v).encode(), _any_json))
def test_no_error_body_breaks_the_client(status: int, content: bytes) -> None:
    error = error_from_reply(status, content, where="GET /x")
    assert isinstance(error, ReplyError)
    assert str(error)


# --- transport ----------------------------------------------------------------------------------------------------

_HTTPX = [
    (httpx.ConnectError("refused"), ours.ConnectError),
    (httpx.ConnectTimeout("slow"), ours.ConnectError),
    (httpx.PoolTimeout("full"), ours.ConnectError),
    (httpx.ProxyError("proxy"), ours.ConnectError),
    (httpx.ReadTimeout("silence"), ours.ReplyTimeoutError),
    (httpx.WriteTimeout("stuck"), ours.ReplyTimeoutError),
    (httpx.ReadError("reset"), ours.ConnectionLostError),
    (httpx.WriteError("reset"), ours.ConnectionLostError),
    (httpx.CloseError("reset"), ours.ConnectionLostError),
    (httpx.RemoteProtocolError("garbage"), ours.ConnectionLostError),
    (httpx.LocalProtocolError("bad header"), ours.ConnectionLostError),
    (httpx.DecodingError("gzip"), ours.BadReplyError),
    (httpx.UnsupportedProtocol("ftp"), ours.TransportError),
    (httpx.TooManyRedirects("loop"), ours.TransportError),
]


def test_the_table_of_httpx_exceptions_is_whole() -> None:
    def leaves(kind: type) -> set[type]:
        below = kind.__subclasses__()
        return {leaf for sub in below for leaf in leaves(sub)} if below else {kind}

    assert leaves(httpx.RequestError) <= {type(exc) for exc, _ in _HTTPX} | {
        k for exc, _ in _HTTPX for k in leaves(type(exc))
    }


@pytest.mark.parametrize("foreign, kind", _HTTPX)
def test_httpx_exceptions_become_ours(foreign: Exception, kind: type[TransportError]) -> None:
    def fail(request: httpx.Request) -> httpx.Response:
        raise foreign

    client = Client("http://x", transport=httpx.MockTransport(fail))
    with client, pytest.raises(kind, match="POST /inference/v1/generate at http://x") as caught:
        client.generate([1])
    assert type(caught.value) is kind
    assert caught.value.__cause__ is foreign
    assert caught.value.status is None


def test_a_port_nobody_listens_on_is_a_connect_error() -> None:
    with Client("http://127.0.0.1:9", timeout=5) as client, pytest.raises(ours.ConnectError, match="server running"):
        client.health()


# --- retries ------------------------------------------------------------------------------------------------------


class Flaky:
    """Answers each call with the next item, the last one for ever; `slept` has the waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *items: httpx.Response | Exception) -> None:
        self.items = list(items)
        self.calls = 0
        self.slept: list[float] = []
        monkeypatch.setattr("tokenwire.client.sync.time.sleep", self.slept.append)

        async def sleep(seconds: float) -> None:
            self.slept.append(seconds)

        monkeypatch.setattr("tokenwire.client.aio.asyncio.sleep", sleep)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        item = self.items[min(self.calls, len(self.items) - 1)]
        self.calls += 1
        if isinstance(item, Exception):
            raise item
        return item

    def client(self, retries: int, **options: float) -> Client:
        return Client("http://x", retries=retries, transport=httpx.MockTransport(self), **options)  # type: ignore[arg-type]


def busy(retry_after: str | None) -> httpx.Response:
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return httpx.Response(503, content=body("full", "Service Unavailable"), headers=headers)


def ok() -> httpx.Response:
    return httpx.Response(200, content=b'{"request_id": "r", "choices": [{"token_ids": [1]}]}')


Make = Callable[..., Flaky]


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch) -> Make:
    return lambda *items: Flaky(monkeypatch, *items)


def test_nothing_is_sent_twice_unless_asked_for(flaky: Make) -> None:
    server = flaky(busy("1"), ok())
    with pytest.raises(family.OverloadedError) as caught:
        server.client(0).generate([1])
    assert server.calls == 1
    assert caught.value.retry_after_s == 1


def test_a_503_with_retry_after_is_waited_for(flaky: Make) -> None:
    server = flaky(busy("2"), busy("1"), ok())
    assert server.client(2).generate([1]).token_ids == [1]
    assert server.slept == [2.0, 1.0]


def test_connect_errors_are_retried_with_growing_waits(flaky: Make) -> None:
    server = flaky(httpx.ConnectError("a"), httpx.ConnectError("b"), httpx.ConnectTimeout("c"), ok())
    assert server.client(3).generate([1]).token_ids == [1]
    assert server.slept == [0.1, 0.2, 0.4]


async def test_the_async_client_retries_alike(flaky: Make) -> None:
    server = flaky(busy("2"), httpx.ConnectError("b"), ok())
    async with AsyncClient("http://x", retries=2, transport=httpx.MockTransport(server)) as client:
        assert (await client.generate([1])).token_ids == [1]
    assert server.slept == [2.0, 0.2]


def test_streams_are_retried_before_their_first_byte(flaky: Make) -> None:
    stream = httpx.Response(200, content=b"data: [DONE]\n\n", headers={"content-type": "text/event-stream"})
    server = flaky(busy("1"), stream)
    assert list(server.client(1).generate_stream([1])) == []
    assert server.calls == 2


@pytest.mark.parametrize(
    "failure",
    [
        busy(None),
        busy("soon"),
        busy("61"),
        httpx.Response(500, content=body("broke")),
        httpx.Response(429, content=body("slow down"), headers={"Retry-After": "1"}),
        httpx.ReadTimeout("silence"),
        httpx.ReadError("reset"),
        httpx.RemoteProtocolError("closed"),
    ],
)
def test_nothing_else_is_retried(flaky: Make, failure: httpx.Response | Exception) -> None:
    server = flaky(failure, ok())
    with pytest.raises(family.TokenwireError):
        server.client(5).generate([1])
    assert server.calls == 1


def test_the_last_error_is_raised_when_retries_run_out(flaky: Make) -> None:
    server = flaky(busy("0"))
    with pytest.raises(family.OverloadedError):
        server.client(3).generate([1])
    assert server.calls == 4


def test_retry_after_may_be_a_date() -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    assert 28 <= seconds_of_retry_after(soon) <= 31
    past = format_datetime(datetime.now(UTC) - timedelta(days=1), usegmt=True)
    assert seconds_of_retry_after(past) == 0
    assert [seconds_of_retry_after(v) for v in ("", " ", "x", "-1", "1.5")] == [-1] * 5
