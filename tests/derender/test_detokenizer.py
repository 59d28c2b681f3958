"""The incremental detokenizer.

1. A character spread over tokens comes out whole, with the token that completes it; no U+FFFD is ever sent for it.
2. Any grouping of the ids gives the same text, also when the state travels as JSON in between.
3. The text is what the `tokenizers` library's own stream gives, for every decoder kind.
4. SentencePiece: the first token keeps its space after a prompt and loses it without one; a suffix of the prompt is
   as good as all of it.
5. A character that begins in the prompt belongs to the prompt.
6. Special tokens add nothing, or their text, as asked; bytes around a skipped one still join.
7. Ids outside the vocabulary add nothing.
8. State and work are bounded, whatever the output; a state that no detokenizer writes is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.decoders import DecodeStream

from tests.derender.sources import LibraryTokens, byte_vocabulary, gemma_like, metaspace, wordpiece
from tests.support.tokenizers import tokenizer
from tokenwire.derender.detokenizer import (
    MAX_WAITING,
    DetokenizerOptions,
    DetokenizerState,
    IncrementalDetokenizer,
)
from tokenwire.derender.vocabulary import Vocabulary
from tokenwire.errors import InvalidStateError

EMOJI = "😀".encode()
SHOWN = DetokenizerOptions(skip_special_tokens=False)


def texts(vocabulary: Vocabulary, ids: Sequence[int], prompt: Sequence[int] = (), **options: bool) -> list[str]:
    return IncrementalDetokenizer(vocabulary, prompt, DetokenizerOptions(**options)).feed_each(ids)


def test_a_character_over_two_tokens_comes_with_the_second() -> None:
    vocabulary = byte_vocabulary([EMOJI[:2], EMOJI[2:], b"!"])
    assert texts(vocabulary, [0, 1, 2]) == ["", "😀", "!"]


def test_a_combining_mark_is_its_own_text_and_nothing_is_repeated() -> None:
    vocabulary = byte_vocabulary(["e", "\u0301", "x"])
    assert texts(vocabulary, [0, 1, 2]) == ["e", "\u0301", "x"]


def test_bytes_that_are_no_character_come_out_once_something_follows() -> None:
    vocabulary = byte_vocabulary([EMOJI[:2], b"abc", b"\x98"])
    assert texts(vocabulary, [0, 1]) == ["", "\ufffdabc"]
    assert texts(vocabulary, [2, 1]) == ["", "\ufffdabc"]
    assert texts(vocabulary, [1, 0]) == ["abc", ""], "what waits at the end was no character"


@given(st.data())
def test_any_grouping_and_any_stop_over_gives_the_same_text(data: st.DataObject) -> None:
    tokens = [b"a", b"\xf0", b"\x9f", b"\x98", b"\x80", EMOJI, b"\xff", "é".encode(), b" ", b"\xef\xbf\xbd", b"<s>"]
    vocabulary = byte_vocabulary(tokens, special=[10])
    ids = data.draw(st.lists(st.integers(0, len(tokens)), max_size=30))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=6)))
    prompt = data.draw(st.lists(st.integers(0, len(tokens) - 1), max_size=4))
    whole = IncrementalDetokenizer(vocabulary, prompt, SHOWN).feed(ids)
    stream = IncrementalDetokenizer(vocabulary, prompt, SHOWN)
    parts = []
    for start, stop in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        parts.append(stream.feed(ids[start:stop]))
        carried = msgspec.json.decode(msgspec.json.encode(stream.state()), type=DetokenizerState)
        stream = IncrementalDetokenizer.from_state(vocabulary, carried, SHOWN)
    assert "".join(parts) == whole


def library_texts(source: LibraryTokens, ids: Sequence[int], prompt: Sequence[int], *, skip: bool) -> list[str]:
    stream = DecodeStream(ids=list(prompt), skip_special_tokens=skip)
    return [stream.step(source.raw, token_id) or "" for token_id in ids]


SOURCES = {
    "gemma": gemma_like(),
    "llama2": gemma_like(strip=1),
    "metaspace": metaspace(),
    "wordpiece": wordpiece(),
}


@pytest.mark.parametrize("name", SOURCES)
@given(st.data())
def test_the_text_is_the_library_s(name: str, data: st.DataObject) -> None:
    source = SOURCES[name]
    top = source.raw.get_vocab_size() - 1
    # Byte pieces that stand alone break the library's stream (it raises); they have tests of their own.
    low = 257 if name in ("gemma", "llama2") else 0
    ids = data.draw(st.lists(st.integers(low, top), min_size=1, max_size=12))
    # After a prompt that ends in U+FFFD the library sends the prompt's own text again.
    ends_open = {i for i in range(top + 1) if source.decode([i]).endswith("\ufffd")}
    prompt = data.draw(st.lists(st.integers(low, top).filter(lambda i: i not in ends_open), max_size=5))
    skip = data.draw(st.booleans())
    expected = library_texts(source, ids, prompt, skip=skip)
    vocabulary = Vocabulary(source)
    got = IncrementalDetokenizer(vocabulary, prompt, DetokenizerOptions(skip_special_tokens=skip)).feed_each(ids)
    if name == "wordpiece":
        assert "".join(got) == "".join(expected)
    else:
        assert got == expected


def test_byte_pieces_join_into_characters_and_stand_for_one_replacement_each_otherwise() -> None:
    source = gemma_like()
    vocabulary = Vocabulary(source)
    pieces = source.ids("<0xE9>", "<0xBE>", "<0x98>", "x")
    assert texts(vocabulary, pieces) == ["", "", "龘", "x"] == library_texts(source, pieces, [], skip=True)
    cut = source.ids("<0xF0>", "<0x9F>", "x")
    assert texts(vocabulary, cut) == ["", "", "\ufffd\ufffdx"] == library_texts(source, cut, [], skip=True)


def test_a_byte_piece_that_breaks_a_run_loses_no_text() -> None:
    source = gemma_like()
    ids = source.ids("<0xE9>", "<0xBE>", "<0x98>", "<0x80>", "x")
    assert texts(Vocabulary(source), ids) == ["", "", "龘", "", "\ufffdx"]


@pytest.mark.parametrize("source", [metaspace(), gemma_like(strip=1)], ids=["metaspace", "llama2"])
def test_the_leading_space_stays_after_a_prompt_and_goes_without_one(source: LibraryTokens) -> None:
    vocabulary = Vocabulary(source)
    ids = source.ids("▁Hello", "▁world")
    assert texts(vocabulary, ids) == ["Hello", " world"]
    prompt = source.ids("▁world", "▁Hello", "▁Hello")
    assert texts(vocabulary, ids, prompt) == texts(vocabulary, ids, prompt[-1:]) == [" Hello", " world"]
    assert texts(vocabulary, ids, source.ids("<s>")) == ["Hello", " world"], "a skipped token is no text before it"


def test_a_character_that_begins_in_the_prompt_is_the_prompt_s() -> None:
    vocabulary = byte_vocabulary(["ab", EMOJI[:2], EMOJI[2:3], EMOJI[3:], "c"])
    assert texts(vocabulary, [2, 3, 4], prompt=[0, 1]) == ["", "", "c"]
    assert texts(vocabulary, [4], prompt=[0, 1]) == ["c"], "what the prompt left open and never closed is not repeated"
    source = gemma_like()
    prompt, rest = source.ids("abc", "<0xE9>"), source.ids("<0xBE>", "<0x98>", "x")
    assert texts(Vocabulary(source), rest, prompt) == ["", "", "x"]


def test_special_tokens_show_only_when_asked() -> None:
    vocabulary = byte_vocabulary([b"<s>", EMOJI[:2], EMOJI[2:]], special=[0])
    assert texts(vocabulary, [1, 0, 2]) == ["", "", "😀"]
    assert texts(vocabulary, [1, 0, 2], skip_special_tokens=False) == ["", "\ufffd<s>", ""]


def test_special_tokens_in_a_row_lose_the_joining_space_when_asked() -> None:
    source = wordpiece()
    ids = source.ids("hello", "[SEP]", "[CLS]", "world")
    spaced = texts(Vocabulary(source), ids, skip_special_tokens=False)
    bare = texts(Vocabulary(source), ids, skip_special_tokens=False, spaces_between_special_tokens=False)
    assert spaced == ["hello", " [SEP]", " [CLS]", " world"]
    assert bare == ["hello", " [SEP]", "[CLS]", " world"]


def test_unknown_ids_add_nothing_and_are_not_remembered() -> None:
    vocabulary = byte_vocabulary(["a", "b"])
    assert texts(vocabulary, [0, 99, 2**40, 1]) == ["a", "", "", "b"]
    assert set(vocabulary.skipping) == {0, 1}


def test_a_real_tokenizer_gives_its_text_back() -> None:
    source = tokenizer("smol")
    text = "Hello 世界 🫠, e\u0301 and \u200b code:\n\tx = {'a': 1}  # 龘"
    assert "".join(texts(Vocabulary(source), source.encode(text))) == text


@pytest.mark.parametrize("tokens", [[b"\xff"], [b"a\xff"], ["\ufffd"]], ids=["bytes", "mixed", "replacement"])
def test_endless_garbage_keeps_a_bounded_state(tokens: list[bytes | str]) -> None:
    detokenizer = IncrementalDetokenizer(byte_vocabulary(tokens))
    sizes = []
    text = ""
    for _ in range(3000):
        text += detokenizer.feed([0])
        sizes.append(len(msgspec.json.encode(detokenizer.state())))
    assert max(sizes) < 4 * MAX_WAITING
    assert len(text) >= 3000 - 2 * MAX_WAITING, "what does not fit is given out"


@pytest.mark.parametrize(
    "state",
    [
        DetokenizerState(waiting=b"x" * 10_000),
        DetokenizerState(held="x" * 10_000),
        DetokenizerState(owed=-1),
        DetokenizerState(strip=10**6),
        DetokenizerState(window=[1], read=2),
        DetokenizerState(window=[-1], read=0),
    ],
)
def test_a_state_out_of_bounds_is_refused(state: DetokenizerState) -> None:
    with pytest.raises(InvalidStateError):
        IncrementalDetokenizer.from_state(byte_vocabulary(["a"]), state)
