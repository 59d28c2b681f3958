"""The core in its own process, seen from the front end.

1. Streams work over the link, whole and streamed, many at once; nothing is left afterwards.
2. A killed core ends every open stream with an error: unavailable if a restart follows, dead if not.
3. A restarted core serves again; after the last restart, or one that fails, the engine is dead and says so.
4. A core whose starter is gone ends by itself, one that does not answer is ended; signals for the server do not end it.
5. A model that cannot run stops the start with a sentence.
6. The front end imports neither torch nor transformers.
7. After a warm-up no kernel is compiled again.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.harness import Reference
from tests.engine.tiny_models import VOCAB
from tokenwire.engine.base import EngineOutput, EngineRequest, EngineStatus
from tokenwire.engine.control import Pause, Resume, WeightTransfer
from tokenwire.engine.local import LocalEngine, LocalEngineOptions
from tokenwire.engine.local import engine as engine_module
from tokenwire.engine.local import keeper as keeper_module
from tokenwire.engine.local.process import CoreProcess
from tokenwire.errors import EngineDeadError, EngineUnavailableError, NotServedError, ServiceError
from tokenwire.wire.sampling import SamplingParams

PROMPT = [11, 22, 33, 44, 55]


def options(folder: Path, **settings: Any) -> LocalEngineOptions:
    return LocalEngineOptions(**({"model": str(folder), "num_kv_blocks": 400, "num_threads": 1} | settings))


def request(request_id: str, *, prompt: list[int] = PROMPT, stream: bool = True, **params: Any) -> EngineRequest:
    sampling = SamplingParams(**({"temperature": 0.0, "max_tokens": 8, "ignore_eos": True} | params))
    return EngineRequest(request_id=request_id, prompt_token_ids=prompt, sampling=sampling, stream=stream)


async def read(engine: LocalEngine, what: EngineRequest) -> EngineOutput:
    """The merged output of a request with one sequence."""
    merged: EngineOutput | None = None
    async for outputs in engine.generate(what):
        for output in outputs:
            if merged is None:
                merged = output
            else:
                merged.absorb(output)
    assert merged is not None
    return merged


@pytest.fixture
async def engine(folders: dict[str, Path]) -> AsyncIterator[LocalEngine]:
    started = LocalEngine(options(folders["llama"]))
    await started.start()
    yield started
    await started.close()


async def test_many_clients_get_their_own_ids_and_nothing_is_left(
    engine: LocalEngine, references: dict[str, Reference]
) -> None:
    rnd = random.Random(3)
    prompts = [[rnd.randrange(4, VOCAB) for _ in range(rnd.randint(1, 30))] for _ in range(40)]
    assert engine.info.vocab_size == VOCAB

    async def one(i: int) -> None:
        what = request(f"r{i}", prompt=prompts[i], stream=i % 2 == 0, max_tokens=20, ignore_eos=False)
        if i % 4 != 3:
            output = await read(engine, what)
            assert output.token_ids == references["llama"].greedy(prompts[i], 20)
            return
        stream = engine.generate(what)
        if i % 8 == 3:
            await anext(stream)
        await stream.aclose()

    await asyncio.gather(*[one(i) for i in range(40)])
    await read(engine, request("last", max_tokens=1))
    stats = await engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.kv_cache_usage) == (0, 0, 0.0)
    assert len(engine._streams) == 0


async def test_two_live_requests_may_share_an_id(engine: LocalEngine) -> None:
    first, second = await asyncio.gather(
        read(engine, request("same", max_tokens=5)), read(engine, request("same", prompt=[9], max_tokens=7))
    )
    assert (len(first.token_ids), len(second.token_ids)) == (5, 7)


async def test_abort_by_id_ends_the_stream_with_what_it_had(engine: LocalEngine) -> None:
    reading = asyncio.create_task(read(engine, request("slow", max_tokens=100)))
    await read(engine, request("other", max_tokens=3))
    assert await engine.abort(["slow", "unknown"]) == ["slow"]
    output = await reading
    assert output.finish_reason == "abort"
    assert 0 < len(output.token_ids) < 100
    assert await engine.abort(["slow"]) == []


async def test_pause_is_seen_in_the_status_and_the_cache_can_be_probed(engine: LocalEngine) -> None:
    long = request("x", prompt=PROMPT * 8)
    assert await engine.cached_prefix_len(long) == 0
    await read(engine, long)
    assert await engine.cached_prefix_len(long) == 32
    await engine.control(Pause(mode="keep", clear_cache=True))
    assert engine.status is EngineStatus.FROZEN
    assert await engine.cached_prefix_len(long) == 0
    await engine.control(Pause(mode="abort"))
    assert engine.status is EngineStatus.PAUSED
    with pytest.raises(EngineUnavailableError):
        engine.generate(request("refused"))
    await engine.control(Resume())
    assert engine.status is EngineStatus.READY
    assert (await read(engine, request("again"))).finish_reason == "length"


async def test_a_killed_core_fails_every_open_stream_and_comes_back_as_often_as_allowed(
    folders: dict[str, Path],
) -> None:
    engine = LocalEngine(options(folders["llama"], restarts=1))
    await engine.start()
    try:
        for expected in (EngineUnavailableError, EngineDeadError):
            streams = [engine.generate(request(str(i), max_tokens=100, stream=i > 0)) for i in range(3)]
            await anext(streams[1])
            assert engine.pid is not None
            os.kill(engine.pid, signal.SIGKILL)
            for stream in streams:
                with pytest.raises(expected):
                    async for _ in stream:
                        pass
            if expected is EngineDeadError:
                break
            with pytest.raises(EngineUnavailableError):
                engine.generate(request("too early"))
            while engine.status is EngineStatus.RESTARTING:  # noqa: ASYNC110  a status has no event to wait for
                await asyncio.sleep(0.05)
            assert len((await read(engine, request("back"))).token_ids) == 8
        assert engine.status is EngineStatus.DEAD
        with pytest.raises(EngineDeadError):
            engine.generate(request("never"))
    finally:
        await engine.close()


@pytest.mark.parametrize("while_it_is_away", [False, True])
async def test_a_pause_outlives_the_core(folders: dict[str, Path], *, while_it_is_away: bool) -> None:
    engine = LocalEngine(options(folders["llama"], restarts=1))
    await engine.start()
    try:
        if not while_it_is_away:
            await engine.control(Pause(mode="abort"))
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        while engine.status is not EngineStatus.RESTARTING:  # noqa: ASYNC110  a status has no event to wait for
            await asyncio.sleep(0.01)
        if while_it_is_away:
            assert await engine.control(Pause(mode="abort")) == {"status": "paused"}
        while engine.status is EngineStatus.RESTARTING:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await engine.cached_prefix_len(request("a question, and so all earlier messages are answered"))
        assert engine.status is EngineStatus.PAUSED
        await engine.control(Resume())
        assert len((await read(engine, request("again"))).token_ids) == 8
    finally:
        await engine.close()


async def test_a_label_outlives_the_core_and_weights_are_not_replaced(folders: dict[str, Path]) -> None:
    engine = LocalEngine(options(folders["llama"], restarts=1))
    await engine.start()
    info = WeightTransfer(action="weight_info")
    try:
        assert await engine.control(info) == {"weight_version": "default"}
        label = WeightTransfer(action="update_weight_version", info={"new_version": "s1"})
        assert await engine.control(label) == {"success": True, "new_version": "s1"}
        with pytest.raises(NotServedError, match="update_weights"):
            await engine.control(WeightTransfer(action="update_weights"))
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        while engine.status is not EngineStatus.RESTARTING:  # noqa: ASYNC110  a status has no event to wait for
            await asyncio.sleep(0.01)
        assert await engine.control(info) == {"weight_version": "s1"}
        while engine.status is EngineStatus.RESTARTING:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert await engine.control(info) == {"weight_version": "s1"}
        assert (await read(engine, request("again"))).weight_version == "s1"
    finally:
        await engine.close()


async def test_a_restart_that_fails_in_any_way_is_the_end_and_not_a_wait_for_ever(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = LocalEngine(options(folders["llama"], restarts=2))
    await engine.start()

    def no_folder(*_: object, **__: object) -> None:
        raise PermissionError("the folder cannot be read")

    monkeypatch.setattr(keeper_module, "prepare_model", no_folder)
    assert engine.pid is not None
    stream = engine.generate(request("open", max_tokens=100))
    os.kill(engine.pid, signal.SIGKILL)
    with pytest.raises(EngineUnavailableError):
        async for _ in stream:
            pass
    while engine.status is EngineStatus.RESTARTING:  # noqa: ASYNC110  a status has no event to wait for
        await asyncio.sleep(0.01)
    assert engine.status is EngineStatus.DEAD
    with pytest.raises(EngineDeadError):
        engine.generate(request("never"))
    await engine.close()


async def test_a_core_that_does_not_answer_is_ended_and_the_start_says_so(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = LocalEngine(options(folders["llama"]))
    started: list[CoreProcess] = []
    start = CoreProcess.start

    async def remember(*args: Any) -> CoreProcess:
        started.append(await start(*args))
        return started[0]

    monkeypatch.setattr(CoreProcess, "start", remember)
    monkeypatch.setattr(engine_module, "ATTACH_TIMEOUT_S", 0.0)
    with pytest.raises(EngineUnavailableError, match="did not answer"):
        await engine.start()
    await asyncio.wait_for(started[0].wait(), 1.0)
    assert engine.pid is None
    await engine.close()


async def test_signals_meant_for_the_server_do_not_end_its_core(engine: LocalEngine) -> None:
    assert engine.pid is not None
    stream = engine.generate(request("open", max_tokens=60))
    first = await anext(stream)
    os.kill(engine.pid, signal.SIGINT)
    os.kill(engine.pid, signal.SIGTERM)
    outputs = [*first, *[output async for outputs in stream for output in outputs]]
    assert (sum(len(o.token_ids) for o in outputs), outputs[-1].finish_reason) == (60, "length")
    assert len((await read(engine, request("next"))).token_ids) == 8


def test_a_core_ends_when_its_starter_is_killed(folders: dict[str, Path]) -> None:
    program = (
        "import asyncio, sys\n"
        "from tokenwire.engine.local import LocalEngine, LocalEngineOptions\n"
        "async def main():\n"
        "    engine = LocalEngine(LocalEngineOptions(model=sys.argv[1], num_kv_blocks=400, num_threads=1))\n"
        "    await engine.start()\n"
        "    sys.stdout.write(f'{engine.pid}\\n')\n"
        "    sys.stdout.flush()\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(folders["llama"])], stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout is not None
        core = int(starter.stdout.readline())
        watch = os.pidfd_open(core)
        starter.kill()
        starter.wait()
    poll = __import__("select").poll()
    poll.register(watch)
    assert poll.poll(20_000), "the core outlived its starter by 20 seconds"
    os.close(watch)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_model_len": 4096}, "longer than the model's context"),
        ({"num_kv_blocks": 2}, "less than one sequence"),
        ({"dtype": "int3"}, "is not one of auto"),
        ({"model": "/no/such/model"}, "does not exist"),
    ],
)
async def test_what_cannot_start_says_why(folders: dict[str, Path], settings: dict[str, Any], message: str) -> None:
    engine = LocalEngine(options(folders["llama"], **settings))
    with pytest.raises(ServiceError, match=message):
        await engine.start()
    await engine.close()


@pytest.mark.slow
def test_after_a_warm_up_no_kernel_is_compiled_again(folders: dict[str, Path], tmp_path: Path) -> None:
    def compiled() -> set[str]:
        command = [sys.executable, "-m", "tokenwire.engine.local.warm_up", str(folders["llama"])]
        subprocess.run(command, env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}, check=True)
        return {file.name for file in tmp_path.rglob("*.nbc")}

    first = compiled()
    assert any("decode" in name for name in first)
    assert compiled() == first


def test_the_front_end_is_light() -> None:
    program = (
        "import sys, tokenwire.engine.local\n"
        "heavy = {'torch', 'transformers', 'numba', 'tokenizers'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
