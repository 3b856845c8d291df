"""Imported as every Python of the test environment starts (by a .pth file): two things that a CPU torch is asked for.

- torchvision from PyPI is built for CUDA: without its library, its import names two operators that nobody defined.
- SGLang's LoRA layers ask for pinned memory whatever the device, of which a CPU torch has none.

Both wait until they are needed: a Python that serves nothing starts as fast as ever. And of SGLang's 250 models only
those of `small_models` are imported.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_PINNING = ("tensor", "empty", "zeros", "ones", "arange", "full")
_OPERATORS = ("nms", "qnms")


def _without_pinning(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def made(*arguments: Any, **named: Any) -> Any:
        named.pop("pin_memory", None)
        return make(*arguments, **named)

    return made


class _BeforeImport(MetaPathFinder):
    """Sets the stage when `torchvision` or the kernels are about to be imported; finds nothing itself."""

    def __init__(self) -> None:
        self._library: Any = None

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "torchvision" and self._library is None:
            import torch

            self._library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
            for name in _OPERATORS:
                self._library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        if fullname == "sglang.srt.lora":
            _pin_nothing()
        return None


@functools.cache
def _pin_nothing() -> None:
    import torch

    if torch.cuda.is_available():
        return
    for name in _PINNING:
        setattr(torch, name, _without_pinning(getattr(torch, name)))
    torch.Tensor.pin_memory = lambda self, *_arguments, **_named: self  # type: ignore[method-assign]


sys.meta_path.insert(0, _BeforeImport())
os.environ.setdefault("SGLANG_EXTERNAL_MODEL_PACKAGE", "small_models")
