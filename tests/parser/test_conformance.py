"""The reference's records: what a real server's parsers gave for the same output.

1. Where all of the reference's answers agree, whole and streamed, ours is that answer.
2. Where they differ, ours is one of them, or it is told in `differences.json` what it is instead, and why.
3. That table holds nothing else: every entry is a record that is answered otherwise, exactly as it says.
4. Every way of cutting an output gives the same answer.

The records in `tests/data` are a small copy; the whole set is read where it is at hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest

from tests.parser.conformance import DATA, Record, as_answer, cuts, full_file, parse, read, verdict


@cache
def differences() -> dict[str, dict[str, Any]]:
    table: dict[str, dict[str, Any]] = json.loads((DATA / "differences.json").read_text(encoding="utf-8"))
    return table


def check(records: Iterable[Record]) -> set[str]:
    """Ids answered otherwise than the reference; fails at the first record that is not as it should be."""
    otherwise = set()
    for record in records:
        answers = {name: as_answer(parse(record, pieces)) for name, pieces in cuts(record)}
        ours = answers["once"]
        for name, answer in answers.items():
            assert answer == ours, f"{record['id']} fed by {name}"
        word = verdict(record, ours)
        if word in ("wrong", "other"):
            otherwise.add(record["id"])
            told = differences().get(record["id"])
            assert told is not None, f"{record['id']} is {word}: {ours}"
            assert ours == told["answer"], record["id"]
        else:
            assert record["id"] not in differences(), f"{record['id']} is {word}, and the table says it differs"
    return otherwise


def small_copy() -> dict[str, list[Record]]:
    groups: dict[str, list[Record]] = {}
    for record in read(DATA / "records.jsonl"):
        groups.setdefault(f"{record['tool_parser']}+{record['reasoning_parser']}", []).append(record)
    return groups


@pytest.mark.parametrize("group", list(small_copy()))
def test_outputs_mean_what_the_reference_says(group: str) -> None:
    check(small_copy()[group])


def test_every_difference_is_explained() -> None:
    for id_, entry in differences().items():
        assert entry["reason"].endswith("."), id_
        assert set(entry["answer"]) == {"content", "reasoning", "tool_calls"}


if (whole_set := full_file()) is not None:

    @pytest.mark.timeout(120)
    def test_the_whole_set_differs_exactly_where_the_table_says() -> None:
        assert check(read(whole_set)) == set(differences())
