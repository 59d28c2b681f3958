"""Reference records of parsed outputs: reading them, running them, and saying which answer is right.

Run as a script it prints a table: `python -m tests.parser.conformance [FILE] [-v] [NAME...]`.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tokenwire.derender.parser import (
    Format,
    Message,
    MessageParser,
    ParserOptions,
    assemble,
    find_format,
    reasoning_state_of_prompt,
)

Record = dict[str, Any]
Answer = dict[str, Any]
WITHOUT_ARGS = frozenset({"mistral_tekken"})
"""Tokenizers of Mistral models that have no `[ARGS]` token (tokenizer versions before 11)."""
REPOSITORY = Path(__file__).resolve().parents[2]
DATA = REPOSITORY / "tests" / "data" / "parsers"
VIEWS = ("non_stream", "stream_1", "stream_3", "stream_all")


def full_file() -> Path | None:
    """The whole set of records, where it is at hand."""
    folders = [os.environ.get("TOKENWIRE_CONFORMANCE"), str(REPOSITORY.parent / "shared" / "conformance")]
    for folder in folders:
        if folder and (path := Path(folder) / "parsers.jsonl").is_file():
            return path
    return None


def read(path: Path) -> Iterator[Record]:
    """Records of the whole set, or of the small copy in `tests/data`, in the whole set's shape."""
    tools = json.loads((DATA / "tools.json").read_text(encoding="utf-8"))
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            if "answers" in record:
                record.update(zip(VIEWS, (record["answers"][index] for index in record["views"]), strict=True))
                record["text"] = "".join(record["token_texts"])
                record["request"]["tools"] = tools.get(record["request"].get("tools"), [])
            yield record


def format_of(record: Record) -> Format:
    format = find_format(record["tool_parser"], record["reasoning_parser"])
    return format.for_tokenizer(lambda token: token != "[ARGS]" or record.get("tokenizer") not in WITHOUT_ARGS)


def options_of(record: Record) -> ParserOptions:
    request = record["request"]
    format = format_of(record)
    kwargs = request.get("chat_template_kwargs") or {}
    return ParserOptions(
        tools=request.get("tools"),
        tool_choice=request.get("tool_choice"),
        parallel_tool_calls=request.get("parallel_tool_calls", True),
        include_reasoning=request.get("include_reasoning", True),
        chat_template_kwargs=kwargs,
        prompt_reasoning=reasoning_state_of_prompt(format, record["prompt_text"], kwargs),
        eos_texts=[record["eos_text"]] if record["eos_text"] else [],
    )


def parse(record: Record, pieces: Iterable[str]) -> Message:
    parser = MessageParser(format_of(record), options_of(record))
    deltas = [parser.feed(piece) for piece in pieces]
    deltas.append(parser.finish(record["finish_reason"]))
    return assemble(deltas)


def as_answer(message: Message) -> Answer:
    return {
        "content": message.content,
        "reasoning": message.reasoning,
        "tool_calls": [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls],
    }


def cuts(record: Record, seed: int = 0) -> Iterator[tuple[str, list[str]]]:
    """Ways to feed a record's output: by token, in threes, at once, by character, and cut at random."""
    texts = record.get("token_texts") or re.findall(r"\s*\w+|\s*\W", record["text"])
    text = "".join(texts)
    yield "tokens", texts
    yield "threes", ["".join(texts[i : i + 3]) for i in range(0, len(texts), 3)]
    yield "once", [text]
    yield "characters", list(text)
    dice = random.Random(f"{record['id']}-{seed}")
    places = sorted({dice.randrange(len(text) + 1) for _ in range(6)}) if text else []
    yield "random", [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


# ---- which answer is right ------------------------------------------------------------------------------------


def reference_answers(record: Record) -> list[Answer]:
    """The reference's answers, most trusted first: the newer version before the older, whole before streamed."""
    newer = record.get("v0_33", "same")
    newer = newer if isinstance(newer, dict) else {}
    answers = [newer.get(view) or record[view] for view in VIEWS]
    return [answer for answer in answers if "error" not in answer]


def agreed(record: Record) -> Answer | None:
    """The one answer that all views give, if they do (white space beside calls and argument spelling included)."""
    answers = reference_answers(record)
    if len(answers) < len(VIEWS):
        return None
    first = normal(answers[0])
    return answers[0] if all(normal(answer) == first for answer in answers) else None


def normal(answer: Answer) -> Answer:
    return {
        "content": answer["content"] or None,
        "reasoning": answer["reasoning"] or None,
        "tool_calls": [(call["name"] or "", call["arguments"] or "{}") for call in answer["tool_calls"]],
    }


def same_value(ours: Answer, theirs: Answer) -> bool:
    """Equal but for the spelling of arguments and white space at the ends of content."""
    a, b = normal(ours), normal(theirs)
    if (a["content"] or "").strip() != (b["content"] or "").strip() or a["reasoning"] != b["reasoning"]:
        return False
    if len(a["tool_calls"]) != len(b["tool_calls"]):
        return False
    return all(
        name_a == name_b and json_equal(text_a, text_b)
        for (name_a, text_a), (name_b, text_b) in zip(a["tool_calls"], b["tool_calls"], strict=True)
    )


def json_equal(a: str, b: str) -> bool:
    if a == b:
        return True
    try:
        return bool(json.loads(a) == json.loads(b))
    except ValueError:
        return False


def verdict(record: Record, ours: Answer) -> str:
    """`exact`: the agreed answer. `whole`, `streamed`: one of the reference's where they differ. Else `wrong`."""
    right = agreed(record)
    if right is not None:
        return "exact" if normal(ours) == normal(right) else "wrong"
    answers = reference_answers(record)
    names = ("whole", "streamed", "streamed", "streamed")
    for name, answer in zip(names, answers, strict=False):
        if same_value(ours, answer):
            return name
    return "other"


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")


def main(arguments: list[str]) -> None:
    verbose = "-v" in arguments
    names = [name for name in arguments if not name.startswith("-")]
    path = full_file()
    if path is None:
        raise SystemExit("no parsers.jsonl; set TOKENWIRE_CONFORMANCE")
    table: dict[str, dict[str, int]] = {}
    for record in read(path):
        group = f"{record['tool_parser'] or '-'}+{record['reasoning_parser'] or '-'}/{record['tokenizer']}"
        if names and not any(name in record["id"] or name in group for name in names):
            continue
        answers = {name: as_answer(parse(record, pieces)) for name, pieces in cuts(record)}
        ours = answers["once"]
        word = verdict(record, ours)
        uneven = [name for name, answer in answers.items() if answer != ours]
        row = table.setdefault(group, {})
        row[word] = row.get(word, 0) + 1
        if uneven:
            row["uneven"] = row.get("uneven", 0) + 1
        if uneven or (verbose and word in ("wrong", "other")):
            report(record, ours, word, uneven, answers)
    for group, row in table.items():
        say(f"{group:45}", " ".join(f"{word}={row[word]}" for word in sorted(row)))
    total: dict[str, int] = {}
    for row in table.values():
        for word, count in row.items():
            total[word] = total.get(word, 0) + count
    say("total", total)


def report(record: Record, ours: Answer, word: str, uneven: list[str], answers: dict[str, Answer]) -> None:
    say(f"## {record['id']} {word} {record['finish_reason']} choice={record['request'].get('tool_choice')!r}")
    say("   in  ", repr(record["text"])[:400])
    say("   ours", show(ours))
    for name in uneven:
        say("  UNEVEN", name, show(answers[name]))
    for view, answer in zip(VIEWS, reference_answers(record), strict=False):
        say(f"   {view:10}", show(answer))


def show(answer: Answer) -> str:
    return f"C={answer['content']!r} R={answer['reasoning']!r} T={normal(answer)['tool_calls']!r}"[:400]


if __name__ == "__main__":
    main(sys.argv[1:])
