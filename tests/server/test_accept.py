"""Which format a reply has: what Accept names first, unless it names it as what must not come."""

import pytest

from tokenwire.server.headers import reply_format

PACKED, JSON = "application/msgpack", "application/json"


@pytest.mark.parametrize(
    "accept, content_type, expected",
    [
        ("", JSON, "json"),
        ("*/*", PACKED, "msgpack"),
        (f"{PACKED}, {JSON}", JSON, "msgpack"),
        (f"{PACKED};q=0.9", JSON, "msgpack"),
        (f"{PACKED};q=0, {JSON}", PACKED, "json"),
        (f"{PACKED}; q=0.000", JSON, "json"),
        ("text/event-stream", PACKED, "json"),
    ],
)
def test_the_reply_has_the_format_that_accept_asks_for(accept, content_type, expected):
    headers = [(b"accept", accept.encode()), (b"content-type", content_type.encode())]
    assert reply_format({"type": "http", "headers": headers}) == expected
