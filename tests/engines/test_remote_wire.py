"""The wire to workers: bytes to events, HTTP over kept connections, and scores to arrays.

1. However a stream is cut, the same events come out: server-sent events with any line ends, and frames.
2. Connections are kept and used again; one that was closed meanwhile is replaced without anybody noticing.
3. A reply that ends early, is no HTTP, or never comes is a transport error; a reader's own error comes back to it.
4. Nested scores and packed scores give the same arrays.
5. Facts of a folder fill in what workers do not tell; the operator's word wins.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engines.remote import RawServer, reply, stream
from tests.support.scripted_engine import logprobs_of
from tokenwire.engine.base import Capabilities
from tokenwire.engine.remote.dialects import WorkerFacts
from tokenwire.engine.remote.dialects.scores import Entry, Packed, content_rows, prompt_rows, unpack
from tokenwire.engine.remote.events import FrameSplitter, Splitter, SseSplitter
from tokenwire.engine.remote.facts import UNKNOWN_VOCAB, combine
from tokenwire.engine.remote.http import ConnectError, ConnectionLostError, HttpClient, TransportError
from tokenwire.engine.remote.options import RemoteOptions
from tokenwire.engine.score_rows import rows
from tokenwire.errors import EngineUnavailableError, GenerationError
from tokenwire.service.logprob_shapes import packed, token_id_entries
from tokenwire.wire.codec import encode

payloads = st.lists(
    st.binary(min_size=1, max_size=40).filter(lambda b: not set(b) & {10, 13} and b[:1] != b" "), max_size=6
)
cuts = st.lists(st.integers(0, 400), max_size=12)


def feed(splitter: Splitter, data: bytes, at: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(i for i in at if i < len(data))})
    return [event for a, b in zip(edges, edges[1:], strict=False) for event in splitter.feed(data[a:b])]


@given(payloads, cuts, st.sampled_from([b"\n", b"\r\n", b"\r"]), st.sampled_from([b"data: ", b"data:"]))
def test_any_cut_of_a_stream_gives_the_same_events(events: list[bytes], at: list[int], end: bytes, name: bytes) -> None:
    data = b"".join(name + event + end + end for event in events)
    # A lone CR at the very end may yet be half of a CR LF; what follows decides.
    assert feed(SseSplitter(), data + b": end" + end, at) == events


def test_comments_names_and_several_data_lines_are_understood() -> None:
    data = b": hello\n\nevent: x\nid: 1\ndata: a\ndata: b\n\nretry: 3\n\ndata\n\n"
    assert SseSplitter().feed(data) == [b"a\nb", b""]


@given(st.lists(st.binary(max_size=60), max_size=6), cuts)
def test_any_cut_of_frames_gives_the_same_payloads(events: list[bytes], at: list[int]) -> None:
    data = b"".join(len(event).to_bytes(4, "little") + event for event in events)
    assert feed(FrameSplitter(), data, at) == events


# --- HTTP


def echo(path: str, body: bytes, writer: asyncio.StreamWriter) -> Any:
    match path:
        case "/until-close":
            writer.write(b"HTTP/1.1 200 OK\r\n\r\nall of it")
            writer.close()
        case "/cut":
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc")
            writer.close()
        case "/nonsense":
            writer.write(b"SSH-2.0-OpenSSH\r\n\r\n")
        case "/never":
            return asyncio.sleep(30)
        case "/early":
            writer.write(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n")
            reply(writer, b"late")
        case "/stream":
            return stream(writer, [b"1", b"2", b"3"], pause_s=0.01)
        case "/once":
            reply(writer, b"bye")
            writer.close()
        case _:
            reply(writer, body or b"nothing")
    return None


async def test_a_connection_is_used_again() -> None:
    async with RawServer(echo).run() as url:
        client = HttpClient(url)
        for text in (b"one", b"two"):
            assert await client.fetch("POST", "/", body=text) == (200, text)
        assert len(client._idle) == 1
        client.close()


async def test_a_connection_that_was_closed_meanwhile_is_replaced() -> None:
    async with RawServer(echo).run() as url:
        client = HttpClient(url)
        for _ in range(3):
            assert await client.fetch("GET", "/once") == (200, b"bye")
        client.close()


async def test_replies_may_end_with_the_connection_or_begin_with_hints() -> None:
    async with RawServer(echo).run() as url:
        client = HttpClient(url)
        assert await client.fetch("GET", "/until-close") == (200, b"all of it")
        assert await client.fetch("GET", "/early") == (200, b"late")
        client.close()


@pytest.mark.parametrize(
    ("path", "error"), [("/cut", ConnectionLostError), ("/nonsense", ConnectionLostError), ("/never", TransportError)]
)
async def test_a_reply_that_does_not_come_whole_is_a_transport_error(path: str, error: type[Exception]) -> None:
    async with RawServer(echo).run() as url:
        client = HttpClient(url)
        with pytest.raises(error):
            await client.fetch("GET", path, timeout_s=0.2)
        client.close()


async def test_nobody_there_is_a_connect_error() -> None:
    with pytest.raises(ConnectError):
        await HttpClient("http://127.0.0.1:1").fetch("GET", "/")


async def test_an_error_of_the_reader_comes_back_to_it_and_ends_the_reply() -> None:
    async with RawServer(echo).run() as url:
        client = HttpClient(url)
        answer = await client.request("GET", "/stream")

        def sink(piece: bytes) -> None:
            raise GenerationError("enough")

        with pytest.raises(GenerationError, match="enough"):
            await answer.pump(sink)
        assert await client.fetch("POST", "/", body=b"next") == (200, b"next")
        client.close()


async def test_many_replies_at_once_do_not_mix() -> None:
    async with RawServer(echo).run() as url:
        client = HttpClient(url)
        texts = [str(i).encode() for i in range(50)]
        for _ in range(3):
            answers = await asyncio.gather(*(client.fetch("POST", "/", body=text) for text in texts))
            assert [body for _, body in answers] == texts
        client.close()


def test_an_address_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="http://, https:// or unix:"):
        HttpClient("ftp://x")


# --- scores

SCORES = logprobs_of(
    [[(5, -3.0), (7, -0.5), (8, -1.0)], [(8, -1.0), (7, -0.5), (8, -1.0)], [(7, -0.5), (7, -0.5), (8, -1.0)]],
    [9, 2, 1],
)


def test_nested_scores_and_packed_scores_are_the_same_arrays() -> None:
    nested = msgspec.json.decode(
        encode(token_id_entries(SCORES, [5, 8, 7], token_field=False).content), type=list[Entry]
    )
    from_nested = content_rows(nested)
    from_packed = unpack(msgspec.json.decode(encode(packed(SCORES, binary=False)), type=Packed))
    np.testing.assert_array_equal(from_nested.ranks, SCORES.ranks)
    np.testing.assert_array_equal(from_packed.ranks, SCORES.ranks)
    for scores in (from_nested, from_packed):
        shown = token_id_entries(scores, [5, 8, 7], token_field=False)
        assert shown == token_id_entries(SCORES, [5, 8, 7], token_field=False)


def test_a_sampled_token_without_a_score_stays_without() -> None:
    got = content_rows([Entry(5, -9999.0, None, [])])
    assert token_id_entries(got, [5], token_field=False).content[0].top_logprobs == []


def test_candidates_asked_for_by_id_keep_their_ranks_beside() -> None:
    got = rows([[(5, -1.0, 3), (100, -7.0, 800), (200, -8.0, 900)]])
    assert got.candidate_ranks is not None
    assert got.candidate_ranks.tolist() == [[3, 800, 900]]


def test_prompt_scores_leave_out_the_first_position() -> None:
    assert prompt_rows([None]) is None


def test_packed_scores_that_do_not_fit_are_the_workers_fault() -> None:
    with pytest.raises(GenerationError, match="do not fit"):
        unpack(Packed(k=2, token_ids=b"1234", logprobs=b"1234", ranks=b"1234"))


# --- facts


def told(**facts: Any) -> WorkerFacts:
    return WorkerFacts(**{"capabilities": Capabilities(), **facts})


def test_a_folder_fills_in_what_workers_do_not_tell(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"vocab_size": 99, "eos_token_id": 1}}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [4, 5], "max_new_tokens": 7}))
    info = combine(RemoteOptions(tokenizer=str(tmp_path)), [told(max_model_len=10)])
    assert (info.vocab_size, info.eos_token_ids, info.max_model_len) == (99, (4, 5), 10)
    assert info.default_sampling_params == {"max_tokens": 7}


def test_a_tokenizer_folder_tells_its_eos_by_name(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<e>"}}))
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": [{"id": 8, "content": "<e>"}]}))
    assert combine(RemoteOptions(tokenizer=str(tmp_path)), [told()]).eos_token_ids == (8,)


def test_the_operators_word_wins_and_workers_are_as_able_as_the_least() -> None:
    able = Capabilities(prompt_logprobs=True, structured_outputs=frozenset({"json", "regex"}), data_parallel_size=2)
    less = Capabilities(structured_outputs=frozenset({"json"}))
    info = combine(
        RemoteOptions(vocab_size=5, eos_token_ids=[3]),
        [told(capabilities=able, max_model_len=20, max_logprobs=-1), told(capabilities=less, max_model_len=10)],
    )
    assert (info.vocab_size, info.eos_token_ids, info.max_model_len, info.max_logprobs) == (5, (3,), 10, 20)
    assert not info.capabilities.prompt_logprobs
    assert info.capabilities.structured_outputs == {"json"}


def test_nothing_known_lets_ids_pass_to_the_worker() -> None:
    assert combine(RemoteOptions(), [told()]).vocab_size == UNKNOWN_VOCAB


def test_two_vocabularies_are_two_models() -> None:
    with pytest.raises(EngineUnavailableError, match="different models"):
        combine(RemoteOptions(), [told(vocab_size=1), told(vocab_size=2)])
