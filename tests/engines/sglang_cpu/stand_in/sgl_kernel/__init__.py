"""Stands in for SGLang's compiled kernels in our tests, so that the package from PyPI serves a small model on a CPU.

PyPI has these kernels for CUDA only. Without AMX, SGLang's layers for the CPU are plain torch; of the kernels they
call one, which is written out below. Every other name can be imported and raises when it is called.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from torch import Tensor

__version__ = "0.4.10"


def assign_req_to_token_pool_cpu(
    pool_indices: Tensor, table: Tensor, starts: Tensor, ends: Tensor, places: Tensor, _width: int
) -> None:
    """Note for each request where its newest tokens lie: row `pool_indices[i]` of `table`, from starts[i] to ends[i].

    `places` [sum of (ends - starts)] holds the places of all requests, one after the other.
    """
    taken = 0
    for row, start, end in zip(pool_indices.tolist(), starts.tolist(), ends.tolist(), strict=True):
        table[row, start:end] = places[taken : taken + end - start].to(table.dtype)
        taken += end - start


class _Absent:
    """A kernel that is not here."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> _Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent(f"{self._name}.{name}")

    def __call__(self, *_arguments: Any, **_named: Any) -> Any:
        raise NotImplementedError(f"{self._name} is not part of the stand-in for SGLang's kernels")


class _AbsentModule(ModuleType):
    """A submodule of the kernels, of which anything can be imported."""

    __path__: list[str] = []  # noqa: RUF012 - what makes a module a package

    def __getattr__(self, name: str) -> _Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent(f"{self.__name__}.{name}")


class _Submodules(MetaPathFinder, Loader):
    """Finds every submodule of the kernels, as an `_AbsentModule`."""

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.startswith("sgl_kernel.") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _AbsentModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


def __getattr__(name: str) -> _Absent:
    if name.startswith("__"):
        raise AttributeError(name)
    return _Absent(f"sgl_kernel.{name}")


sys.meta_path.insert(0, _Submodules())
