"""Whatever happens to a pull, the answer is that of a core that computes the prompt, and the reason is counted.

1. The other side is gone, restarted, slow, silent, no engine, another model, of another type or block size, of other
   weights, knows another secret, keeps nothing under this id or other tokens.
2. Bytes that were changed on their way, in messages or blocks, are noticed; blocks of a side that lied are not used.
3. Blocks that came before a connection was lost are used, the rest is computed.
4. While blocks travel the others go on, and a request that waits can be aborted; its blocks are let go.
5. Many pulls at once, more than may run together, all end.
6. Another engine's or broken parameters cost the pull, not the answer; addresses elsewhere are not asked from loopback.
7. A listener that nobody could reach, or whose port is taken, stops the start with a sentence.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.harness import Harness
from tests.engine.kv_pair import FULL, KEEP, PROMPT, Pair
from tests.engine.tiny_models import make_model
from tests.support.proxy import Proxy, proxy
from tokenwire.engine.base import EngineOutput
from tokenwire.engine.local import messages as wire
from tokenwire.engine.local.transfer import pulls as pulls_module
from tokenwire.engine.local.transfer.framing import (
    VERSION,
    Answer,
    Connection,
    Greeting,
    Refusal,
    TransferError,
    read_ask,
)
from tokenwire.errors import EngineUnavailableError

BLOCK = 1536


@pytest.fixture
def pair(folders: dict[str, Path]) -> Iterator[Pair]:
    made = Pair(folders["llama"])
    yield made
    made.close()


@pytest.fixture(scope="module")
def right(folders: dict[str, Path]) -> EngineOutput:
    """The answer of a core that has nothing to do with others."""
    harness = Harness(folders["llama"])
    handle = harness.add(PROMPT, logprobs=1)
    harness.run()
    return harness.output(handle)


def assert_right(got: EngineOutput, right: EngineOutput, *, num_cached: int = 0) -> None:
    assert got.token_ids == right.token_ids
    assert got.logprobs is not None
    assert right.logprobs is not None
    np.testing.assert_allclose(got.logprobs.logprobs, right.logprobs.logprobs, atol=2e-5)
    assert got.prompt is not None
    assert got.prompt.num_cached_tokens == num_cached


def through(made: Proxy, params: dict[str, Any]) -> dict[str, Any]:
    return {**params, "remote_port": made.port}


def address(params: dict[str, Any]) -> tuple[str, int]:
    return params["remote_host"], params["remote_port"]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"remote_request_id": "0" * 32}, "expired"),
        ({"remote_engine_id": "0" * 32}, "expired"),
        ({"remote_port": 70000}, "unreachable"),
        ({"remote_host": "localhost\0"}, "params"),
        ({"remote_host": "10.1.2.3"}, "params"),
        ({"remote_host": None}, "params"),
        ({"remote_port": "5600"}, "params"),
        ({"remote_port": True}, "params"),
        ({"remote_engine_id": 7, "remote_block_ids": "x"}, "params"),
        ({"remote_num_tokens": "many", "remote_request_id": ""}, "expired"),
    ],
)
def test_wrong_or_foreign_parameters_cost_the_pull_only(
    pair: Pair, right: EngineOutput, change: dict[str, Any], reason: str
) -> None:
    assert_right(pair.decode({**pair.prefill(), **change}, logprobs=1), right)
    assert pair.stats_b.fallbacks == {reason: 1}


def test_an_engine_that_is_gone(pair: Pair, right: EngineOutput) -> None:
    params = {**pair.prefill(), "remote_port": free_port()}
    assert_right(pair.decode(params, logprobs=1), right)
    assert pair.stats_b.fallbacks == {"unreachable": 1}


@pytest.mark.parametrize("options", [{"block_size": 8}, {"dtype": "bfloat16"}, {"quantization": "int8"}])
def test_another_layout_of_blocks(folders: dict[str, Path], right: EngineOutput, options: dict[str, Any]) -> None:
    made = Pair(folders["llama"], a=options)
    made.a.core.runner.attention.register()
    assert_right(made.decode(made.prefill(), logprobs=1), right)
    assert made.stats_b.fallbacks == {"model": 1}
    made.close()


def test_another_checkpoint_of_the_same_shape(
    folders: dict[str, Path], right: EngineOutput, tmp_path: Path, pair: Pair
) -> None:
    import safetensors.torch

    folder = make_model("llama", tmp_path / "other")
    file = folder / "model.safetensors"
    weights = safetensors.torch.load_file(file)
    weights["model.layers.1.mlp.up_proj.weight"] += 1e-3
    safetensors.torch.save_file(weights, file, metadata={"format": "pt"})
    other = Harness(folder, kv_transfer_port=0)
    params = pair.prefill(harness=other)
    assert_right(pair.decode(params, logprobs=1), right)
    assert pair.stats_b.fallbacks == {"model": 1}
    assert other.core._transfers is not None
    other.core._transfers.server.close()


def test_the_same_checkpoint_in_another_folder_is_the_same_model(pair: Pair, tmp_path: Path) -> None:
    other = Harness(make_model("llama", tmp_path / "copy"), kv_transfer_port=0, num_kv_blocks=50)
    pair.decode(pair.prefill(harness=other))
    assert pair.stats_b.fallbacks == {}
    assert other.core._transfers is not None
    other.core._transfers.server.close()


def test_other_weights_by_their_label(pair: Pair, right: EngineOutput) -> None:
    pair.a.core.set_weight_version("step-2")
    assert_right(pair.decode(pair.prefill(), logprobs=1), right)
    assert pair.stats_b.fallbacks == {"weights": 1}


@pytest.mark.parametrize("secrets", [("x", "y"), ("x", None), (None, "y")])
def test_another_secret(folders: dict[str, Path], right: EngineOutput, secrets: tuple[str | None, str | None]) -> None:
    made = Pair(folders["llama"], a={"kv_transfer_secret": secrets[0]}, b={"kv_transfer_secret": secrets[1]})
    assert_right(made.decode(made.prefill(), logprobs=1), right)
    assert made.stats_b.fallbacks == {"secret": 1}
    assert made.stats_a.bytes_sent == 0
    made.close()


def test_the_same_secret_is_never_sent(folders: dict[str, Path], right: EngineOutput) -> None:
    secret = {"kv_transfer_secret": "open sesame"}
    made = Pair(folders["llama"], a=secret, b=secret)
    params = made.prefill()
    said = bytearray()
    with proxy(address(params)) as between:
        between.change = lambda data: said.extend(data) or data  # type: ignore[func-returns-value]
        assert_right(made.decode(through(between, params), logprobs=1), right, num_cached=FULL)
    assert b"open sesame" not in said
    made.close()


def test_other_tokens_salt_or_order_find_no_blocks(pair: Pair, right: EngineOutput) -> None:
    params = pair.prefill([9, *PROMPT[1:]])
    assert_right(pair.decode(params, logprobs=1), right)
    handle = pair.b.add(PROMPT, kv=pair.prefill([8, *PROMPT[1:]]), salt="mine", logprobs=1)
    pair.until(lambda: not len(pair.b.streams))
    assert_right(pair.b.output(handle), right)
    assert pair.stats_b.fallbacks == {"hash": 2}
    assert pair.stats_a.bytes_sent == 0


def test_a_prompt_that_goes_another_way_shares_its_beginning(pair: Pair, right: EngineOutput) -> None:
    got = pair.decode(pair.prefill([*PROMPT[:22], 5, 5, 5, *PROMPT]), logprobs=1)
    assert_right(got, right, num_cached=20)


def flipped(at: int) -> Any:
    """Changes one bit of byte `at` of all that passes."""
    passed = 0

    def change(data: bytes) -> bytes:
        nonlocal passed
        start, passed = passed, passed + len(data)
        if start <= at < passed:
            changed = bytearray(data)
            changed[at - start] ^= 4
            return bytes(changed)
        return data

    return change


@pytest.mark.parametrize("at", [0, 5, 9, 40, 130, 260, 300, 5000, 15000])
def test_a_changed_bit_is_noticed_wherever_it_is(folders: dict[str, Path], right: EngineOutput, at: int) -> None:
    made = Pair(folders["llama"], b={"kv_transfer_timeout_s": 1.0})
    params = made.prefill()
    with proxy(address(params)) as between:
        between.change = flipped(at)
        got = made.decode(through(between, params), logprobs=1)
    assert_right(got, right)
    assert sum(made.stats_b.fallbacks.values()) == 1
    assert set(made.stats_b.fallbacks) <= {"checksum", "protocol", "lost", "timeout"}
    made.close()


@dataclass
class Liar:
    """A peer that greets as the right engine, and then answers as it likes."""

    num_blocks: int = 12
    block_bytes: int = BLOCK
    version: int = VERSION
    digest: bytes | None = None
    """Under which its blocks come; None: the right one."""
    num_sent: int = 12
    refusal: str | None = None

    def serve(self, server: socket.socket, engine_id: str, fingerprint: str) -> None:
        peer, _ = server.accept()
        connection = Connection(peer, time.monotonic() + 5)
        with contextlib.suppress(TransferError):
            connection.send(Greeting(self.version, engine_id, fingerprint, bytes(16)))
            ask = connection.receive(read_ask, num_hashes=100)
            if self.refusal is not None:
                connection.send(Refusal(self.refusal))
            connection.send(Answer(num_blocks=self.num_blocks, block_bytes=self.block_bytes))
            digest = self.digest or ask.hashes[-16:]
            connection.send_blocks(digest, np.zeros((self.num_sent, self.block_bytes), np.uint8))
            connection.receive(read_ask)
        connection.close()


@pytest.mark.parametrize(
    "liar, reason",
    [
        (Liar(digest=bytes(16)), "hash"),
        (Liar(num_blocks=13, num_sent=13), "protocol"),
        (Liar(num_blocks=0), "protocol"),
        (Liar(num_blocks=-1), "protocol"),
        (Liar(block_bytes=BLOCK + 1), "protocol"),
        (Liar(num_blocks=5), "protocol"),
        (Liar(num_sent=4), "hash"),
        (Liar(version=VERSION + 1), "protocol"),
        (Liar(refusal="hash"), "hash"),
        (Liar(refusal="a word of its own\n"), "protocol"),
    ],
)
def test_a_peer_that_lies_is_not_believed(pair: Pair, right: EngineOutput, liar: Liar, reason: str) -> None:
    transfers = pair.a.core._transfers
    assert transfers is not None
    with socket.create_server(("127.0.0.1", 0)) as server:
        arguments = (server, transfers.engine_id, transfers.server._fingerprint)
        thread = threading.Thread(target=liar.serve, args=arguments, daemon=True)
        thread.start()
        params = {**pair.prefill(), "remote_port": server.getsockname()[1]}
        assert_right(pair.decode(params, logprobs=1), right)
        thread.join(10)
    assert pair.stats_b.fallbacks == {reason: 1}


def test_what_came_before_the_connection_was_lost_is_used(
    pair: Pair, right: EngineOutput, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenwire.engine.local.transfer.server.FRAME_BYTES", 2 * BLOCK)
    params = pair.prefill()
    with proxy(address(params)) as between:
        between.rate = 20_000
        handle = pair.b.add(PROMPT, kv=through(between, params), logprobs=1)
        pair.until(lambda: between.num_bytes > 7 * BLOCK)
        between.cut()
        pair.until(lambda: not len(pair.b.streams))
    got = pair.b.output(handle)
    assert got.prompt is not None
    assert got.prompt.num_cached_tokens in (16, 24, 32)
    assert_right(got, right, num_cached=got.prompt.num_cached_tokens)
    assert pair.stats_b.fallbacks == {"lost": 1}
    assert pair.stats_b.pulled_tokens == got.prompt.num_cached_tokens


def test_a_peer_that_is_too_slow(folders: dict[str, Path], right: EngineOutput) -> None:
    made = Pair(folders["llama"], b={"kv_transfer_timeout_s": 0.4})
    params = made.prefill()
    with proxy(address(params)) as between:
        between.rate = 2_000
        started = time.monotonic()
        assert_right(made.decode(through(between, params), logprobs=1), right)
        assert time.monotonic() - started < 3
    assert made.stats_b.fallbacks == {"timeout": 1}
    made.close()


@pytest.mark.parametrize(
    "says", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n" * 4, b"TWKV\x01\xff\xff\xff\xff" + b"x" * 64]
)
def test_an_address_where_something_else_listens(folders: dict[str, Path], right: EngineOutput, says: bytes) -> None:
    made = Pair(folders["llama"], b={"kv_transfer_timeout_s": 0.5})
    heard = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            peer, _ = server.accept()
            with peer:
                peer.sendall(says)
                with contextlib.suppress(OSError):
                    while data := peer.recv(100):
                        heard.extend(data)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        params = {**made.prefill(), "remote_port": server.getsockname()[1]}
        assert_right(made.decode(params, logprobs=1), right)
        thread.join(5)
    assert heard == b""  # it learns nothing of the prompt, nor of the secret
    assert sum(made.stats_b.fallbacks.values()) == 1
    made.close()


def test_others_go_on_while_blocks_travel_and_waiting_can_be_aborted(pair: Pair, right: EngineOutput) -> None:
    params = pair.prefill()
    with proxy(address(params)) as between:
        between.rate = 4_000  # five seconds
        handle = pair.b.add(PROMPT, kv=through(between, params), logprobs=1)
        pair.until(lambda: between.num_bytes > 500)
        other = pair.b.add(PROMPT, logprobs=1)
        started = time.monotonic()
        pair.until(lambda: len(pair.b.streams) == 1)
        assert_right(pair.b.output(other), right)
        assert time.monotonic() - started < 2
        assert (pair.stats_b.num_waiting, pair.b.stats.num_waiting) == (1, 1)
        pair.b.link.inbox.append(wire.Abort([handle], 1))
        pair.b.tick()
        assert not len(pair.b.streams)
        assert pair.b.output(handle).finish_reason == "abort"
        assert pair.stats_b.num_waiting == 0
        between.rate = float("inf")
        pair.assert_nothing_left()  # the other side has heard of it
    assert pair.stats_a.given == 1
    assert pair.stats_b.fallbacks == {}


def test_many_pulls_at_once_and_requests_that_end_while_they_queue(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, folders: dict[str, Path]
) -> None:
    monkeypatch.setattr(pulls_module, "BUFFER_BYTES", 20 * BLOCK)  # room for one and a half
    prompts = [[i, *PROMPT[:24]] for i in range(5, 15)]
    alone = Harness(folders["llama"])
    wanted = [alone.add(prompt) for prompt in prompts]
    alone.run()
    given = [pair.a.add(prompt, kv=KEEP, max_tokens=1) for prompt in prompts[:6]]
    pair.a.run()
    params = [pair.a.output(handle).kv_transfer_params or {} for handle in given]
    with proxy(address(params[0])) as between:
        between.rate = 2_000
        handles = [pair.b.add(prompt, kv=through(between, kept)) for prompt, kept in zip(prompts, params, strict=False)]
        pair.b.tick()
        assert pair.stats_b.num_waiting == 6
        pair.b.link.inbox.append(wire.Abort([handles[5]], 1))
        pair.b.tick()
        assert pair.stats_b.num_waiting == 5
        between.rate = float("inf")
        pair.until(lambda: not len(pair.b.streams))
        pair.assert_nothing_left()
    for handle, want in zip(handles[:5], wanted, strict=False):
        assert pair.b.ids(handle) == alone.ids(want)
    assert (pair.stats_b.pulls, pair.stats_b.fallbacks) == (5, {})
    assert pair.stats_a.given == 6


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_an_address_that_others_cannot_be_told_stops_the_start(folders: dict[str, Path], host: str) -> None:
    with pytest.raises(EngineUnavailableError, match="kv_transfer_host"):
        Harness(folders["llama"], kv_transfer_port=0, kv_transfer_host=host)


def test_a_port_that_is_taken_stops_the_start(folders: dict[str, Path]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(EngineUnavailableError, match=f"127.0.0.1:{port}"):
            Harness(folders["llama"], kv_transfer_port=port)


def test_an_address_that_could_not_be_reached_is_not_tried_by_everybody(
    pair: Pair, right: EngineOutput, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even by those that had queued: each would wait for seconds at an address that is silent."""
    monkeypatch.setattr(pulls_module, "MAX_AT_ONCE", 1)
    tried: list[Any] = []

    def silent(address: tuple[str, int], timeout: float) -> socket.socket:
        tried.append(address)
        time.sleep(0.2)
        raise TimeoutError("timed out")

    monkeypatch.setattr("tokenwire.engine.local.transfer.client.socket.create_connection", silent)
    params = pair.prefill()
    handles = [pair.b.add(PROMPT, kv=params, salt=str(i), logprobs=1) for i in range(5)]
    pair.until(lambda: not len(pair.b.streams))
    for handle in handles:
        assert_right(pair.b.output(handle), right)
    assert pair.stats_b.fallbacks == {"unreachable": 5}
    assert len(tried) == 1


def test_waiting_for_a_turn_counts_as_time(
    folders: dict[str, Path], right: EngineOutput, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulls_module, "MAX_AT_ONCE", 1)
    made = Pair(folders["llama"], b={"kv_transfer_timeout_s": 0.5})
    kept = {salt: made.prefill(salt=salt) for salt in "abc"}
    with proxy(address(kept["a"])) as between:
        between.rate = 1_000
        started = time.monotonic()
        handles = [made.b.add(PROMPT, kv=through(between, kept[salt]), salt=salt, logprobs=1) for salt in "abc"]
        made.until(lambda: not len(made.b.streams))
        assert time.monotonic() - started < 3
    for handle in handles:
        assert_right(made.b.output(handle), right)
    assert made.stats_b.fallbacks == {"timeout": 3}
    assert between.num_connections < 3  # some milliseconds may have been left for the second
    made.close()


def test_a_name_whose_look_up_hangs_is_given_up(
    folders: dict[str, Path], right: EngineOutput, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = threading.Event()

    def look_up(address: tuple[str, int], timeout: float) -> socket.socket:
        hanging.wait(20)
        raise OSError("no such name")

    monkeypatch.setattr("tokenwire.engine.local.transfer.client.socket.create_connection", look_up)
    monkeypatch.setattr(pulls_module, "OVERDUE_S", 0.1)
    made = Pair(folders["llama"], b={"kv_transfer_timeout_s": 0.3})
    started = time.monotonic()
    assert_right(made.decode(made.prefill(), logprobs=1), right)
    assert time.monotonic() - started < 5
    assert made.stats_b.fallbacks == {"timeout": 1}
    assert made.b.core._transfers is not None
    assert len(made.b.core._transfers.pulls._cancelled) == 1  # its thread still counts
    hanging.set()
    made.close()
