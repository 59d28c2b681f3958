"""Token strings beside logprobs.

1. A piece of a character is "" and the token that completes it is the whole character.
2. The strings of the sampled tokens, joined, are the text (special tokens shown).
3. A candidate that is whole by itself shows as itself; a piece is decoded in the context before it.
4. Strings go on over chunks: from the carried context, or from a carried state.
5. `--return-tokens-as-token-ids` gives `token_id:N` and no bytes; values are finite.
6. Text completions get parallel lists with offsets into the joined strings.
"""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from tests.derender.sources import byte_vocabulary, metaspace, wordpiece
from tokenwire.derender.detokenizer import DetokenizerOptions, IncrementalDetokenizer
from tokenwire.derender.logprob_text import LogprobText, prompt_token_texts
from tokenwire.derender.vocabulary import Vocabulary
from tokenwire.service.text_logprobs import completion_logprobs, text_entries
from tokenwire.wire.generate import TextLogprob, TokenIdLogprob, TokenIdLogprobEntry

EMOJI = "😀".encode()
PIECES = byte_vocabulary([EMOJI[:2], EMOJI[2:], "!", b"<s>"], special=[3])


def entry(token_id: int, *candidates: int, logprob: float = -0.5) -> TokenIdLogprobEntry:
    return TokenIdLogprobEntry(token_id, logprob, 1, [TokenIdLogprob(c, -1.0, 1) for c in candidates])


def test_a_character_s_pieces_are_empty_until_the_last() -> None:
    content = text_entries([entry(0), entry(1), entry(2)], LogprobText(PIECES)).content
    assert [(e.token, e.bytes) for e in content] == [("", []), ("😀", list(EMOJI)), ("!", [33])]


def test_candidates_are_decoded_in_context() -> None:
    texts = LogprobText(PIECES)
    assert texts.position(0, [0, 2, 3]) == ("", ["", "!", "<s>"])
    assert texts.position(1, [1, 2]) == ("😀", ["😀", "!"]), "a whole token is itself, whatever stands before"
    assert texts.position(2, [1, 0]) == ("!", ["", ""]), "a piece that completes nothing is empty"


@given(st.lists(st.sampled_from([0, 1, 2, 3, 4, 5]), max_size=12), st.integers(0, 12))
def test_sampled_strings_joined_are_the_text(ids: list[int], cut: int) -> None:
    vocabulary = byte_vocabulary([EMOJI[:1], EMOJI[1:3], EMOJI[3:], "a", b"\xff", "\ufffd"])
    text = IncrementalDetokenizer(vocabulary, (), DetokenizerOptions(skip_special_tokens=False)).feed(ids)
    first = LogprobText(vocabulary)
    strings = [first.position(token_id, ())[0] for token_id in ids[:cut]]
    second = LogprobText(vocabulary, state=first.state)
    strings += [second.position(token_id, ())[0] for token_id in ids[cut:]]
    assert "".join(strings) == text


def test_a_character_split_over_chunks_is_repaired_from_the_carried_context() -> None:
    assert LogprobText(PIECES, context=[2, 0]).position(1, ())[0] == "😀"


def test_a_sentencepiece_token_keeps_its_space_also_at_the_beginning() -> None:
    source = metaspace()
    assert LogprobText(Vocabulary(source)).position(source.ids("▁Hello")[0], ())[0] == " Hello"


def test_candidates_of_a_wordpiece_tokenizer_stand_alone() -> None:
    source = wordpiece()
    sampled, other = source.ids("hello", "world")
    assert LogprobText(Vocabulary(source)).position(sampled, [other]) == ("hello", ["world"])


def test_token_ids_as_strings_have_no_bytes() -> None:
    content = text_entries([entry(1, 2)], LogprobText(PIECES), as_token_ids=True).content
    assert (content[0].token, content[0].bytes) == ("token_id:1", None)
    assert content[0].top_logprobs == [TextLogprob("token_id:2", -1.0, None)]


def test_values_are_clamped_and_candidates_cut() -> None:
    entries = [entry(2, 2, 1, 0, logprob=-math.inf)]
    assert [len(text_entries(entries, LogprobText(PIECES), top=t).content[0].top_logprobs) for t in (0, 2, -1)] == [
        0,
        2,
        3,
    ]
    assert text_entries(entries, LogprobText(PIECES)).content[0].logprob == -9999.0
    assert text_entries([entry(2, logprob=math.nan)], LogprobText(PIECES)).content[0].logprob == -9999.0


def test_completions_get_lists_with_absolute_offsets() -> None:
    entries = text_entries([entry(0, 0), entry(1), entry(2, 2, 2)], LogprobText(PIECES))
    lists = completion_logprobs(entries, text_offset=10)
    assert lists.tokens == ["", "😀", "!"]
    assert lists.text_offset == [10, 10, 11]
    assert lists.top_logprobs == [{"": -1.0}, None, {"!": -1.0}]


def test_prompt_tokens_are_repaired_too() -> None:
    assert prompt_token_texts(PIECES, 2, [[0, 2], [1, 0]]) == [["", "!"], ["😀", ""]]
