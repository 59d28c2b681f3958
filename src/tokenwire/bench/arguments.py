"""The arguments of `tokenwire bench`, and the options they make."""

from __future__ import annotations

import argparse
import math
import secrets
from pathlib import Path
from typing import Any

from tokenwire.bench import plot
from tokenwire.bench.options import BenchOptions, RequestShape


def add_arguments(parser: argparse.ArgumentParser) -> None:
    where = parser.add_argument_group("server")
    where.add_argument(
        "--base-url", default="http://127.0.0.1:8000", help="address of the server (default: %(default)s)"
    )
    where.add_argument("--model", help="model name to send; left out, the server's own")
    where.add_argument("--api-key", help="sent as a bearer token")
    where.add_argument(
        "--header", action="append", default=[], metavar="NAME: VALUE", help="further header; repeatable"
    )
    where.add_argument(
        "--timeout", type=_positive_float, default=600.0, metavar="S", help="seconds for one request (default: 600)"
    )

    load = parser.add_argument_group("load")
    load.add_argument(
        "--concurrency",
        type=_counts,
        nargs="+",
        action=_Flatten,
        default=[1, 8, 16],
        metavar="N",
        help="requests at once, one level each, as 1 8 16 or 1,8,16 (default: 1 8 16)",
    )
    load.add_argument(
        "--num-requests",
        type=_positive_int,
        metavar="N",
        help="requests per level (default: four for each at once, at least 8)",
    )
    load.add_argument(
        "--warmup",
        type=_count,
        metavar="N",
        help="requests before each level that are not counted (default: as many as at once)",
    )
    load.add_argument(
        "--request-rate",
        type=_positive_float,
        metavar="R",
        help="mean arrivals per second at random times (Poisson), instead of as fast as answers come; "
        "--concurrency then is the most at once",
    )

    shape = parser.add_argument_group("requests")
    shape.add_argument(
        "--prompt-len", type=_positive_int, default=64, metavar="N", help="prompt ids (default: %(default)s)"
    )
    shape.add_argument(
        "--output-len",
        type=_positive_int,
        default=64,
        metavar="N",
        help="output ids; end tokens are ignored (default: %(default)s)",
    )
    shape.add_argument("--respect-eos", action="store_true", help="let answers end where the model ends them")
    shape.add_argument(
        "--shared-prefix-len", type=_count, default=0, metavar="N", help="let all prompts begin with the same N ids"
    )
    shape.add_argument(
        "--vocab",
        type=_range,
        default=(100, 30_000),
        metavar="LOW:HIGH",
        help="draw ids from LOW up to, not including, HIGH (default: 100:30000)",
    )
    shape.add_argument(
        "--seed",
        type=_count,
        help="same seed, same prompts (default: a random one, shown; a repeated seed meets a warm prefix cache)",
    )
    shape.add_argument(
        "--stream",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="streamed or whole replies (default: streamed)",
    )
    shape.add_argument("--logprobs", type=_count, metavar="K", help="ask for K candidates per token")
    shape.add_argument("--temperature", type=float, default=0.0, metavar="T", help="default: 0, greedy")

    output = parser.add_argument_group("output")
    output.add_argument("--json", type=Path, metavar="FILE", help="write all numbers")
    output.add_argument("--plot", type=Path, metavar="FILE", help="write a picture (needs matplotlib)")


def options_from(args: argparse.Namespace) -> BenchOptions:
    """Raises `ValueError` with a sentence for values that do not go together."""
    headers = dict(_header(text) for text in args.header)
    if args.api_key:
        headers["Authorization"] = f"Bearer {args.api_key}"
    if args.shared_prefix_len > args.prompt_len:
        raise ValueError(f"--shared-prefix-len {args.shared_prefix_len} is more than --prompt-len {args.prompt_len}")
    if args.plot is not None and not plot.is_available():
        raise ValueError("--plot needs matplotlib. Install it with: pip install 'tokenwire[bench]'")
    low, high = args.vocab
    shape = RequestShape(
        prompt_len=args.prompt_len,
        output_len=args.output_len,
        shared_prefix_len=args.shared_prefix_len,
        vocab_low=low,
        vocab_high=high,
        seed=secrets.randbelow(2**31) if args.seed is None else args.seed,
        stream=args.stream,
        logprobs=args.logprobs,
        temperature=args.temperature,
        ignore_eos=not args.respect_eos,
        model=args.model,
    )
    return BenchOptions(
        base_url=args.base_url,
        shape=shape,
        concurrency=args.concurrency,
        num_requests=args.num_requests,
        num_warmup=args.warmup,
        request_rate=args.request_rate,
        timeout_s=args.timeout,
        headers=headers,
    )


# --- argument types -----------------------------------------------------------------------------------------------


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must be 0 or more, got {value}")
    return value


def _positive_int(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {value}")
    return value


def _positive_float(text: str) -> float:
    value = float(text)
    if not (value > 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text}")
    return value


class _Flatten(argparse.Action):
    """`1 8 16` and `1,8,16` give the same list."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        setattr(namespace, self.dest, [count for part in values for count in part])


def _counts(text: str) -> list[int]:
    return [_positive_int(part) for part in text.replace(",", " ").split()]


def _range(text: str) -> tuple[int, int]:
    low, colon, high = text.partition(":")
    if not colon or not 0 <= int(low) < int(high):
        raise argparse.ArgumentTypeError(f"must be LOW:HIGH with LOW below HIGH, got {text}")
    return int(low), int(high)


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip() or "\n" in text or "\r" in text:
        raise ValueError(f"--header {text!r} is not of the form 'Name: value'")
    return name.strip(), value.strip()
