"""Which versions vLLM has under which names, and which requests use them. Touched by one event loop only; no I/O.

A version's name holds a digest of its manifest, so of its weights: the prefix cache, which goes by names, can never
mix two, and a vLLM that outlives us and already has the name has these weights.

Whole models replace each other in one place, so only the newest is there. The one before it counts as loaded for a
while all the same: between "vLLM has the new weights" and "the record says so" requests still come with its number;
they are answered by the new weights, and each token is recorded as the new version's.

An adapter means something on the base only: while another model is in its place, no adapter counts as loaded.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from openclaw_rl.policy_files import MANIFEST
from openclaw_rl.serving.engines.protocol import EngineOverloaded, UnknownVersion
from openclaw_rl.types import BASE_VERSION

UNTOUCHED = "default"
"""What vLLM calls the weights that it started with."""
GRACE_S = 10.0
"""How long requests for a whole model that was replaced are answered by its successor."""


def weights_name(version: int, directory: Path) -> str:
    """What vLLM is told to call an adapter, or a whole model's weights; `directory` holds them and their manifest."""
    digest = hashlib.sha256((directory / MANIFEST).read_bytes()).hexdigest()
    return f"policy-v{version}-{digest[:12]}"


@dataclass(kw_only=True, slots=True)
class _Adapter:
    name: str
    users: int = 0
    leaving: bool = False
    broken: int = 0
    """How often it gave NaN."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """What one request is asked under: vLLM's model name, and its version, None where the model itself answers.

    The model itself may be swapped while it answers, so its version is looked up for every token.
    """

    model: str
    version: int | None
    broken: int = 0
    """How often what answers had given NaN when this began."""


class LoadedVersions:
    """The versions that vLLM has, as far as we loaded them."""

    def __init__(self, limit: int, *, base: str = "base", clock: Callable[[], float] = time.monotonic) -> None:
        """`limit`: how many adapters are kept; of those that nobody uses the one used longest ago makes room.

        `base`: the model's own name.
        """
        self._limit = limit
        self.base = base
        self._clock = clock
        self._adapters: dict[int, _Adapter] = {}  # the one used longest ago first
        self._replaced: tuple[int, float] | None = None
        self._model_broken = 0  # how often the model itself gave NaN, by whatever weights
        self.model_version: int | None = BASE_VERSION
        """The version of the model itself; None where its weights are nobody's we know."""
        self.model_label = UNTOUCHED
        self.salt: str | None = None
        """What prefixes are kept apart by; None as long as the model has the weights that vLLM started with.

        Each swap has one of its own: streams that go on over a swap read on by the new weights under the salt that
        they began with, so what is cached under it fits no weights, should they come back.
        """

    # --- who uses which ----------------------------------------------------------------------------------------

    def loaded(self) -> tuple[int, ...]:
        """The versions that new requests may ask for."""
        models = {number for number in (self.model_version, self._gracious()) if number is not None}
        adapters = {number for number, adapter in self._adapters.items() if not adapter.leaving and self._on_base}
        return tuple(sorted(adapters | models))

    @property
    def _on_base(self) -> bool:
        return self.model_version == BASE_VERSION

    def acquire(self, version: int) -> Served:
        """Keep a version until `release`.

        Raises:
            UnknownVersion: it is not loaded, or about to be unloaded.
        """
        if version in {self.model_version, self._gracious()}:
            return Served(model=self.base, version=None, broken=self._model_broken)
        adapter = self._adapters.get(version)
        if adapter is None or adapter.leaving or not self._on_base:
            raise UnknownVersion(f"policy version {version} is not loaded", param="model")
        adapter.users += 1
        self._used(version)
        return Served(model=adapter.name, version=version, broken=adapter.broken)

    def release(self, served: Served) -> str | None:
        """A request is done; the name to unload, if it was the last of a version that is leaving."""
        adapter = self._adapter_of(served)
        if served.version is None or adapter is None:
            return None
        adapter.users -= 1
        if adapter.leaving and adapter.users == 0:
            del self._adapters[served.version]
            return adapter.name
        return None

    # --- adapters ----------------------------------------------------------------------------------------------

    def make_room(self) -> str | None:
        """The name to unload before another adapter is loaded, None where there is room.

        Raises:
            EngineOverloaded: as many adapters as may be kept are all in use.
        """
        self.check_room()
        if len(self._adapters) < self._limit:
            return None
        number = next(number for number, adapter in self._adapters.items() if adapter.users == 0)
        return self._adapters.pop(number).name

    def check_room(self) -> None:
        """Return if another adapter can be loaded.

        Raises:
            EngineOverloaded: as many adapters as may be kept are all in use.
        """
        if len(self._adapters) >= self._limit and all(adapter.users for adapter in self._adapters.values()):
            raise EngineOverloaded(f"all {self._limit} loaded versions are in use")

    def keep(self, version: int) -> bool:
        """Whether an adapter is there already; one that was leaving stays."""
        adapter = self._adapters.get(version)
        if adapter is not None:
            adapter.leaving = False
            self._used(version)
        return adapter is not None

    def condemn(self, served: Served) -> None:
        """What answers gave NaN: no new request gets an adapter, unless it is asked for again. The model stays."""
        adapter = self._adapter_of(served)
        if served.version is None:
            self._model_broken += 1
        elif adapter is not None:
            adapter.leaving = True
            adapter.broken += 1

    def condemned(self, served: Served) -> bool:
        """Whether what answers gave NaN to somebody since this began: what it has read may be NaN too, or healed."""
        if served.version is None:
            return self._model_broken > served.broken
        adapter = self._adapter_of(served)
        return adapter is not None and adapter.broken > served.broken

    def _adapter_of(self, served: Served) -> _Adapter | None:
        adapter = None if served.version is None else self._adapters.get(served.version)
        return adapter if adapter is not None and adapter.name == served.model else None

    def _used(self, version: int) -> None:
        self._adapters[version] = self._adapters.pop(version)

    def add(self, version: int, name: str) -> None:
        """vLLM has loaded an adapter."""
        self._adapters[version] = _Adapter(name=name)

    def leave(self, version: int) -> str | None:
        """Let no new request have it; the name to unload now, None where requests use it or it is not there."""
        adapter = self._adapters.get(version)
        if adapter is None:
            return None
        adapter.leaving = True
        if adapter.users:
            return None
        del self._adapters[version]
        return adapter.name

    def has(self, name: str) -> bool:
        """Whether an adapter of this name is loaded."""
        return any(adapter.name == name for adapter in self._adapters.values())

    def adapters(self) -> Mapping[int, _Adapter]:
        """Those that are loaded now, for `lost`."""
        return dict(self._adapters)

    def lost(self, had: Mapping[int, _Adapter], there: frozenset[str]) -> bool:
        """Forget the adapters of `had` whose names are not `there`; whether any of them was still expected there."""
        missing = [number for number, adapter in had.items() if adapter.name not in there]
        gone = [number for number in missing if self._adapters.get(number) is had[number]]
        for number in gone:
            del self._adapters[number]
        return bool(gone)

    # --- the model itself --------------------------------------------------------------------------------------

    def replace_model(self, version: int | None, label: str) -> None:
        """The model itself has other weights now."""
        if self.model_version is not None and self.model_version != version:
            self._replaced = (self.model_version, self._clock() + GRACE_S)
        self.model_version, self.model_label = version, label
        self.salt = f"{label}-{secrets.token_hex(8)}"

    def _gracious(self) -> int | None:
        """The model before this one, while requests for it are still on their way."""
        if self.model_version is None or self._replaced is None or self._clock() >= self._replaced[1]:
            return None
        return self._replaced[0]


@contextlib.contextmanager
def using(versions: LoadedVersions, version: int, unload: Callable[[str], None]) -> Iterator[Served]:
    """Keep a version for a block; `unload` is called with the name of one that nobody needs after it."""
    served = versions.acquire(version)
    try:
        yield served
    finally:
        name = versions.release(served)
        if name is not None:
            unload(name)
