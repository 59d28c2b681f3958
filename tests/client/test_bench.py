"""`tokenwire bench` against the scripted server on a socket.

1. It counts every token once and times them as they come: known pauses come out as the latencies they are.
2. Tokens that share a chunk share its gap; the first chunk is the first token's time alone.
3. Failures are counted by what the server said, in streams and whole replies, and make the exit code 1.
4. Prompts depend on seed, level and index alone; a shared prefix is shared, and nothing else is.
5. With a request rate, time is counted from when a request was due.
6. The JSON file has all numbers and no keys; the picture is a picture; bad arguments are refused with a sentence.
7. The generator is cheap: 256 streams at once, and few microseconds a token.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.client.scripted_app import ToyServer, error
from tokenwire.bench import prompts
from tokenwire.bench.command import run
from tokenwire.bench.connection import Connection, Pool, Target
from tokenwire.bench.load import PATH, LevelRun, run_level
from tokenwire.bench.meter import Meter, RequestResult
from tokenwire.bench.options import BenchOptions, RequestShape
from tokenwire.bench.summary import LevelSummary, summarise
from tokenwire.client.errors import ConnectError, ConnectionLostError

SHAPE = RequestShape(prompt_len=8, output_len=6, vocab_high=256)


def measure(base_url: str, concurrency: int, **options: object) -> LevelSummary:
    given_options = BenchOptions(**({"base_url": base_url, "shape": SHAPE} | options))  # type: ignore[arg-type]

    async def go() -> LevelSummary:
        pool = Pool(Target.of(base_url, PATH, given_options.headers))
        level = await run_level(given_options, pool, 0, concurrency, lambda run: None)
        pool.close()
        return summarise(level, given_options)

    return asyncio.run(go())


# --- what it measures ---------------------------------------------------------------------------------------------


def test_known_pauses_come_out_as_the_latencies_they_are(base_url: str, toy: ToyServer) -> None:
    toy.step_s = 0.03
    level = measure(base_url, 4, num_requests=8)
    assert (level.num_requests, level.num_failed, level.num_short) == (8, 0, 0)
    assert level.ttft_ms is not None
    assert level.itl_ms is not None
    assert level.tpot_ms is not None
    assert level.e2e_ms is not None
    assert level.ttft_ms.p50 < level.itl_ms.p50  # the first token comes without a pause
    assert 29 < level.itl_ms.p50 < 90
    assert 29 < level.tpot_ms.p50 < 120
    assert 6 * 29 < level.e2e_ms.p50 < 6 * 120
    assert level.output_tok_per_s == pytest.approx(8 * 6 / level.wall_s)
    assert level.input_tok_per_s == pytest.approx(8 * 8 / level.wall_s)


def test_whole_replies_are_counted_too(base_url: str, toy: ToyServer) -> None:
    shape = RequestShape(prompt_len=8, output_len=6, vocab_high=256, stream=False, logprobs=1, model="toy")
    level = measure(base_url, 2, num_requests=4, num_warmup=0, shape=shape)
    assert (level.num_requests, level.num_failed, level.num_short) == (4, 0, 0)
    assert level.ttft_ms is level.itl_ms is None
    assert level.output_tok_per_s == pytest.approx(4 * 6 / level.wall_s)
    bodies = [body for _, _, body in toy.requests]
    assert len(bodies) == 4
    assert all(b["sampling_params"]["logprobs"] == 1 and b["model"] == "toy" and not b["stream"] for b in bodies)


def event(count: int) -> bytes:
    return b"data: " + json.dumps({"choices": [{"token_ids": [1] * count}]}).encode() + b"\n\n"


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(0.001, 1.0)), min_size=1, max_size=10), st.integers(1, 40))
def test_gaps_add_up_to_the_time_from_first_to_last_token(chunks: list[tuple[int, float]], cut: int) -> None:
    result, now, times = RequestResult(0.0), 0.0, []
    meter = Meter(result, stream=True)
    for count, pause in chunks:
        now += pause
        data = event(count)
        for at in range(0, len(data), cut):
            meter.feed(data[at : at + cut], now)
        times += [now] * count
    meter.feed(b"data: [DONE]\n\n", now)
    meter.finish(200, now)
    assert result.failure is None
    assert result.num_tokens == len(times)
    if times:
        first_chunk = next(count for count, _ in chunks if count)
        assert result.first == times[0]
        assert len(result.gaps) == len(times) - first_chunk
        assert sum(result.gaps) == pytest.approx(times[-1] - times[0])


def test_percentiles_are_those_of_the_values() -> None:
    results = [RequestResult(0.0, 0.1, 1.0, 3, array("d", [0.2, 0.4])), RequestResult(0.0, 0.3, 2.0, 1)]
    level = summarise(LevelRun(2, 2, 0.0, 2.0, 0.5, results), BenchOptions(shape=RequestShape(output_len=3)))
    assert level.ttft_ms is not None
    assert level.itl_ms is not None
    assert (level.ttft_ms.p50, level.ttft_ms.max) == (pytest.approx(200), pytest.approx(300))
    assert (level.itl_ms.mean, level.itl_ms.p50) == (pytest.approx(300), pytest.approx(300))
    assert level.num_short == 1
    assert level.generator_cpu == 0.25


def test_with_a_rate_time_counts_from_when_a_request_was_due(base_url: str, toy: ToyServer) -> None:
    toy.step_s = 0.02  # 120 ms a request, one at once: 8 a second; 100 a second are due
    level = measure(base_url, 1, num_requests=6, num_warmup=0, request_rate=100.0)
    assert level.ttft_ms is not None
    assert level.e2e_ms is not None
    assert level.num_failed == 0
    assert level.ttft_ms.max > 300
    assert level.e2e_ms.max > level.e2e_ms.p50 > 200


# --- failures -----------------------------------------------------------------------------------------------------


def test_failures_are_counted_by_what_the_server_said(base_url: str, toy: ToyServer) -> None:
    toy.failures = [
        error(503, "full", "Service Unavailable"),
        error(503, "full", "Service Unavailable"),
        error(400, "no"),
    ]
    level = measure(base_url, 1, num_requests=5, num_warmup=0)
    assert level.failures == {"503: full": 2, "400: no": 1}
    assert (level.num_requests, level.num_failed) == (5, 3)


def test_an_error_event_is_a_failure(base_url: str, toy: ToyServer) -> None:
    toy.fail_after = 2
    level = measure(base_url, 2, num_requests=2, num_warmup=0)
    assert level.failures == {"error event: engine broke": 2}
    assert level.ttft_ms is None


@pytest.mark.parametrize(
    "stream, body, why",
    [
        (True, b"data: x\n\n", "an event that is not the protocol's"),
        (True, event(1), "the stream ended before [DONE]"),
        (False, b"{", "a reply that is not the protocol's"),
    ],
)
def test_a_reply_that_breaks_the_protocol_is_a_failure(stream: bool, body: bytes, why: str) -> None:
    result = RequestResult(0.0)
    meter = Meter(result, stream=stream)
    meter.feed(body, 1.0)
    meter.finish(200, 1.0)
    assert result.failure is not None
    assert result.failure.startswith(why)


def test_an_answer_that_does_not_come_is_a_failure(base_url: str, toy: ToyServer) -> None:
    toy.step_s = 5.0
    level = measure(base_url, 1, num_requests=1, num_warmup=0, timeout_s=0.2)
    assert level.failures == {"no answer within 0.2 s": 1}


async def test_a_connection_that_breaks_fails_its_request_at_once() -> None:
    async def slam(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")
        writer.close()

    server = await asyncio.start_server(slam, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        target = Target.of(f"http://127.0.0.1:{port}", PATH, {})
        connection = await Connection.open(target)
        with pytest.raises(ConnectionLostError, match="before the reply was whole"):
            await connection.post(target, b"{}", lambda data, now: None)
        assert not connection.is_reusable
        with pytest.raises(ConnectionLostError):
            await connection.post(target, b"{}", lambda data, now: None)


async def test_connections_are_kept_and_reused(base_url: str) -> None:
    pool = Pool(Target.of(base_url, PATH, {}))
    first = await pool.take()
    body = prompts.body(SHAPE, 0, 0)
    assert await first.post(pool.target, body, lambda data, now: None) == 200
    pool.give_back(first)
    assert await pool.take() is first
    pool.close()
    first.close()


async def test_a_port_nobody_listens_on_is_a_connect_error() -> None:
    with pytest.raises(ConnectError, match="cannot connect to 127.0.0.1:9"):
        await Connection.open(Target.of("http://127.0.0.1:9", PATH, {}))


# --- prompts ------------------------------------------------------------------------------------------------------


@given(st.integers(1, 40), st.integers(0, 40), st.integers(0, 2**31), st.integers(0, 3), st.integers(0, 50))
def test_prompts_can_be_repeated_and_share_only_their_prefix(
    length: int, shared: int, seed: int, level: int, i: int
) -> None:
    shape = RequestShape(
        prompt_len=length, shared_prefix_len=min(shared, length), seed=seed, vocab_low=5, vocab_high=2**20
    )
    ids = prompts.prompt_ids(shape, level, i)
    assert ids == prompts.prompt_ids(shape, level, i)
    assert len(ids) == length
    assert all(5 <= token_id < 2**20 for token_id in ids)
    other = prompts.prompt_ids(shape, level, i + 1)
    cut = min(shared, length)
    assert other[:cut] == ids[:cut]
    if length - cut >= 4:
        assert other[cut:] != ids[cut:]
        assert prompts.prompt_ids(shape, level + 1, i)[cut:] != ids[cut:]


def test_warm_up_and_levels_never_send_the_same_prompt_twice(base_url: str, toy: ToyServer) -> None:
    for _ in range(2):
        measure(base_url, 3, num_requests=5)
    sent = [tuple(body["token_ids"]) for _, _, body in toy.requests]
    assert len(sent) == 16
    assert len(set(sent[:8])) == 8
    assert sorted(sent[:8]) == sorted(sent[8:])  # the same seed


# --- the command --------------------------------------------------------------------------------------------------


def test_the_command_shows_a_table_and_writes_numbers_and_a_picture(
    base_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["--json", str(tmp_path / "r.json"), "--plot", str(tmp_path / "r.png")]
    load = ["--concurrency", "1,4", "--num-requests", "4", "--output-len", "5", "--vocab", "0:256", "--seed", "3"]
    assert run(["--base-url", base_url, "--api-key", "secret", *load, *files]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == f"{base_url}: 64 ids in, 5 out, streamed, seed 3"
    assert [line.split()[:3] for line in out[4:]] == [["1", "4", "0"], ["4", "4", "0"]]
    text = (tmp_path / "r.json").read_text()
    assert "secret" not in text
    report = json.loads(text)
    assert [level["concurrency"] for level in report["levels"]] == [1, 4]
    assert report["levels"][1]["itl_ms"].keys() == {"mean", "p50", "p90", "p99", "max"}
    assert report["options"]["shape"]["seed"] == 3
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")


def test_failures_make_the_exit_code_1(base_url: str, toy: ToyServer, capsys: pytest.CaptureFixture[str]) -> None:
    toy.failures = [error(400, f"bad number {i}") for i in range(5)]
    args = ["--concurrency", "1", "--num-requests", "6", "--warmup", "0", "--vocab", "0:256"]
    assert run(["--base-url", base_url, *args]) == 1
    out = capsys.readouterr().out
    assert "1 x 400: bad number 0" in out
    assert "2 x other failures" in out


@pytest.mark.parametrize("levels", ["4", "1,2"])
def test_pictures_of_whole_replies_and_single_levels_are_drawn(base_url: str, tmp_path: Path, levels: str) -> None:
    args = ["--no-stream", "--concurrency", levels, "--num-requests", "4", "--vocab", "0:256"]
    assert run(["--base-url", base_url, *args, "--plot", str(tmp_path / "r.svg")]) == 0
    assert "not measured" in (tmp_path / "r.svg").read_text()


@pytest.mark.parametrize(
    "args, sentence",
    [
        (["--base-url", "localhost:8000"], "is not a URL like"),
        (["--header", "nothing"], "is not of the form"),
        (["--shared-prefix-len", "65"], "is more than --prompt-len 64"),
        (["--concurrency", "0"], "must be 1 or more"),
        (["--vocab", "9:3"], "must be LOW:HIGH"),
        (["--vocab", "a:b"], "--vocab"),
        (["--request-rate", "nan"], "must be a number above 0"),
    ],
)
def test_bad_arguments_are_refused_with_a_sentence(
    args: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = run(args)
    except SystemExit as exc:
        code = int(str(exc.code))
    assert code == 2
    assert sentence in capsys.readouterr().err


def test_a_picture_without_matplotlib_is_refused_before_the_load(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tokenwire.bench.plot.is_available", lambda: False)
    assert run(["--plot", "x.png"]) == 2
    assert "pip install 'tokenwire[bench]'" in capsys.readouterr().err


def test_a_stopped_run_keeps_its_whole_levels(base_url: str, toy: ToyServer, tmp_path: Path) -> None:
    toy.step_s = 0.005
    args = ["--concurrency", "2,1", "--num-requests", "20", "--output-len", "10", "--vocab", "0:256"]
    command = [sys.executable, "-m", "tokenwire", "bench", "--base-url", base_url, *args, "--json", str(tmp_path / "r")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.split()[:3] == ["2", "20", "0"]:
                process.send_signal(signal.SIGINT)
                break
        _, complaint = process.communicate(timeout=30)
    assert (process.returncode, complaint) == (130, "tokenwire bench: stopped; whole levels are kept\n")
    assert [level["concurrency"] for level in json.loads((tmp_path / "r").read_text())["levels"]] == [2]


# --- cost ---------------------------------------------------------------------------------------------------------


def test_256_streams_at_once(base_url: str) -> None:
    level = measure(base_url, 256, num_requests=300, num_warmup=0)
    assert (level.num_requests, level.num_failed, level.num_short) == (300, 0, 0)


def test_a_token_costs_few_microseconds() -> None:
    nulls = dict.fromkeys(["finish_reason", "stop_reason", "routed_experts", "sampling_mask", "weight_versions"])
    choice = {"index": 0, "token_ids": [123], "logprobs": None, **nulls}
    chunk = {
        "request_id": "generate-tokens-0123456789abcdef",
        "usage": None,
        "output_mode": "tokens",
        "choices": [choice],
    }
    data = b"data: " + json.dumps(chunk).encode() + b"\n\n"
    best = 1.0
    for _ in range(3):
        meter = Meter(RequestResult(0.0), stream=True)
        began = time.perf_counter()
        for i in range(5000):
            meter.feed(data, float(i))
        best = min(best, (time.perf_counter() - began) / 5000)
    assert best < 50e-6
