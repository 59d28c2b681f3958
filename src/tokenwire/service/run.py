"""One request under way: the engine's outputs through their choices' text stages, with all bookkeeping.

The one loop of the service. Whole replies and streams both read it; each wake-up of a stream is one pass of
`__anext__`, so nothing here is made anew per token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenwire.engine.base import EngineOutput, OutputStream
from tokenwire.errors import ServiceError
from tokenwire.service.choices import ChoiceRun, failure_of
from tokenwire.service.replies import ReplyShaper

if TYPE_CHECKING:
    from tokenwire.service.generate import GenerateService
    from tokenwire.service.prepare import PreparedGenerate

LAST_WORD_WITHIN_S = 2.0
"""How long a choice that a stop string ended waits for what only the engine's last output of it tells."""


class GenerateRun:
    """Iterating starts the request, and gives what may be shown at each wake-up.

    Raises what the engine raises, after everything that came before it. `aclose` before the end aborts the request.
    """

    def __init__(self, service: GenerateService, prepared: PreparedGenerate) -> None:
        self._service = service
        self._prepared = prepared
        self._observer = service.observer
        self.choices = _choice_runs(service, prepared)
        self.replies = ReplyShaper(prepared, self.choices, service.options, service.text)
        self._facts = self.replies.facts
        self._ticket, prepared.ticket = prepared.ticket, None
        self._has_begun = False
        self._stream: OutputStream | None = None
        self._failure: ServiceError | None = None
        self._has_ended = False

    def __aiter__(self) -> GenerateRun:
        return self

    async def __anext__(self) -> list[EngineOutput]:
        if self._has_ended:
            raise StopAsyncIteration
        try:
            if self._failure is not None:
                raise self._failure
            stream = self._stream or self._start()
            while True:
                shown = self._show(stream, await stream.__anext__())
                if shown:
                    return shown
                if self._failure is not None:
                    raise self._failure
        except StopAsyncIteration:
            self._end(completed=True)
            raise
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Abort what still runs; nothing after the end."""
        if not self._has_ended:
            self._end(completed=False)
            if self._stream is not None:
                await self._stream.aclose()

    def _start(self) -> OutputStream:
        service, prepared = self._service, self._prepared
        if self._ticket is None:  # prepared once, run again
            self._ticket = service.admission.enter(prepared.n, prepared.prompt_len)
        service.enter(prepared)
        self._has_begun = True
        self._observer.started(prepared)
        self._stream = stream = service.engine.generate(prepared.engine_request)
        return stream

    def _end(self, *, completed: bool) -> None:
        self._has_ended = True
        if self._ticket is not None:
            self._ticket.leave()
        if self._has_begun:
            self._service.leave(self._prepared)
            self._observer.ended(self._prepared, completed=completed)

    def _show(self, stream: OutputStream, outputs: list[EngineOutput]) -> list[EngineOutput]:
        """What of these outputs may be shown; a failure after it is kept for the next call."""
        if not self._facts.has_output:
            self._first(outputs)
        choices = self.choices
        shown: list[EngineOutput] = []
        num_tokens = 0
        for output in outputs:
            choice = choices[output.index]
            if output.finish_reason is None and not choice.stopped:
                visible = choice.take(output)
                num_tokens += len(visible.token_ids)
                if visible.finish_reason is not None:
                    self._stopped(stream, choice, visible, shown)
                else:
                    shown.append(visible)
            elif choice.stopped:
                self._last_word(choice, output, shown)
            elif output.finish_reason == "error":
                self._observer.choice_finished(self._prepared, output)
                self._failure = failure_of(output)
                break
            else:
                visible = choice.take(output)
                num_tokens += len(visible.token_ids)
                self._finished(visible, shown)
        if num_tokens:
            self._observer.tokens(self._prepared, num_tokens)
        return shown

    def _first(self, outputs: list[EngineOutput]) -> None:
        assert self._ticket is not None
        self._ticket.prefilled()
        self._observer.prefilled(self._prepared, self._facts.first(outputs))

    def _stopped(
        self, stream: OutputStream, choice: ChoiceRun, visible: EngineOutput, shown: list[EngineOutput]
    ) -> None:
        """A stop string ended the choice before the engine did."""
        if self._wants_last_word(choice):
            stream.stop(visible.index, LAST_WORD_WITHIN_S)
            choice.hold(visible)
        else:
            stream.stop(visible.index)
            self._finished(visible, shown)

    def _last_word(self, choice: ChoiceRun, output: EngineOutput, shown: list[EngineOutput]) -> None:
        last = choice.last_word(output)
        if last is not None:
            self._finished(last, shown)

    def _finished(self, visible: EngineOutput, shown: list[EngineOutput]) -> None:
        self._facts.finish(visible)
        self._observer.choice_finished(self._prepared, visible)
        shown.append(visible)

    def _wants_last_word(self, choice: ChoiceRun) -> bool:
        """Does the engine know more of the choice than came with its tokens?"""
        prepared, service = self._prepared, self._service
        request, capabilities = prepared.engine_request, service.engine.info.capabilities
        shows_speculation = prepared.n == 1 and service.options.per_request_spec_decode_metrics != "none"
        return (
            request.kv_transfer_params is not None
            or request.ec_transfer_params is not None
            or capabilities.routed_experts
            or (capabilities.weight_versions_at_end and not choice.has_labels)
            or (capabilities.speculation and shows_speculation)
        )


def _choice_runs(service: GenerateService, prepared: PreparedGenerate) -> list[ChoiceRun]:
    text, engine_request = service.text, prepared.engine_request
    if text is None or not prepared.needs_text:
        return [ChoiceRun(None) for _ in range(prepared.n)]
    prompt, sampling, mode = engine_request.prompt_token_ids, engine_request.sampling, prepared.request.output_mode
    num_prompt_rows = len(prompt) - sampling.routed_experts_prompt_start
    return [ChoiceRun(text.stage(prompt, sampling, mode), num_prompt_rows) for _ in range(prepared.n)]
