"""A version's files, looked at before an engine that is not ours reads them: a server that trips over them may die.

Whole (the manifest), finite, and of the base's shapes. A base's files may hold more than its model has: what
Transformers leaves out when it writes the model (`_beside_the_model`) is not missed in a version.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from openclaw_rl.policy_files import (
    ADAPTER_DIR,
    MANIFEST,
    MODEL_DIR,
    CorruptPolicy,
    UnreadablePolicy,
    Weights,
    WeightsKind,
    verify_manifest,
    weights_of,
)
from openclaw_rl.serving.engines.protocol import EngineError, InvalidEngineRequest, UnreadableVersion

_PREFIX, _DOWN, _UP = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
_PLAIN: Mapping[str, Any] = {
    "use_dora": False,
    "bias": "none",
    "modules_to_save": None,
    "fan_in_fan_out": False,
    "lora_bias": False,
    "alpha_pattern": {},
    "rank_pattern": {},
}
"""What a plain LoRA adapter's configuration says, where it says anything."""

_COMPUTED = ("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached")
_LAYER = re.compile(r"model\.layers\.([0-9]+)\.")

Shape = tuple[int, ...]


def check_weights(path: Path, base: Path) -> Weights:
    """The version at `path`, which is as it was written and fits the model in the directory `base`.

    Reads every tensor once, so not in an event loop.

    Raises:
        InvalidEngineRequest: the files are not what was written, hold NaN or infinity, or do not fit.
        UnreadableVersion: the system does not let us read a file, which may be sound.
        EngineError: the base's files do not say its shapes: nothing is wrong with the version.
    """
    weights, shapes = _sound(path)
    base_shapes = _shapes_of_base(base)
    if weights.kind is WeightsKind.LORA:
        _check_adapter(shapes, base_shapes)
    else:
        _check_whole(shapes, base_shapes, base)
    return weights


def check_sound(path: Path) -> None:
    """Return if the version at `path` is as it was written, and finite; whether it fits a base is not looked at.

    Raises:
        InvalidEngineRequest, UnreadableVersion: as `check_weights`.
    """
    _sound(path)


def identify(path: Path) -> tuple[Weights, str]:
    """The weights at `path`, and the digest of their manifest, which no other weights have. Reads the manifest only.

    Raises:
        InvalidEngineRequest: there are none.
    """
    try:
        weights = weights_of(path)
        return weights, hashlib.sha256((_described(weights.directory) / MANIFEST).read_bytes()).hexdigest()
    except (OSError, ValueError) as error:
        raise _unusable(f"the version's files cannot be used: {error}") from error


def _sound(path: Path) -> tuple[Weights, dict[str, Shape]]:
    try:
        weights = weights_of(path)
        verify_manifest(_described(weights.directory))
        if weights.kind is WeightsKind.LORA:
            _check_plain(weights.directory)
        shapes = _shapes(weights.directory)
        _check_finite(weights.directory)
    except UnreadablePolicy as error:
        raise UnreadableVersion(str(error)) from error
    except (OSError, ValueError, SafetensorError) as error:
        raise _unusable(f"the version's files cannot be used: {error}") from error
    return weights, shapes


def _described(directory: Path) -> Path:
    """The directory with the manifest: its own, else that of the checkpoint which it is a part of."""
    part = directory.name in {ADAPTER_DIR, MODEL_DIR} and not (directory / MANIFEST).is_file()
    return directory.parent if part else directory


def _check_plain(directory: Path) -> None:
    config = json.loads((directory / "adapter_config.json").read_text(encoding="utf-8"))
    for key, plain in _PLAIN.items():
        if config.get(key) not in (plain, None):
            raise CorruptPolicy(f"{key} = {config[key]!r}: only plain LoRA adapters are served")


def _check_adapter(shapes: Mapping[str, Shape], base: Mapping[str, Shape]) -> None:
    """Each pair [r, in], [out, r] lies beside a layer [out, in] of the base."""
    layers = {key.removeprefix(_PREFIX).removesuffix(_DOWN).removesuffix(_UP) for key in shapes}
    for layer in sorted(layers):
        down, up = shapes.get(_PREFIX + layer + _DOWN), shapes.get(_PREFIX + layer + _UP)
        whole = base.get(f"{layer}.weight")
        if down is None or up is None or whole != (up[0], down[1]) or up[1] != down[0]:
            raise _unusable(f"the adapter does not fit the model's layer {layer}")


def _check_whole(shapes: Mapping[str, Shape], base_shapes: Mapping[str, Shape], base: Path) -> None:
    """Every tensor has its like in the base; and none of the model's is missing, which would keep its old values."""
    odd = {name for name, shape in shapes.items() if shape != base_shapes.get(name)}
    missing = base_shapes.keys() - shapes.keys()
    if missing:
        odd |= missing - _beside_the_model(missing, _config_of(base))
    if odd:
        raise _unusable(f"the model does not fit the base in {min(odd)}")


def _beside_the_model(names: Collection[str], config: Mapping[str, Any]) -> set[str]:
    """Those of a base's tensors that are none of its model's own parameters, and that engines pass over, too:

    - `lm_head.weight` where the configuration ties it to the embeddings;
    - the tables of rotary positions (`rotary_emb.inv_freq`, `cos_cached`, `sin_cached`), which are computed;
    - the layers that only predict tokens ahead (`mtp.*`, and layers beyond `num_hidden_layers`).
    """
    layers = config.get("num_hidden_layers")

    def is_beside(name: str) -> bool:
        layer = _LAYER.match(name)
        return (
            (name == "lm_head.weight" and bool(config.get("tie_word_embeddings")))
            or name.endswith(_COMPUTED)
            or name.startswith("mtp.")
            or (layer is not None and isinstance(layers, int) and int(layer[1]) >= layers)
        )

    return {name for name in names if is_beside(name)}


def _config_of(base: Path) -> Mapping[str, Any]:
    """What the base's configuration says of its text side: a file may leave out what Transformers takes then.

    Raises:
        EngineError: it has none that can be read.
    """
    from transformers import AutoConfig  # takes a second, and is rarely needed

    try:
        config = AutoConfig.from_pretrained(base, local_files_only=True)
    except (OSError, ValueError) as error:
        raise EngineError(f"the base (model.path) has no configuration that can be read: {error}") from error
    text: Mapping[str, Any] = config.get_text_config().to_dict()
    return {"tie_word_embeddings": getattr(config, "tie_word_embeddings", False), **text}


def _shapes_of_base(base: Path) -> dict[str, Shape]:
    """The shapes of the base.

    Raises:
        EngineError: its files do not say them: they are no safetensors, or cannot be read.
    """
    try:
        return _shapes(base)
    except (OSError, ValueError, SafetensorError) as error:
        needed = "the base (model.path) needs safetensors files, which versions are held against"
        raise EngineError(f"{needed}: {error}") from error


def _shapes(directory: Path) -> dict[str, Shape]:
    """The shape of every tensor in the safetensors files; reads no tensor."""
    shapes: dict[str, Shape] = {}
    for file in _files(directory):
        with safe_open(file, framework="pt") as tensors:
            shapes |= {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
    return shapes


def _check_finite(directory: Path) -> None:
    import torch  # whoever only asks an engine for answers has no need of it

    for file in _files(directory):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a mapping
                if not bool(torch.isfinite(tensors.get_tensor(name)).all()):
                    raise CorruptPolicy(f"{name} holds values that are not finite")


def _files(directory: Path) -> list[Path]:
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise CorruptPolicy(f"{directory} holds no safetensors file")
    return files


def _unusable(reason: str) -> InvalidEngineRequest:
    return InvalidEngineRequest(reason, param="path")
