"""Drives a core in this process, step by step, through the messages a front end would send."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tokenwire.engine.base import EngineOutput
from tokenwire.engine.local import messages as wire
from tokenwire.engine.local.build import build_core
from tokenwire.engine.local.core import Core
from tokenwire.engine.local.options import LocalEngineOptions
from tokenwire.engine.local.speculation.costs import MEMORY_BOUND
from tokenwire.engine.local.streams import Streams
from tokenwire.engine.queue import RequestQueue
from tokenwire.wire.sampling import SamplingParams
from tokenwire.wire.sampling_rules import normalize

CLIENT = b"client"


class MemoryLink:
    """Messages to the core wait in `inbox`; those from it go through the wire's encoding to `receive_from_core`."""

    def __init__(self) -> None:
        self.inbox: deque[wire.ToCore] = deque()
        self.from_core: list[wire.FromCore] = []

    def receive(self, timeout_ms: int | None) -> list[tuple[bytes, wire.ToCore]]:
        taken, self.inbox = list(self.inbox), deque()
        return [(CLIENT, wire.to_core_decoder.decode(wire.encoder.encode(message))) for message in taken]

    def send(self, client: bytes, message: wire.FromCore) -> None:
        self.from_core.append(wire.from_core_decoder.decode(wire.encoder.encode(message)))


@dataclass
class Result:
    """Everything one sequence sent, merged."""

    output: EngineOutput
    num_outputs: int = 1


class Harness:
    """One core and its only front end."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.link = MemoryLink()
        settings = {"num_kv_blocks": 64, "block_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 32} | options
        self.core: Core = build_core(folder, LocalEngineOptions(**settings), self.link)
        if self.core.scheduler.drafter is not None:
            self.core.scheduler.drafter.costs = MEMORY_BOUND  # not those of this machine, now
        self.streams = Streams(self._abort)
        self.queues: dict[int, RequestQueue] = {}
        self.results: dict[tuple[int, int], Result] = {}
        self.gauges = wire.Gauges
        self.steps = 0
        self.link.inbox.append(wire.Attach())

    def _abort(self, handle: int, index: int | None, *, heard: bool = False) -> None:
        self.link.inbox.append(wire.Abort([handle]) if index is None else wire.Stop(handle, index, heard))

    def add(
        self,
        prompt: list[int],
        *,
        stream: bool = True,
        priority: int = 0,
        salt: str | None = None,
        kv: dict[str, Any] | None = None,
        **p: Any,
    ) -> int:
        """Send a request; returns its handle."""
        sampling = normalize(SamplingParams(**({"temperature": 0.0, "max_tokens": 8} | p)))
        handle, queue = self.streams.open(str(len(self.queues)), sampling.n)
        self.queues[handle] = queue
        self.link.inbox.append(
            wire.Add(
                handle=handle,
                prompt=wire.pack_ids(prompt),
                sampling=sampling,
                stream=stream,
                priority=priority,
                cache_salt=salt,
                kv_transfer_params=kv,
            )
        )
        return handle

    def tick(self) -> None:
        """One turn of the core's loop, and its messages to the streams."""
        self.core.turn()
        messages, self.link.from_core = self.link.from_core, []
        for message in messages:
            if isinstance(message, wire.Step):
                if message.gauges is not None:
                    self.stats = message.gauges.stats
                self.streams.take(message)
        for handle, queue in self.queues.items():
            pending, queue._pending = queue._pending, []
            for output in pending:
                key = (handle, output.index)
                if key in self.results:
                    self.results[key].output.absorb(output)
                    self.results[key].num_outputs += 1
                else:
                    self.results[key] = Result(output)

    def run(self, max_turns: int = 2000) -> None:
        """Until every stream has ended."""
        for turn in range(max_turns):
            self.tick()
            if not len(self.streams) and not self.link.inbox:
                return
            if turn > max_turns // 4:  # a grammar is compiled by a thread, which needs time and not turns
                time.sleep(0.005)
        raise AssertionError("the core does not finish")

    def ids(self, handle: int, index: int = 0) -> list[int]:
        return self.results[handle, index].output.token_ids

    def output(self, handle: int, index: int = 0) -> EngineOutput:
        return self.results[handle, index].output


class Reference:
    """transformers' own answer, without any cache of ours."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(
            str(folder), dtype=torch.float32, attn_implementation="eager"
        ).eval()

    @torch.inference_mode()
    def greedy(self, prompt: list[int], max_tokens: int) -> list[int]:
        """Ids of `generate`, the EOS that ended it included."""
        ids = self.model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones((1, len(prompt)), dtype=torch.int64),
            do_sample=False,
            max_new_tokens=max_tokens,
        )
        return ids[0, len(prompt) :].tolist()

    @torch.inference_mode()
    def logprobs(self, token_ids: list[int]) -> torch.Tensor:
        """[len, vocab]: log-probabilities after each position."""
        logits = self.model(torch.tensor([token_ids]), use_cache=False).logits[0]
        return logits.float().log_softmax(-1)
