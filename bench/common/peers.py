"""The engines that are compared, each behind the same three calls: start, run a batch of prompts, stop.

Every peer runs the same weights with the same ids on all cores. Those that are not installed are named with the reason,
and left out.
"""

from __future__ import annotations

import importlib.util
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import load
from common.servers import Server, free_port, tokenwire


class Unavailable(Exception):
    """This peer cannot run here; says why."""


class Peer(ABC):
    """One engine with one kind of weights."""

    name: str
    server: Server | None = None

    @abstractmethod
    def start(self) -> None:
        """Ready for requests when it returns. Raises `Unavailable` or `DidNotStart`."""

    @abstractmethod
    def run(self, prompts: Sequence[list[int]], output_len: int) -> float:
        """Greedy continuations of all prompts at once, `output_len` tokens each; seconds until the last is done."""

    def stop(self) -> None:
        if self.server is not None:
            self.server.stop()


class Protocol(Peer):
    """A server that speaks `/inference/v1/generate`."""

    def run(self, prompts: Sequence[list[int]], output_len: int) -> float:
        server = self.server
        assert server is not None
        return load.at_once([lambda ids=ids: self._one(server.port, ids, output_len) for ids in prompts])

    @staticmethod
    def _one(port: int, ids: list[int], output_len: int) -> int:
        return _exactly(load.generate(port, ids, output_len), output_len)


class Tokenwire(Protocol):
    """Ours, with further arguments of `tokenwire serve`."""

    def __init__(self, name: str, model: Path, arguments: Sequence[str] = ()) -> None:
        self.name = f"tokenwire {name}"
        self._arguments = [str(model), *arguments]

    def start(self) -> None:
        self.server = tokenwire("serve", *self._arguments)
        self.server.wait_until_ready()


class Vllm(Protocol):
    """vLLM's own server, CPU build."""

    def __init__(self, python: Path, model: Path, dtype: str) -> None:
        self.name = f"vLLM {dtype}"
        self._python, self._model, self._dtype = python, model, dtype

    def start(self) -> None:
        program = self._python.parent / "vllm"
        if not program.exists():
            raise Unavailable(f"no {program}")
        version = _output([str(self._python), "-c", "import importlib.metadata as m; print(m.version('vllm'))"])
        port = free_port()
        command = [str(program), "serve", str(self._model), "--host", "127.0.0.1", "--port", str(port)]
        command += ["--dtype", self._dtype, "--max-model-len", "8192", "--enable-scale-out"]
        self.server = Server(command, port, {"VLLM_CPU_KVCACHE_SPACE": "2"})
        self.server.wait_until_ready()
        self.name = f"vLLM {version} {self._dtype}"


class LlamaServer(Peer):
    """llama.cpp's server, over its own `/completion` with ids in and ids out."""

    def __init__(self, program: Path, gguf: Path, kind: str, slots: int, context: int, threads: int) -> None:
        self.name = f"llama.cpp {kind}"
        self._program, self._gguf, self._slots, self._context, self._threads = program, gguf, slots, context, threads

    def start(self) -> None:
        if not self._program.exists():
            raise Unavailable(f"no {self._program}")
        port = free_port()
        command = [str(self._program), "-m", str(self._gguf), "--host", "127.0.0.1", "--port", str(port)]
        command += ["-np", str(self._slots), "-c", str(self._slots * self._context), "-t", str(self._threads)]
        self.server = Server(command, port)
        self.server.wait_until_ready()

    def run(self, prompts: Sequence[list[int]], output_len: int) -> float:
        server = self.server
        assert server is not None
        return load.at_once([lambda ids=ids: self._one(server.port, ids, output_len) for ids in prompts])

    @staticmethod
    def _one(port: int, ids: list[int], output_len: int) -> int:
        fields: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "cache_prompt": False, "return_tokens": True}
        reply = load.post(port, "/completion", {"prompt": ids, "n_predict": output_len, **fields})
        return _exactly(len(reply["tokens"]), output_len)


class Transformers(Peer):
    """`generate` of transformers in this process, all prompts as one batch."""

    def __init__(self, model: Path, threads: int) -> None:
        self.name = "transformers float32"
        self._folder, self._threads = model, threads
        self._model: Any = None

    def start(self) -> None:
        if importlib.util.find_spec("transformers") is None or importlib.util.find_spec("torch") is None:
            raise Unavailable("torch and transformers are not installed")
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(self._threads)
        self._model = AutoModelForCausalLM.from_pretrained(str(self._folder), dtype=torch.float32).eval()

    def run(self, prompts: Sequence[list[int]], output_len: int) -> float:
        import torch

        ids = torch.tensor(prompts)
        start = time.perf_counter()
        with torch.inference_mode():
            out = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                min_new_tokens=output_len,
                max_new_tokens=output_len,
                pad_token_id=0,
            )
        wall = time.perf_counter() - start
        _exactly(out.shape[1] - ids.shape[1], output_len)
        return wall

    def stop(self) -> None:
        self._model = None


def _exactly(got: int, wanted: int) -> int:
    if got != wanted:
        raise RuntimeError(f"{got} tokens came back, not {wanted}")
    return got


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
