"""Reply fields that several endpoints fill by the same rule: left out where there is nothing, one value for many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from msgspec import UNSET, UnsetType

T = TypeVar("T")


def given(value: T | None) -> T | UnsetType:
    """What is not there is left out."""
    return UNSET if value is None else value


def agreed(values: Sequence[T | None]) -> T | None:
    """The one value that all replies have; None where they differ."""
    return values[0] if all(other == values[0] for other in values) else None
