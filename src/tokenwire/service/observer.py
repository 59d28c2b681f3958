"""What the service tells about requests, for metrics and logs. The base class listens to nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenwire.engine.base import EngineOutput
    from tokenwire.service.generate import PreparedGenerate


class Observer:
    """Override what is of interest. Called on the event loop, for every wake-up of a stream: keep it cheap."""

    def started(self, prepared: PreparedGenerate) -> None:
        """The request was accepted and goes to the engine."""

    def prefilled(self, prepared: PreparedGenerate, cached_tokens: int | None) -> None:
        """The first output is there."""

    def tokens(self, prepared: PreparedGenerate, num_tokens: int) -> None:
        """New output tokens, of any choice."""

    def choice_finished(self, prepared: PreparedGenerate, output: EngineOutput) -> None:
        """A choice ended. In whole replies `output` holds all its ids; in streams those of its last event."""

    def ended(self, prepared: PreparedGenerate, *, completed: bool) -> None:
        """Nothing more will come; `completed` is False for a client that left and for errors."""

    def unknown_fields(self, names: tuple[str, ...]) -> None:
        """Request fields that were passed over."""
