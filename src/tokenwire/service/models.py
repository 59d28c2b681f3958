"""Names under which the model and its adapters are served."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tokenwire.errors import ModelNotFoundError


@dataclass(slots=True, frozen=True)
class Adapter:
    name: str
    path: str
    parent: str
    modality: str | None = None
    """Set when the adapter applies by default to prompts with this medium."""


class ModelRegistry:
    """One base model under one or more names, and adapters by name."""

    def __init__(self, served_names: Iterable[str], *, root: str, skip_validation: bool = False) -> None:
        """`root` is the path or hub name of the weights. The first served name is the one in replies."""
        self.served_names = list(served_names)
        self.root = root
        self._skip_validation = skip_validation
        self._adapters: dict[str, Adapter] = {}

    @property
    def name(self) -> str:
        return self.served_names[0]

    def adapters(self) -> Iterator[Adapter]:
        return iter(self._adapters.values())

    def add(self, adapter: Adapter) -> None:
        self._adapters[adapter.name] = adapter

    def remove(self, name: str) -> Adapter:
        """Raises `ModelNotFoundError` for an unknown adapter."""
        if name not in self._adapters:
            raise ModelNotFoundError(name, list(self._adapters))
        return self._adapters.pop(name)

    def check(self, model: str | None) -> None:
        """Raises `ModelNotFoundError` unless `model` is empty, served, or an adapter."""
        if not model or self._skip_validation or model in self._adapters or model in self.served_names:
            return
        raise ModelNotFoundError(model, [*self.served_names, *self._adapters])

    def adapter_for(self, model: str | None, modalities: Iterable[str] = ()) -> Adapter | None:
        """The adapter named by `model`, else the one default adapter that matches exactly one of `modalities`."""
        if model in self._adapters:
            return self._adapters[model]
        wanted = set(modalities)
        matches = [a for a in self._adapters.values() if a.modality in wanted]
        return matches[0] if len(matches) == 1 else None
