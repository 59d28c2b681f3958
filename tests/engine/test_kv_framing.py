"""The frames of a block transfer, on a pair of sockets.

1. Messages and blocks come out as they went in, however the bytes are cut.
2. A frame of another kind, length, magic or checksum, and a message of another type, is a `TransferError` that says so.
3. What a peer claims reserves no memory beyond what was agreed.
4. A peer that stops, leaves or is interrupted fails the transfer in time.
5. A proof holds for one secret, side, connection and request only.
6. Parameters are read leniently, and what is read is what vLLM's connector would have read.
"""

from __future__ import annotations

import socket
import threading
import time
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenwire.engine.local.blocks import BlockPool
from tokenwire.engine.local.transfer.exports import Exports
from tokenwire.engine.local.transfer.framing import (
    DATA,
    HEADER,
    MAGIC,
    MESSAGE,
    Answer,
    Ask,
    Connection,
    Done,
    Greeting,
    Refusal,
    TransferError,
    prove,
    read_answer,
    read_ask,
    read_done,
    read_greeting,
)
from tokenwire.engine.local.transfer.params import Source, TransferAsk, offer, read_params

Ends = tuple[Connection, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """A connection, and the raw socket at its other end."""
    one, other = socket.socketpair(socket.AF_UNIX)
    connection = connected(one)
    yield connection, other
    connection.close()
    other.close()


def connected(sock: socket.socket, seconds: float = 5.0) -> Connection:
    """On a Unix socket, which knows no TCP options."""
    made = Connection.__new__(Connection)
    made._socket, made.deadline, made.num_bytes = sock, time.monotonic() + seconds, 0
    return made


MESSAGES = [
    (Greeting(1, "e", "f", b"n" * 16), read_greeting),
    (Ask(request_id="r", weight_version="default", first=3, hashes=bytes(range(160)), nonce=b"m" * 16), read_ask),
    (Answer(num_blocks=4, block_bytes=1536, proof=b"p"), read_answer),
    (Refusal("expired"), read_answer),
    (Done(), read_done),
]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_messages_and_blocks_come_out_as_they_went_in_however_the_bytes_are_cut(cuts: list[int]) -> None:
    blocks = np.arange(5 * 48, dtype=np.uint8).reshape(5, 48)
    sender, receiver = socket.socketpair(socket.AF_UNIX)
    recorder, recorded = socket.socketpair(socket.AF_UNIX)
    writing = connected(recorder)
    for message, _ in MESSAGES:
        writing.send(message)
    writing.send_blocks(b"d" * 16, blocks[:2])
    writing.send_blocks(b"e" * 16, blocks[2:])
    data = recorded.recv(1 << 16)

    def trickle() -> None:
        at, i = 0, 0
        while at < len(data):
            sender.sendall(data[at : at + cuts[i % len(cuts)]])
            at, i = at + cuts[i % len(cuts)], i + 1

    thread = threading.Thread(target=trickle)
    thread.start()
    reading = connected(receiver)
    for message, decoder in MESSAGES:
        assert reading.receive(decoder, num_hashes=10) == message  # type: ignore[arg-type]
    into = np.zeros_like(blocks)
    assert reading.receive_blocks(into, 48) == (2, b"d" * 16)
    assert reading.receive_blocks(into[2:], 48) == (3, b"e" * 16)
    np.testing.assert_array_equal(into, blocks)
    assert reading.num_bytes == writing.num_bytes == blocks.nbytes
    thread.join()
    for sock in (sender, receiver, recorder, recorded):
        sock.close()


def frame(payload: bytes, *, magic: bytes = MAGIC, kind: int = MESSAGE, add: int = 0, checksum: int = 0) -> bytes:
    return HEADER.pack(magic, kind, len(payload) + add, zlib.crc32(payload) ^ checksum) + payload


DONE = b"\x81\xa4type\xa4done"


@pytest.mark.parametrize(
    "sent, reason",
    [
        (frame(DONE, magic=b"HTTP"), "protocol"),
        (frame(DONE, kind=DATA), "protocol"),
        (frame(DONE, kind=77), "protocol"),
        (frame(DONE, checksum=1), "checksum"),
        (frame(DONE, add=1), "lost"),
        (frame(b"\x81\xa4type\xa3ask"), "protocol"),
        (frame(b"\xc1"), "protocol"),
        (frame(b""), "protocol"),
        (HEADER.pack(MAGIC, MESSAGE, 0xFFFFFFFF, 0), "protocol"),
        (b"", "lost"),
        (MAGIC, "lost"),
    ],
)
def test_what_is_no_message_is_an_error_with_its_reason(ends: Ends, sent: bytes, reason: str) -> None:
    connection, raw = ends
    raw.sendall(sent)
    raw.shutdown(socket.SHUT_WR)
    with pytest.raises(TransferError) as caught:
        connection.receive(read_done)
    assert caught.value.reason == reason


def test_a_message_may_hold_as_many_hashes_as_were_agreed_and_no_more(ends: Ends) -> None:
    connection, raw = ends
    ask = Ask(request_id="r", weight_version="v", first=0, hashes=bytes(16 * 1000), nonce=b"")
    other = connected(raw)
    other.send(ask)
    assert connection.receive(read_ask, num_hashes=1000) == ask
    other.send(ask)
    with pytest.raises(TransferError, match="bytes"):
        connection.receive(read_ask, num_hashes=10)


@pytest.mark.parametrize(
    "sent, reason",
    [
        (frame(b"d" * 16 + bytes(48), kind=MESSAGE), "protocol"),
        (frame(b"d" * 16 + bytes(47), kind=DATA), "protocol"),
        (frame(b"d" * 16, kind=DATA), "protocol"),
        (frame(b"d" * 7, kind=DATA), "protocol"),
        (frame(b"d" * 16 + bytes(48 * 3), kind=DATA), "protocol"),  # more than there is room for
        (frame(b"d" * 16 + bytes(48), kind=DATA, checksum=1), "checksum"),
        (frame(b"d" * 16 + bytes(48), kind=DATA)[:-1], "lost"),
    ],
)
def test_what_are_no_blocks_is_an_error_with_its_reason(ends: Ends, sent: bytes, reason: str) -> None:
    connection, raw = ends
    raw.sendall(sent)
    raw.shutdown(socket.SHUT_WR)
    with pytest.raises(TransferError) as caught:
        connection.receive_blocks(np.zeros((2, 48), np.uint8), 48)
    assert caught.value.reason == reason
    assert connection.num_bytes == 0


def test_a_silent_peer_fails_the_transfer_at_its_deadline(ends: Ends) -> None:
    connection, _ = ends
    connection.deadline = time.monotonic() + 0.1
    started = time.monotonic()
    with pytest.raises(TransferError) as caught:
        connection.receive(read_done)
    assert caught.value.reason == "timeout"
    assert time.monotonic() - started < 2
    with pytest.raises(TransferError) as caught:
        connection.send(Done())
    assert caught.value.reason == "timeout"


def test_a_peer_that_takes_nothing_fails_the_sender(ends: Ends) -> None:
    connection, _ = ends
    connection.deadline = time.monotonic() + 0.2
    with pytest.raises(TransferError) as caught:
        connection.send_blocks(bytes(16), np.zeros((64, 1 << 16), np.uint8))
    assert caught.value.reason == "timeout"


def test_an_interrupt_from_another_thread_ends_the_wait(ends: Ends) -> None:
    connection, _ = ends
    timer = threading.Timer(0.1, connection.interrupt)
    timer.start()
    started = time.monotonic()
    with pytest.raises(TransferError) as caught:
        connection.receive(read_done)
    assert caught.value.reason == "lost"
    assert time.monotonic() - started < 2
    timer.join()


def test_a_proof_holds_for_one_secret_side_connection_and_request() -> None:
    arguments = ("secret", "client", b"s" * 16, b"c" * 16, "r")
    others = [
        ("Secret", *arguments[1:]),
        ("secret", "server", *arguments[2:]),
        ("secret", "client", b"S" * 16, b"c" * 16, "r"),
        ("secret", "client", b"s" * 16, b"C" * 16, "r"),
        ("secret", "client", b"s" * 16, b"c" * 16, "R"),
    ]
    proofs = {prove(*arguments), *(prove(*other) for other in others)}
    assert len(proofs) == 6
    assert prove(None, *arguments[1:]) == b""


SOURCE = {
    "do_remote_prefill": True,
    "remote_host": "h",
    "remote_port": 5,
    "remote_engine_id": "e",
    "remote_request_id": "r",
}


@pytest.mark.parametrize(
    "params, expected",
    [
        (None, None),
        ({}, None),
        ({"mine": 1}, None),
        ({"do_remote_decode": False, "do_remote_prefill": False}, None),
        ({"do_remote_decode": True}, TransferAsk(keep=True)),
        ({"do_remote_decode": True, "remote_block_ids": None, "remote_host": None}, TransferAsk(keep=True)),
        (SOURCE, TransferAsk(False, Source("h", 5, "e", "r", None))),
        ({**SOURCE, "remote_num_tokens": 48}, TransferAsk(False, Source("h", 5, "e", "r", 48))),
        (
            {**SOURCE, "do_remote_prefill": False, "do_remote_decode": True, "remote_block_ids": [[1]]},
            TransferAsk(True, Source("h", 5, "e", "r", None)),
        ),
    ],
)
def test_parameters_are_read_as_vllms_connector_reads_them(params: dict[str, Any], expected: TransferAsk) -> None:
    assert read_params(params) == expected


def test_what_is_offered_can_be_read() -> None:
    given = offer(host="h", port=5, engine_id="e", request_id="r", blocks=[3, 4], num_tokens=32)
    assert read_params(given) == TransferAsk(False, Source("h", 5, "e", "r", 32))


@pytest.mark.parametrize("name", ["remote_host", "remote_port", "remote_engine_id", "remote_request_id"])
def test_a_missing_part_is_a_problem_that_names_it(name: str) -> None:
    ask = read_params({key: value for key, value in SOURCE.items() if key != name})
    assert ask is not None
    assert ask.source is None
    assert ask.pulls
    assert name in str(ask.problem)


def test_blocks_being_read_are_released_after_their_last_reader_only() -> None:
    pool = BlockPool(8, 4)
    exports = Exports(pool, ttl_s=0.0)
    blocks = pool.allocate(3)
    name = exports.keep(blocks, [bytes([i]) * 16 for i in range(3)], "v")
    pool.release(blocks)
    export = exports.open(name)
    again = exports.open(name)
    assert export is again is not None
    exports.settle()
    assert (pool.num_free, export.ended) == (5, False)  # its time is over, but it is being read
    exports.drop_all()
    assert exports.open(name) is None
    assert not exports.settle()
    exports.close(export, pulled=False)
    assert not exports.settle()
    exports.close(export, pulled=False)
    assert exports.settle()
    assert pool.num_free == 8
    assert (exports.counts.dropped, exports.counts.pulled, exports.counts.expired) == (1, 0, 0)


@pytest.mark.parametrize(
    "first, asked, expected",
    [(0, [0, 1, 2], 3), (1, [1, 2, 3], 2), (0, [0, 9, 2], 1), (3, [3], 0), (-1, [2], 0), (0, [], 0)],
)
def test_only_leading_equal_hashes_match(first: int, asked: list[int], expected: int) -> None:
    exports = Exports(BlockPool(8, 4), ttl_s=9.0)
    export = exports.open(exports.keep([0, 1, 2], [bytes([i]) * 16 for i in range(3)], "v"))
    assert export is not None
    assert export.num_matching(first, b"".join(bytes([i]) * 16 for i in asked)) == expected
