"""The remote engine: token servers over HTTP behind the engine interface."""

from tokenwire.engine.remote.engine import RemoteEngine
from tokenwire.engine.remote.options import RemoteOptions

__all__ = ["RemoteEngine", "RemoteOptions"]
