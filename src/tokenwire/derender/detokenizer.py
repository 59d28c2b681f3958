"""Token ids to text, one token at a time: no character is ever split, and no token costs more than the one before.

The joined text is what the `tokenizers` library decodes from all ids at once, after the prompt. A character that
begins in the prompt belongs to the prompt, also where the output completes it. Bytes that may still become a character
wait; what waits when the output ends was no character and is dropped, as in vLLM's engine.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import msgspec

from tokenwire.derender.vocabulary import REPLACEMENT, Vocabulary
from tokenwire.errors import InvalidStateError

PROMPT_TAIL = 16
"""Prompt tokens looked at to seed decoding; 4 bytes of one character, with skipped special tokens between them."""
MAX_WAITING = 256
"""Bytes or characters that may wait. Only output that is no UTF-8 for long gets there; then it is given out."""
WINDOW = 6
"""Tokens decoded together where tokens have no text of their own."""


class DetokenizerState(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything a detokenizer knows, as it travels in a client's state. All sizes are bounded."""

    waiting: bytes = b""
    """Bytes not yet given out (UTF-8 text, or the run of byte pieces after `held`)."""
    held: str = ""
    owed: int = 0
    """Characters at the front of what waits that belong to the prompt."""
    strip: int = 0
    """Leading spaces still to be dropped."""
    window: list[int] = []
    read: int = 0
    last_added: bool = False


@dataclass(slots=True, frozen=True)
class DetokenizerOptions:
    """What the request says about text."""

    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True


class IncrementalDetokenizer:
    """Decodes one sequence. `feed` and `feed_each` take the next ids, in any grouping, with the same joined text."""

    __slots__ = (
        "_held",
        "_last_added",
        "_options",
        "_owed",
        "_read",
        "_strip",
        "_table",
        "_vocab",
        "_waiting",
        "_window",
    )

    def __init__(
        self,
        vocabulary: Vocabulary,
        prompt_token_ids: Sequence[int] = (),
        options: DetokenizerOptions = DetokenizerOptions(),
        *,
        verbatim: bool = False,
    ) -> None:
        """`prompt_token_ids` may be only the end of the prompt. `verbatim`: show every token, strip nothing."""
        self._vocab = vocabulary
        self._options = options
        self._table = vocabulary.verbatim if verbatim else vocabulary.table(options.skip_special_tokens)
        self._waiting = b""
        self._held = ""
        self._owed = 0
        self._window: list[int] = []
        self._read = 0
        self._last_added = False
        self._strip = 0 if verbatim else (MAX_WAITING if vocabulary.strips_first_token else vocabulary.strips_spaces)
        self._seed(list(prompt_token_ids[-PROMPT_TAIL:]))

    def feed(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens complete."""
        return "".join(self.feed_each(token_ids))

    def feed_each(self, token_ids: Sequence[int]) -> list[str]:
        """The same, per token: "" for one that completes nothing."""
        if self._vocab.style == "window":
            return [self._step_window(token_id) for token_id in token_ids]
        table = self._table
        texts: list[str] = []
        for token_id in token_ids:
            piece = table[token_id]
            if type(piece) is str and not self._waiting and not self._held and not self._strip:
                texts.append(piece)
            else:
                texts.append(self._step(piece))
        return texts

    def peek(self, token_id: int) -> str:
        """What this token would complete if it were next; changes nothing."""
        before = self.state()
        text = self.feed([token_id])
        self._restore(before)
        return text

    @property
    def is_clean(self) -> bool:
        """Nothing waits: the text so far is all that the tokens so far mean."""
        return not self._waiting and not self._held and len(self._window) == self._read

    # --- byte-level and SentencePiece ---------------------------------------------------------------------------

    def _step(self, piece: str | bytes) -> str:
        if not piece:
            return ""
        if self._vocab.style == "bytes":
            self._waiting += piece.encode() if isinstance(piece, str) else piece
            text = self._waiting.decode("utf-8", "replace")
            if len(self._waiting) > MAX_WAITING:
                return self._give_out_whole_characters()
        elif isinstance(piece, bytes) and len(piece) == 1:
            self._waiting += piece
            text = self._held + _run_text(self._waiting)
        else:
            whole = piece if isinstance(piece, str) else piece.decode()
            text = self._held + _run_text(self._waiting) + whole
            self._held, self._waiting = text, b""
        if text.endswith(REPLACEMENT) and len(text) <= MAX_WAITING:
            return ""
        self._held, self._waiting = "", b""
        return self._unowed(text)

    def _give_out_whole_characters(self) -> str:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(self._waiting)
        self._waiting = decoder.getstate()[0]
        return self._unowed(text)

    def _unowed(self, text: str) -> str:
        """Take off what belongs to the prompt, and the leading spaces of a text that has no prompt."""
        if self._owed:
            text, self._owed = text[self._owed :], 0
        if self._strip and text:
            spaces = sum(1 for _ in takewhile(" ".__eq__, text[: self._strip]))
            ended = spaces < len(text) or self._vocab.strips_first_token
            text, self._strip = text[spaces:], 0 if ended else self._strip - spaces
        return text

    def _seed(self, tail: list[int]) -> None:
        if self._vocab.style == "window":
            self._window = tail[-WINDOW:]
            self._read = len(self._window)
            return
        pieces = [self._table[token_id] for token_id in tail]
        if any(pieces):
            self._strip = 0
        if self._vocab.style == "bytes":
            data = b"".join(piece.encode() if isinstance(piece, str) else piece for piece in pieces)
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            decoder.decode(data)
            self._waiting = decoder.getstate()[0]
            self._owed = 1 if self._waiting else 0
        else:
            self._waiting = _open_run(pieces)
            self._owed = len(self._waiting)

    # --- no text per token --------------------------------------------------------------------------------------

    def _step_window(self, token_id: int) -> str:
        skip = self._options.skip_special_tokens
        decode = self._vocab.source.decode
        if self._vocab.token_bytes(token_id) is None:
            return ""
        self._window.append(token_id)
        prefix = decode(self._window[: self._read], skip_special_tokens=skip)
        text = decode(self._window, skip_special_tokens=skip)
        waits = len(text) <= len(prefix) or text.endswith(REPLACEMENT)
        if waits and len(self._window) <= MAX_WAITING:
            return ""
        self._window = self._window[self._read :]
        self._read = len(self._window)
        return self._without_space(token_id, text[len(prefix) :])

    def _without_space(self, token_id: int, text: str) -> str:
        """Two added tokens in a row without the space that the decoder joins them by, if the request says so."""
        if self._options.skip_special_tokens or self._options.spaces_between_special_tokens:
            return text
        added = token_id in self._vocab.added_ids
        bare = added and self._last_added
        self._last_added = added
        return (self._vocab.source.id_to_piece(token_id) or "") if bare else text

    # --- state --------------------------------------------------------------------------------------------------

    def state(self) -> DetokenizerState:
        return DetokenizerState(
            self._waiting, self._held, self._owed, self._strip, list(self._window), self._read, self._last_added
        )

    @classmethod
    def from_state(
        cls,
        vocabulary: Vocabulary,
        state: DetokenizerState,
        options: DetokenizerOptions = DetokenizerOptions(),
        *,
        verbatim: bool = False,
    ) -> IncrementalDetokenizer:
        """Go on from `state`. Raises `InvalidStateError` for one that no detokenizer writes."""
        _check(state)
        detokenizer = cls(vocabulary, (), options, verbatim=verbatim)
        detokenizer._restore(state)
        return detokenizer

    def _restore(self, state: DetokenizerState) -> None:
        self._waiting = state.waiting
        self._held = state.held
        self._owed = state.owed
        self._strip = state.strip
        self._window = list(state.window)
        self._read = state.read
        self._last_added = state.last_added


def _run_text(run: bytes) -> str:
    """A run of byte pieces: its text, or one U+FFFD per byte if it is not UTF-8 as a whole (the library's rule)."""
    try:
        return run.decode()
    except UnicodeDecodeError:
        return REPLACEMENT * len(run)


def _open_run(pieces: Sequence[str | bytes]) -> bytes:
    """The byte pieces at the end that begin a character and do not finish it."""
    run = b""
    for piece in reversed(pieces):
        if piece and (isinstance(piece, str) or len(piece) != 1):
            break
        run = (piece if isinstance(piece, bytes) else b"") + run
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    try:
        decoder.decode(run)
    except UnicodeDecodeError:
        return b""
    return decoder.getstate()[0]


def _check(state: DetokenizerState) -> None:
    sizes_hold = (
        len(state.waiting) <= 2 * MAX_WAITING
        and len(state.held) <= 2 * MAX_WAITING
        and 0 <= state.owed <= MAX_WAITING
        and 0 <= state.strip <= MAX_WAITING
        and 0 <= state.read <= len(state.window) <= 2 * MAX_WAITING
    )
    if not sizes_hold or any(token_id < 0 for token_id in state.window):
        raise InvalidStateError("the detokenizer's part is out of bounds")
