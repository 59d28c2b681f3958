"""Writes the generated pages: docs/settings.md from the table of settings.

`--check` writes nothing and fails when a page is not current.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from tokenwire.settings.foreign import FOREIGN_FLAGS
from tokenwire.settings.option import Option
from tokenwire.settings.sources import all_options

DOCS = Path(__file__).parent.parent / "docs"

INTRO = """\
# Settings

Made by `make docs`. Every setting is a flag of `tokenwire serve` and `tokenwire render`, an environment variable, and a
key of the YAML file that `--config` names. A flag wins over the variable, the variable over the file, the file over
the default. The variable is `TOKENWIRE_` and the name in capitals; the key is the name with `_` or `-`.
Whole numbers may end in k, m, g (thousands) or K, M, G (powers of 1024).
"""


def settings_page() -> str:
    parts = [INTRO]
    for _, title, options in all_options():
        parts += [f"\n## {title}\n", "| flag | value | default | meaning |", "|---|---|---|---|"]
        parts += [_row(option) for option in options]
    parts += ["\n## Flags of vLLM that are accepted without effect\n", *_foreign(refused=False)]
    parts += ["\n## Flags of vLLM that are refused\n", *_foreign(refused=True)]
    return "\n".join(parts) + "\n"


def _row(option: Option) -> str:
    default = "" if option.default in (None, "", [], {}) else f"`{json.dumps(option.default)}`"
    value = ", ".join(option.choices) or option.kind.__name__
    flags = ", ".join(f"`{flag}`" for flag in (option.flag, *option.aliases))
    return f"| {flags} | {value} | {default} | {option.help.replace('|', '&#124;')} |"


def _foreign(*, refused: bool) -> Iterator[str]:
    for name, flag in FOREIGN_FLAGS.items():
        if flag.refused is refused:
            yield f"- `{name}`: {flag.sentence}"


def pages() -> dict[str, str]:
    return {"settings.md": settings_page()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when a page is not current")
    check = parser.parse_args().check
    stale = []
    for name, content in pages().items():
        path = DOCS / name
        if check:
            if not path.exists() or path.read_text() != content:
                stale.append(f"docs/{name}")
        else:
            path.write_text(content)
    if stale:
        print(f"Not current: {', '.join(stale)}. Run `make docs`.")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
