"""Versions that are whole models: each a second set of weights in the shape of the base.

One is read and checked in a thread of its own that gives way to everything else, straight into memory, and then
handed over by reference: no decode step waits for it, and nobody's weights change under an answer that is being
written. Module objects are cheap; what a version costs is its weights, as much as the base's.
"""

from __future__ import annotations

import copy
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from openclaw_rl.policy_files import UnreadablePolicy, verify_manifest
from openclaw_rl.serving.engines.embedded.slot_attention import use_slot_attention
from openclaw_rl.serving.engines.protocol import InvalidEngineRequest, UnreadableVersion

T = TypeVar("T")

MODEL_FILE = "model.safetensors"
_NICENESS = 15
"""Of the thread that reads a model: an answer that is being written goes before it."""


class WholeModels:
    """Makes models in the shape of the base."""

    def __init__(self, base: nn.Module) -> None:
        """`base` must not have any hooks yet: they would be copied along."""
        shared = {id(parameter): parameter for parameter in base.parameters()}
        self._shape: Any = copy.deepcopy(base, memo=dict(shared))

    def load(self, directory: Path) -> nn.Module:
        """The model in `directory`, a version's Transformers directory with its manifest, ready to generate.

        Raises:
            InvalidEngineRequest: a file is not what was written, or the model is not one in the base's shape.
            UnreadableVersion: the system does not let us read a file, which may be sound.
        """
        try:
            return _giving_way(lambda: self._load(directory))
        except UnreadablePolicy as error:
            raise UnreadableVersion(str(error)) from error
        except (OSError, ValueError, SafetensorError) as error:
            raise InvalidEngineRequest(f"the version's files cannot be used: {error}", param="path") from error

    def _load(self, directory: Path) -> nn.Module:
        verify_manifest(directory)
        own = dict(self._shape.named_parameters())
        taken: dict[int, nn.Parameter] = {}
        with safe_open(directory / MODEL_FILE, framework="pt") as file:
            if set(file.keys()) != own.keys():
                raise InvalidEngineRequest("the version holds other tensors than the base", param="path")
            for name, like in own.items():
                # A copy: what is only mapped would be read from the disk in the middle of somebody's answer.
                tensor: Tensor = file.get_tensor(name).to(like.device, like.dtype, copy=True)
                if tensor.shape != like.shape:
                    raise InvalidEngineRequest(f"the version does not fit the base at {name}", param="path")
                if not bool(torch.isfinite(tensor).all()):
                    raise InvalidEngineRequest("the version holds values that are not finite", param="path")
                taken[id(like)] = nn.Parameter(tensor, requires_grad=False)
        model: nn.Module = copy.deepcopy(self._shape, memo=dict(taken))
        use_slot_attention(model)
        return model


def free(model: nn.Module) -> None:
    """Give back a model's memory at once, whoever still has a reference to the object; nobody may compute with it."""
    for parameter in model.parameters():
        parameter.data = parameter.data.new_empty(0)


def _giving_way(function: Callable[[], T]) -> T:
    """What `function` returns or raises, computed in a thread of its own; where threads have one, at low priority."""
    with ThreadPoolExecutor(1, thread_name_prefix="engine-load", initializer=_be_nice) as pool:
        return pool.submit(function).result()


def _be_nice() -> None:
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
