"""How far two policy versions lie apart, read from their adapters; imports no torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from openclaw_rl.policy_files import verify_manifest

WEIGHTS_FILE = "adapter_model.safetensors"
Matrix = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Two versions a and b: Frobenius norms of what each adds to the base, and of the difference of the two.

    `by_module`: the norm of the difference in each matrix, the largest first.
    """

    norm_a: float
    norm_b: float
    norm_difference: float
    by_module: dict[str, float]


def compare(a: Path | None, b: Path | None) -> Difference:
    """Compare two PEFT directories; None is the base, which adds nothing.

    Norms of the low-rank products are taken without making the products: ||BA||^2 = tr(B'B AA').

    Raises:
        CorruptPolicy: one is not what was written.
    """
    first, second = _updates(a), _updates(b)
    by_module = {}
    for name in first.keys() | second.keys():
        pairs = [*first.get(name, ()), *((-down, up) for down, up in second.get(name, ()))]
        by_module[name] = _norm(pairs)
    return Difference(
        norm_a=_total([_norm(pairs) for pairs in first.values()]),
        norm_b=_total([_norm(pairs) for pairs in second.values()]),
        norm_difference=_total(list(by_module.values())),
        by_module=dict(sorted(by_module.items(), key=lambda item: -item[1])),
    )


def _updates(adapter: Path | None) -> dict[str, list[tuple[Matrix, Matrix]]]:
    """(down [r, in] times the scale, up [out, r]) of each module."""
    if adapter is None:
        return {}
    verify_manifest(adapter)
    settings = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    scale = settings["lora_alpha"] / settings["r"]
    tensors = load_file(adapter / WEIGHTS_FILE)
    found = {}
    for name, down in tensors.items():
        module, is_down, _ = name.partition(".lora_A.")
        if is_down:
            up = tensors[name.replace(".lora_A.", ".lora_B.")]
            found[module.removeprefix("base_model.model.")] = [(scale * down, up)]
    return found


def _norm(pairs: list[tuple[Matrix, Matrix]]) -> float:
    """The Frobenius norm of the sum of the products."""
    if not pairs:
        return 0.0
    down = np.concatenate([pair[0] for pair in pairs], axis=0).astype(np.float64)
    up = np.concatenate([pair[1] for pair in pairs], axis=1).astype(np.float64)
    return float(np.sqrt(max(0.0, np.sum((up.T @ up) * (down @ down.T)))))


def _total(norms: list[float]) -> float:
    return float(np.sqrt(np.sum(np.square(norms))))
