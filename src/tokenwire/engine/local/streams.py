"""The front end's open requests: hands the rows of step messages to the queues of their readers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tokenwire.engine.base import EngineOutput, SpecDecodeStats
from tokenwire.engine.local.messages import Detail, Refusal, Step, unpack_ids, unpack_prompt, unpack_scores
from tokenwire.engine.queue import RequestQueue
from tokenwire.errors import EngineUnavailableError, InvalidRequestError, TokenwireError


class EndEarly(Protocol):
    def __call__(self, handle: int, index: int | None, *, heard: bool = False) -> None:
        """End a request whose reader has left, or the one sequence it has enough of; `heard`: with a last output."""


@dataclass(slots=True)
class _Open:
    request_id: str
    queue: RequestQueue


class Streams:
    """By handle. A stream leaves when all its sequences have finished, when it fails, or when its reader leaves."""

    def __init__(self, abort: EndEarly) -> None:
        self._abort = abort
        self._open: dict[int, _Open] = {}
        self._next_handle = 0

    def __len__(self) -> int:
        return len(self._open)

    def open(self, request_id: str, n: int) -> tuple[int, RequestQueue]:
        """A handle that no open stream has, and its queue."""
        handle = self._next_handle = (self._next_handle + 1) & 0x7FFFFFFF
        queue = RequestQueue(
            n,
            lambda: self._left(handle),
            lambda index: self._stopped(handle, index),
            ask_end=lambda index: self._asked_end(handle, index),
        )
        self._open[handle] = _Open(request_id, queue)
        return handle, queue

    def forget(self, handle: int) -> None:
        """The core was never told of this one."""
        self._open.pop(handle, None)

    def handles_of(self, request_ids: set[str]) -> dict[int, str]:
        """Handles of those request ids that are open."""
        return {handle: o.request_id for handle, o in self._open.items() if o.request_id in request_ids}

    def fail_all(self, error: TokenwireError) -> None:
        """End every stream with an error."""
        opened, self._open = self._open, {}
        for o in opened.values():
            o.queue.fail(error)

    def take(self, step: Step) -> None:
        """Distribute a step's rows."""
        if step.handles:
            self._distribute(step)
        for refusal in step.refusals:
            o = self._open.pop(refusal.handle, None)
            if o is not None:
                o.queue.fail(_refusal_error(refusal))

    def _distribute(self, step: Step) -> None:
        details = {detail.row: detail for detail in step.details}
        handles = unpack_ids(step.handles)
        indexes = unpack_ids(step.indexes)
        token_ids = unpack_ids(step.token_ids)
        at = 0
        for row, count in enumerate(unpack_ids(step.counts)):
            start, at = at, at + count
            o = self._open.get(handles[row])
            if o is None:  # its reader left while this was on the way
                continue
            output = EngineOutput(indexes[row], token_ids[start:at], weight_version=step.version)
            detail = details.get(row)
            if detail is not None:
                _add_detail(output, detail)
            o.queue.put(output)
            if o.queue.done:
                del self._open[handles[row]]

    def _left(self, handle: int) -> None:
        if self._open.pop(handle, None) is not None:
            self._abort(handle, None)

    def _asked_end(self, handle: int, index: int) -> bool:
        if handle not in self._open:
            return False
        self._abort(handle, index, heard=True)
        return True

    def _stopped(self, handle: int, index: int) -> None:
        opened = self._open.get(handle)
        if opened is not None:
            self._abort(handle, index)
            if opened.queue.done:
                del self._open[handle]


def _add_detail(output: EngineOutput, detail: Detail) -> None:
    output.finish_reason = detail.finish_reason
    output.stop_reason = detail.stop_reason
    output.error = detail.error
    output.retryable = detail.retryable
    output.kv_transfer_params = detail.kv_transfer_params
    if detail.versions is not None:
        output.weight_versions = detail.versions
        output.weight_version = None
    if detail.scores is not None:
        output.logprobs = unpack_scores(detail.scores)
    if detail.masks is not None:
        output.sampling_mask = [np.frombuffer(mask, np.int32) for mask in detail.masks]
    if detail.prompt is not None:
        output.prompt = unpack_prompt(detail.prompt)
    if detail.speculation is not None:
        found = detail.speculation
        output.spec_decode = SpecDecodeStats(found.num_spec_tokens, list(found.drafted), list(found.accepted))


def _refusal_error(refusal: Refusal) -> TokenwireError:
    if refusal.unavailable:
        return EngineUnavailableError(refusal.message)
    return InvalidRequestError(refusal.message, param=refusal.param)
