"""Stop strings over a sequence of tokens.

1. No part of a stop string is given out before it is known not to be one; a token waits whole, with its id.
2. What waited comes at the end if it was no stop string.
3. The string that is complete first wins; of two complete at once, the first of the list.
4. Only a token at or after min_tokens can complete one.
5. With include_stop_str_in_output the text ends with the stop string.
6. Tokens of the same step after the completing one do not belong to the sequence.
7. A hidden last token (EOS, a stop id) has an id and no text.
8. Every grouping, and a state carried as JSON in between, gives the same ids, text and stop string.
9. The state is bounded; one that the request cannot have produced is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.derender.sources import byte_vocabulary
from tokenwire.derender.detokenizer import DetokenizerOptions, IncrementalDetokenizer
from tokenwire.derender.sequence import MAX_HELD_TOKENS, SequenceState, SequenceText
from tokenwire.derender.stop import StopRules
from tokenwire.derender.vocabulary import Vocabulary
from tokenwire.errors import InvalidStateError


@dataclass
class Run:
    """What a reader of the sequence sees."""

    deltas: list[str] = field(default_factory=list)
    ids: list[list[int]] = field(default_factory=list)
    stop: str | None = None
    count: int | None = None

    @property
    def text(self) -> str:
        return "".join(self.deltas)

    @property
    def joined_ids(self) -> list[int]:
        return [token_id for part in self.ids for token_id in part]


def run(
    vocabulary: Vocabulary,
    steps: Iterable[Sequence[int]],
    rules: StopRules,
    *,
    hide_last: bool = False,
    carried: bool = False,
) -> Run:
    sequence = SequenceText(vocabulary, (), DetokenizerOptions(), rules)
    steps, queue, seen = list(steps), [], Run()
    for number, ids in enumerate(steps, 1):
        last = number == len(steps)
        released = sequence.feed(ids, finished=last, hide_last=hide_last and last)
        queue += ids[: released.num_kept]
        seen.deltas.append(released.text)
        seen.ids.append(queue[: released.num_released])
        queue = queue[released.num_released :]
        assert len(queue) == sequence.num_held
        if released.stop_string is not None:
            seen.stop, seen.count = released.stop_string, released.text_token_count
            break
        if carried and not last:
            state = msgspec.json.decode(msgspec.json.encode(sequence.state()), type=SequenceState)
            sequence = SequenceText.from_state(vocabulary, state, DetokenizerOptions(), rules)
    assert queue == []
    return seen


HELLO = byte_vocabulary(["He", "llo E", "N", "D!", "x"])


def test_a_stop_string_over_several_tokens_never_shows() -> None:
    seen = run(HELLO, [[0], [1], [2], [3]], StopRules(("END",)))
    assert (seen.text, seen.stop, seen.joined_ids) == ("Hello ", "END", [0, 1, 2, 3])
    assert seen.deltas == ["He", "", "", "llo "], "a token waits whole while a part of its text may begin the stop"
    assert seen.ids == [[0], [], [], [1, 2, 3]]
    assert seen.count == 2


def test_with_include_the_text_ends_with_the_stop_string() -> None:
    seen = run(HELLO, [[0], [1], [2], [3]], StopRules(("END",), include_in_output=True))
    assert (seen.text, seen.stop, seen.joined_ids) == ("Hello END", "END", [0, 1, 2, 3])


def test_what_waited_is_given_out_once_it_is_no_stop_string() -> None:
    seen = run(HELLO, [[0], [1], [4]], StopRules(("END",)))
    assert (seen.deltas, seen.ids) == (["He", "", "llo Ex"], [[0], [], [1, 4]])


def test_what_waits_at_the_end_is_given_out() -> None:
    seen = run(HELLO, [[1], [2]], StopRules(("END",)))
    assert (seen.text, seen.joined_ids, seen.stop) == ("llo EN", [1, 2], None)


@pytest.mark.parametrize(
    ("stop", "tokens", "text", "reason", "num_ids"),
    [
        (("b", "a"), ["xx", " a", " b"], "xx ", "a", 2),
        (("ab", "b"), ["ab"], "", "ab", 1),
        (("b", "ab"), ["ab"], "a", "b", 1),
        (("abc", "b"), ["a", "b", "c"], "a", "b", 2),
        (("aab",), ["a", "a", "a", "b"], "a", "aab", 4),
        (("é!",), ["caf", b"\xc3", b"\xa9", "!"], "caf", "é!", 4),
    ],
)
def test_the_stop_string_complete_first_wins(
    stop: tuple[str, ...], tokens: list[str | bytes], text: str, reason: str, num_ids: int
) -> None:
    vocabulary = byte_vocabulary(tokens)
    ids = list(range(len(tokens)))
    for steps in ([ids], [[token_id] for token_id in ids]):
        seen = run(vocabulary, steps, StopRules(stop))
        assert (seen.text, seen.stop, len(seen.joined_ids)) == (text, reason, num_ids)


@pytest.mark.parametrize("size", [1, 2, 6])
def test_min_tokens_guards_stop_strings(size: int) -> None:
    vocabulary = byte_vocabulary(["a", ".", "b", "c"])
    ids = [0, 1, 2, 1, 3, 1]
    steps = [ids[i : i + size] for i in range(0, 6, size)]
    seen = run(vocabulary, steps, StopRules((".",), min_tokens=4))
    assert (seen.text, seen.stop, len(seen.joined_ids)) == ("a.b.c", ".", 6)


def test_a_stop_string_that_begins_before_min_tokens_counts_when_it_ends_after() -> None:
    vocabulary = byte_vocabulary(["a"])
    seen = run(vocabulary, [[0]] * 5, StopRules(("aa",), min_tokens=2))
    assert (seen.text, len(seen.joined_ids)) == ("a", 3)


def test_tokens_after_the_completing_one_are_cut() -> None:
    vocabulary = byte_vocabulary(["a", "STOP", "b"])
    seen = run(vocabulary, [[0, 1, 2, 2]], StopRules(("STOP",)))
    assert (seen.text, seen.joined_ids, seen.count) == ("a", [0, 1], 1)


def test_a_hidden_last_token_keeps_its_id() -> None:
    vocabulary = byte_vocabulary(["A", "B", "X"])
    assert run(vocabulary, [[0, 1, 2]], StopRules(), hide_last=True) == Run(["AB"], [[0, 1, 2]])
    assert run(vocabulary, [[0, 1, 2]], StopRules(("X",)), hide_last=True) == Run(["AB"], [[0, 1, 2]])


ALPHABET = ["a", "b", "ab", "ba", "aab", b"\xc3", b"\xa9", "é", ""]


@given(st.data())
def test_every_grouping_gives_the_same(data: st.DataObject) -> None:
    vocabulary = byte_vocabulary(ALPHABET)
    ids = data.draw(st.lists(st.integers(0, len(ALPHABET) - 1), min_size=1, max_size=14))
    strings = data.draw(st.lists(st.text("abé", min_size=1, max_size=4), min_size=1, max_size=3))
    rules = StopRules(tuple(strings), data.draw(st.integers(0, 5)), data.draw(st.booleans()))
    hide_last = data.draw(st.booleans())
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(ids) - 1)), max_size=5)))
    one_by_one = run(vocabulary, [[token_id] for token_id in ids], rules, hide_last=hide_last)
    bounds = [0, *(cut for cut in cuts if cut < len(ids)), len(ids)]
    steps = [ids[start:stop] for start, stop in zip(bounds, bounds[1:], strict=False)]
    cut = run(vocabulary, steps, rules, hide_last=hide_last, carried=True)
    facts = (one_by_one.text, one_by_one.joined_ids, one_by_one.stop, one_by_one.count)
    assert (cut.text, cut.joined_ids, cut.stop, cut.count) == facts
    if not rules.include_in_output and one_by_one.stop is not None:
        whole = "".join(one_by_one.deltas)
        assert one_by_one.stop not in whole or rules.min_tokens > 0


@given(st.lists(st.integers(0, len(ALPHABET) - 1), min_size=1, max_size=14), st.text("abé", min_size=1, max_size=4))
def test_what_may_begin_a_stop_string_waits_and_nothing_else(ids: list[int], stop: str) -> None:
    vocabulary = byte_vocabulary(ALPHABET)
    seen = run(vocabulary, [[token_id] for token_id in ids], StopRules((stop,)))
    pieces = IncrementalDetokenizer(vocabulary).feed_each(ids)
    for number in range(1, len(seen.deltas)):
        decoded, sent = "".join(pieces[:number]), "".join(seen.deltas[:number])
        waiting = max(length for length in range(len(stop)) if decoded.endswith(stop[:length]))
        boundaries = [len("".join(pieces[:count])) for count in range(number + 1)]
        assert len(sent) == max(end for end in boundaries if end <= len(decoded) - waiting)


def test_skipped_special_tokens_behind_a_held_one_do_not_grow_the_state() -> None:
    vocabulary = byte_vocabulary(["E", b"<s>"], special=[1])
    sequence = SequenceText(vocabulary, (), DetokenizerOptions(), StopRules(("END",)))
    assert sequence.feed([0]).num_released == 0
    released = sum(sequence.feed([1]).num_released for _ in range(1000))
    assert sequence.num_held <= MAX_HELD_TOKENS + 1
    assert released + sequence.num_held == 1001
    assert sequence.feed([], finished=True).text == "E"


@pytest.mark.parametrize(
    "state",
    [
        SequenceState(tail="x"),
        SequenceState(tail="E", unsent="", held=[], num_tokens=1),
        SequenceState(unsent="abc", held=[3], num_tokens=1),
        SequenceState(tail="E", unsent="E", held=[5], num_tokens=1),
        SequenceState(tail="E", unsent="E", held=[1], num_tokens=0),
        SequenceState(tail="E", unsent="y" * 10**6 + "E", held=[1], num_tokens=1),
        SequenceState(tail="E", unsent="E", held=[0] * 10**4, num_tokens=10**5),
    ],
)
def test_a_state_that_the_request_cannot_have_produced_is_refused(state: SequenceState) -> None:
    with pytest.raises(InvalidStateError):
        SequenceText.from_state(HELLO, state, DetokenizerOptions(), StopRules(("END",)))
