"""From an `Add` message to a live `Request` with its sequences and their samplers; refuses what cannot run."""

from __future__ import annotations

from pathlib import Path

import msgspec
from tokenizers import Tokenizer

from tokenwire.engine.local.blocks import root_hash
from tokenwire.engine.local.facts import ModelFacts
from tokenwire.engine.local.messages import Add, unpack_ids
from tokenwire.engine.local.options import LocalEngineOptions
from tokenwire.engine.local.prompt_scores import PromptScores
from tokenwire.engine.local.reasoning import Reasoning
from tokenwire.engine.local.requests import Request, RequestKey, Sequence
from tokenwire.engine.local.sampling import SequenceSampler, derived_seed, tokenize_bad_words
from tokenwire.engine.local.transfer.params import read_params
from tokenwire.errors import InvalidRequestError, PromptTooLongError
from tokenwire.wire.sampling import SamplingParams


class Intake:
    """Builds requests for one model."""

    def __init__(self, folder: Path, facts: ModelFacts, options: LocalEngineOptions, reasoning: Reasoning) -> None:
        self._folder = folder
        self._facts = facts
        self._options = options
        self._markers = reasoning.markers
        self._tokenizer: Tokenizer | None = None
        self._arrivals = 0

    def build(self, client: bytes, message: Add) -> tuple[Request, dict[Sequence, SequenceSampler]]:
        """Raises `InvalidRequestError` for what only the model's side can see."""
        prompt = unpack_ids(message.prompt)
        self._check(prompt, message)
        params = message.sampling
        room = self._facts.max_model_len - len(prompt)
        self._arrivals += 1
        request = Request(
            key=RequestKey(client, message.handle),
            params=params,
            prompt_token_ids=prompt,
            max_tokens=min(params.max_tokens, room) if isinstance(params.max_tokens, int) else room,
            stream=message.stream,
            stream_interval=max(params.stream_interval or 1, self._options.stream_interval),
            priority=message.priority,
            arrival=self._arrivals,
            root=root_hash(message.cache_salt, message.adapter),
            features=message.features,
            reasoning_ended=message.reasoning_ended,
            scores=PromptScores(params, len(prompt)) if params.wants_prompt_scores else None,
            transfer=read_params(message.kv_transfer_params),
        )
        request.sequences = [Sequence(request, index, list(prompt)) for index in range(params.n)]
        return request, self._samplers(request)

    def _check(self, prompt: list[int], message: Add) -> None:
        facts = self._facts
        if not prompt:
            raise InvalidRequestError("token_ids must hold at least one id.", param="token_ids")
        if len(prompt) >= facts.max_model_len:
            raise PromptTooLongError(len(prompt), facts.max_model_len - 1, facts.max_model_len)
        if message.kv_transfer_params is not None and self._options.kv_transfer_port is None:
            raise InvalidRequestError("kv_transfer_params needs kv_transfer_port.", param="kv_transfer_params")
        if message.sampling.n > self._options.max_num_seqs:
            raise InvalidRequestError(
                f"n must be at most max_num_seqs ({self._options.max_num_seqs}), got {message.sampling.n}.", param="n"
            )
        low, high = min(prompt), max(prompt)
        if low < 0 or high >= facts.vocab_size:
            outside = low if low < 0 else high
            raise InvalidRequestError(f"Token id {outside} is out of vocabulary", param="token_ids")

    def _samplers(self, request: Request) -> dict[Sequence, SequenceSampler]:
        params = request.params
        if params.seed is None and self._options.seed is not None:
            params = msgspec.structs.replace(params, seed=derived_seed(self._options.seed, request.arrival))
        bad_words = self._bad_words(params)
        return {
            sequence: SequenceSampler(
                params,
                request.prompt_token_ids,
                vocab_size=self._facts.vocab_size,
                eos_token_ids=self._facts.eos_token_ids,
                index=sequence.index,
                bad_words=bad_words,
                return_mask=self._options.return_sampling_mask,
                markers=self._markers,
            )
            for sequence in request.sequences
        }

    def _bad_words(self, params: SamplingParams) -> list[list[int]]:
        if not params.bad_words:
            return []
        if self._tokenizer is None:
            file = self._folder / "tokenizer.json"
            if not file.exists():
                raise InvalidRequestError(
                    "bad_words needs a tokenizer; the model has no tokenizer.json.", param="bad_words"
                )
            self._tokenizer = Tokenizer.from_file(str(file))
        tokenizer = self._tokenizer

        def encode(text: str) -> list[int]:
            ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
            return ids

        return tokenize_bad_words(params.bad_words, encode, vocab_size=self._facts.vocab_size)
