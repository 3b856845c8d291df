"""The loaded versions, several at once, each under its own number: LoRA adapters on one model, or whole models.

A LoRA version is a set of small matrices beside the model, not a change of it: a forward hook on every linear layer
adds `scaling * (x A^T) B^T` (Hu et al., 2021, as PEFT defines it) to the tokens of that version. So a version is
attached by putting it into a dictionary, which takes no time and stops nobody; tokens of different versions share a
forward pass; and switching is free, where PEFT's own switching of all layers costs a good part of a decode step. PEFT
still reads the configuration, and the tests compare with PEFT's own forward pass. A version that is a whole model
(`whole`) has a forward pass of its own.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig as PeftLoraConfig
from peft import PeftConfig
from safetensors.torch import load_file
from torch import Tensor, nn

from openclaw_rl.policy_files import (
    CorruptPolicy,
    UnreadablePolicy,
    WeightsKind,
    adapter_dir,
    verify_manifest,
    weights_of,
)
from openclaw_rl.policy_files import Weights as FoundWeights
from openclaw_rl.serving.engines.embedded.whole import WholeModels, free
from openclaw_rl.serving.engines.protocol import (
    EngineOverloaded,
    InvalidEngineRequest,
    UnknownVersion,
    UnreadableVersion,
)
from openclaw_rl.types import BASE_VERSION

logger = logging.getLogger(__name__)

_PREFIX, _DOWN, _UP = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
_PLAIN = {"use_dora": False, "bias": "none", "modules_to_save": None, "fan_in_fan_out": False, "lora_bias": False}


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraPair:
    """What one linear layer adds: `down` [in, r] and `up` [r, out], both views for a plain matrix product."""

    down: Tensor
    up: Tensor
    scaling: float


Weights = dict[str, LoraPair]
"""By the name of the layer in the model."""


@dataclass(slots=True)
class _Version:
    """`model`: of a whole one, which has no `weights` of the kind that lie over the base."""

    weights: Weights
    model: nn.Module | None = None
    used_at: int = 0
    users: int = 0
    leaving: bool = False


class AdapterPool:
    """The loaded versions. `applied` belongs to the compute thread; any thread may call everything else.

    `limit`: how many adapters are kept, `whole_limit`: how many whole models, beside the base. Of those that nobody
    uses the one used longest ago makes room for a new one; with `spare_last` never the one that was used last: where
    there is one policy it is probably in service.
    """

    def __init__(self, model: nn.Module, limit: int, whole_limit: int = 2, *, spare_last: bool = True) -> None:
        self._limits = {False: limit, True: whole_limit}
        self._spare_last = spare_last
        self._whole = WholeModels(model)
        self._clock = 0
        self._lock = threading.Lock()
        self._loading = threading.Lock()
        self._versions: dict[int, _Version] = {}
        self._ranges: list[tuple[int, int, Weights]] = []
        self._layers = _linear_layers(model)
        for name, layer in self._layers.items():
            layer.register_forward_hook(partial(self._add, name))

    # --- who uses which version

    def loaded(self) -> tuple[int, ...]:
        """The versions that new requests may ask for; the base is always among them."""
        with self._lock:
            return (BASE_VERSION, *sorted(n for n, version in self._versions.items() if not version.leaving))

    def acquire(self, version: int) -> None:
        """Keep `version` until `release`.

        Raises:
            UnknownVersion: it is not loaded, or about to be unloaded.
        """
        if version == BASE_VERSION:
            return
        with self._lock:
            held = self._versions.get(version)
            if held is None or held.leaving:
                raise UnknownVersion(f"policy version {version} is not loaded", param="model")
            held.users += 1
            held.used_at = self._now()

    def release(self, version: int) -> bool:
        """A request is done with `version`; True if that unloaded it."""
        with self._lock:
            held = self._versions.get(version)
            if held is None:
                return False
            held.users -= 1
            return self._drop_if_unused(version, held)

    def unload(self, version: int) -> bool:
        """Unload `version` once nobody uses it; True if that is now. New requests cannot ask for it any more."""
        with self._lock:
            held = self._versions.get(version)
            if held is None:
                return False
            held.leaving = True
            return self._drop_if_unused(version, held)

    # --- loading

    def load(self, version: int, path: Path) -> tuple[int, ...]:
        """Load the directory of `version` beside whatever is running; returns the versions that made room.

        An adapter makes room once it is read; a whole model before, so that there is never one too many in memory.

        Raises:
            InvalidEngineRequest: the directory is broken, or neither a plain LoRA adapter nor a model like the base.
            EngineOverloaded: as many versions as may be kept are all in use.
        """
        with self._loading:
            if version == BASE_VERSION or self._keep(version):
                return ()
            started = time.monotonic()
            found = _weights_of(path)
            with self._lock:  # before the files are read: whoever waits for a place asks often
                self._leaver(whole=found.kind is WeightsKind.FULL)
            if found.kind is WeightsKind.FULL:
                with self._lock:
                    evicted = self._make_room(whole=True)
                self._add_version(version, _Version({}, model=self._whole.load(found.directory)))
            else:
                made = _Version(self._fit(*read_adapter(path)))
                with self._lock:
                    evicted = self._make_room(whole=False)
                self._add_version(version, made)
            logger.info("loaded policy version %d in %.0f ms", version, 1e3 * (time.monotonic() - started))
            return evicted

    def _add_version(self, number: int, version: _Version) -> None:
        with self._lock:
            version.used_at = self._now()
            self._versions[number] = version

    def _keep(self, version: int) -> bool:
        """Whether `version` is loaded already; one that was about to leave stays."""
        with self._lock:
            held = self._versions.get(version)
            if held is not None:
                held.leaving = False
                held.used_at = self._now()
            return held is not None

    def _make_room(self, *, whole: bool) -> tuple[int, ...]:
        leaver = self._leaver(whole=whole)
        if leaver is None:
            return ()
        self._drop(leaver)
        return (leaver,)

    def _leaver(self, *, whole: bool) -> int | None:
        """Which version would make room for another of its kind; None where there is room.

        Raises:
            EngineOverloaded: there is neither room nor one that could go.
        """
        alike = {number: held for number, held in self._versions.items() if (held.model is not None) is whole}
        if len(alike) < self._limits[whole]:
            return None
        last = max(alike, key=lambda number: alike[number].used_at) if self._spare_last else None
        unused = [number for number, held in alike.items() if held.users == 0 and number != last]
        if not unused:
            raise EngineOverloaded(f"{self._limits[whole]} policy versions are loaded, and all are in use")
        return min(unused, key=lambda number: alike[number].used_at)

    def _drop(self, version: int) -> None:
        model = self._versions.pop(version).model
        if model is not None:
            free(model)

    def _now(self) -> int:
        self._clock += 1
        return self._clock

    def _drop_if_unused(self, version: int, held: _Version) -> bool:
        if held.users > 0 or not held.leaving:
            return False
        self._drop(version)
        return True

    def _fit(self, config: PeftLoraConfig, tensors: dict[str, Tensor]) -> Weights:
        """Match an adapter's tensors with the model's layers."""
        names = {key.removeprefix(_PREFIX).removesuffix(_DOWN).removesuffix(_UP) for key in tensors}
        weights: Weights = {}
        for name in sorted(names):
            layer = self._layers.get(name)
            down, up = tensors.get(_PREFIX + name + _DOWN), tensors.get(_PREFIX + name + _UP)
            if layer is None or down is None or up is None or not _shapes_fit(layer, down, up):
                raise InvalidEngineRequest(f"the adapter does not fit the model's layer {name}", param="path")
            like = layer.weight
            weights[name] = LoraPair(
                down=down.to(like.device, like.dtype).T,
                up=up.to(like.device, like.dtype).T,
                scaling=config.lora_alpha / (math.sqrt(len(down)) if config.use_rslora else len(down)),
            )
        return weights

    # --- the compute thread

    def model_of(self, version: int) -> nn.Module | None:
        """The model of a version that is a whole one; None: the base, with or without an adapter."""
        with self._lock:
            held = self._versions.get(version)
            return None if held is None else held.model

    @contextmanager
    def applied(self, ranges: Sequence[tuple[int, int, int]]) -> Iterator[None]:
        """During one forward pass, tokens `begin` to `end` of its single row are those of `version`."""
        with self._lock:
            self._ranges = [
                (begin, end, self._versions[version].weights)
                for begin, end, version in ranges
                if version != BASE_VERSION
            ]
        try:
            yield
        finally:
            self._ranges = []

    def _add(self, name: str, _layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """The hook of layer `name`: adds to its output [1, T, out] in place."""
        for begin, end, weights in self._ranges:
            pair = weights.get(name)
            if pair is not None:
                x = inputs[0][0, begin:end]
                output[0, begin:end].addmm_(x @ pair.down, pair.up, alpha=pair.scaling)


def read_adapter(path: Path) -> tuple[PeftLoraConfig, dict[str, Tensor]]:
    """Read and verify a version's directory: a PEFT directory, or a checkpoint that holds one as `adapter/`.

    Raises:
        InvalidEngineRequest: the manifest does not agree with the files, or this is not a plain LoRA adapter.
        UnreadableVersion: the system does not let us read a file, which may be sound.
    """
    try:
        verify_manifest(path)
        folder = adapter_dir(path)
        config = PeftConfig.from_pretrained(str(folder))
        tensors = load_file(folder / "adapter_model.safetensors")
    except UnreadablePolicy as error:
        raise UnreadableVersion(str(error)) from error
    except (OSError, ValueError) as error:
        raise InvalidEngineRequest(f"the version's files cannot be used: {error}", param="path") from error
    if not isinstance(config, PeftLoraConfig) or any(getattr(config, k, v) != v for k, v in _PLAIN.items()):
        raise InvalidEngineRequest("the embedded engine loads plain LoRA adapters only", param="path")
    if config.alpha_pattern:
        raise InvalidEngineRequest("the embedded engine knows no alpha_pattern", param="path")
    if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values()):
        raise InvalidEngineRequest("the adapter holds values that are not finite", param="path")
    return config, tensors


def _weights_of(path: Path) -> FoundWeights:
    try:
        return weights_of(path)
    except UnreadablePolicy as error:
        raise UnreadableVersion(str(error)) from error
    except CorruptPolicy as error:
        raise InvalidEngineRequest(f"the version's files cannot be used: {error}", param="path") from error


def _linear_layers(model: Any) -> dict[str, nn.Linear]:
    """The layers that see every token. The output head sees only those whose logits are wanted: no adapter there."""
    head = model.get_output_embeddings()
    return {
        name: module for name, module in model.named_modules() if isinstance(module, nn.Linear) and module is not head
    }


def _shapes_fit(layer: nn.Linear, down: Tensor, up: Tensor) -> bool:
    return down.shape[1] == layer.in_features and up.shape == (layer.out_features, down.shape[0])
