"""The two stream grammars, cut anywhere.

1. Server-sent events give the same events for every cutting of the bytes, and those an independent reading gives.
2. CR, LF and CRLF end lines alike; comments, unknown fields and a byte order mark are passed over.
3. An event without its blank line is no event.
4. Length-prefixed frames give the same payloads for every cutting, and say when one is left unfinished.
5. A frame over the limit is refused by its size alone.
6. Work grows linearly: one huge event in small pieces costs what its bytes cost.
"""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenwire.client import BadReplyError
from tokenwire.client.frames import FrameReader
from tokenwire.client.sse import SSEEvent, SSEParser


@st.composite
def cut(draw: st.DrawFn, data: st.SearchStrategy[bytes]) -> tuple[bytes, list[bytes]]:
    whole = draw(data)
    marks = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    return whole, [whole[a:b] for a, b in zip([0, *marks], [*marks, len(whole)], strict=True)]


def feed_all(pieces: list[bytes]) -> list[SSEEvent]:
    parser = SSEParser()
    return [event for piece in pieces for event in parser.feed(piece)]


_line_text = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=8)
_line = st.one_of(
    st.just(""),
    st.builds("data: {}".format, _line_text),
    st.builds("data:{}".format, _line_text),
    st.builds("event: {}".format, _line_text),
    st.builds("id: {}".format, _line_text),
    st.builds(": {}".format, _line_text),
    _line_text,
)
_ending = st.sampled_from(["\n", "\r", "\r\n"])
_sse = st.builds(
    lambda bom, lines: (bom + "".join(line + end for line, end in lines)).encode(),
    st.sampled_from(["", "\ufeff"]),
    st.lists(st.tuples(_line, _ending), max_size=14),
)


def plainly(stream: bytes) -> list[bytes]:
    """Data of the events, read the slow way: all text at once, line by line."""
    text = stream.decode().removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    events, data = [], []
    for line in text.split("\n")[:-1]:
        name, _, value = line.partition(":")
        if not line:
            events += ["\n".join(data)] if data else []
            data = []
        elif name == "data":
            data.append(value.removeprefix(" "))
    return [event.encode() for event in events]


@given(cut(_sse))
def test_events_do_not_depend_on_how_the_bytes_are_cut(case: tuple[bytes, list[bytes]]) -> None:
    whole, pieces = case
    events = feed_all(pieces)
    assert [event.data for event in events] == plainly(whole)
    assert events == feed_all([whole]) == feed_all([whole[i : i + 1] for i in range(len(whole))])


def test_a_line_feed_after_a_carriage_return_belongs_to_it_also_across_a_cut() -> None:
    parser = SSEParser()
    assert parser.feed(b"data: a\r") == []
    assert parser.feed(b"\ndata: b\r\n") == []
    assert [event.data for event in parser.feed(b"\r")] == [b"a\nb"]
    assert parser.feed(b"\n") == []


def test_event_name_and_id_are_read_and_the_name_lasts_for_one_event() -> None:
    events = feed_all([b"id: 7\nevent: error\ndata: x\n\ndata: y\n\n"])
    assert events == [SSEEvent(b"x", "error", "7"), SSEEvent(b"y", "message", "7")]


def test_an_event_without_its_blank_line_is_no_event() -> None:
    assert feed_all([b"data: whole\n\ndata: cut off\n"]) == [SSEEvent(b"whole")]


_payloads = st.lists(st.binary(max_size=20), max_size=8)


def framed(payloads: list[bytes]) -> bytes:
    return b"".join(len(payload).to_bytes(4, "little") + payload for payload in payloads)


@given(_payloads, st.data())
def test_frames_do_not_depend_on_how_the_bytes_are_cut(payloads: list[bytes], data: st.DataObject) -> None:
    whole, pieces = data.draw(cut(st.just(framed(payloads))))
    reader = FrameReader()
    assert [payload for piece in pieces for payload in reader.feed(piece)] == payloads
    assert reader.is_between_frames
    one_by_one = FrameReader()
    assert [p for i in range(len(whole)) for p in one_by_one.feed(whole[i : i + 1])] == payloads


@given(st.binary(min_size=1, max_size=20), st.data())
def test_an_unfinished_frame_is_seen(payload: bytes, data: st.DataObject) -> None:
    whole = framed([payload])
    reader = FrameReader()
    assert reader.feed(whole[: data.draw(st.integers(1, len(whole) - 1))]) == []
    assert not reader.is_between_frames


def test_a_frame_over_the_limit_is_refused_by_its_size() -> None:
    with pytest.raises(BadReplyError, match="101 bytes long, the limit is 100"):
        FrameReader(max_frame_bytes=100).feed(framed([b"x" * 101])[:4])
    with pytest.raises(BadReplyError, match="is this a MessagePack stream"):
        FrameReader().feed(b"data: {}\n\n")


@pytest.mark.parametrize("reader", ["sse", "frames"])
def test_one_huge_event_in_small_pieces_costs_what_its_bytes_cost(reader: str) -> None:
    payload = b"x" * 8_000_000
    whole = b"data: " + payload + b"\n\n" if reader == "sse" else framed([payload])
    feed = SSEParser().feed if reader == "sse" else FrameReader().feed
    began = time.perf_counter()
    found = [event for at in range(0, len(whole), 1000) for event in feed(whole[at : at + 1000])]
    assert len(found) == 1
    assert time.perf_counter() - began < 2.0  # quadratic work would move 32 GB
