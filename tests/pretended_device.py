"""A second device for machines that have none: it computes on the CPU, and refuses what a GPU would refuse.

Its tensors (`Elsewhere`) hold real numbers on the CPU, but call themselves tensors of another device. Torch lends the
name `meta` for it, a device that its autograd knows everywhere. As on a GPU, an operation on tensors of two devices
raises `MixedDevices`, a tensor made without naming a device is on the CPU, and only a copy moves one over. So code
that forgets to move something fails here, and code that forgets nothing gives the very numbers of the CPU. What this
cannot show: a GPU's kernels, its memory, its own random numbers, and its speed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention import SDPBackend
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

ELSEWHERE = torch.device("meta")
_CPU = torch.device("cpu")

_aten = torch.ops.aten
_COPIES = {_aten._to_copy, _aten.copy_, _aten.to}
"""The operations that may see two devices."""


class MixedDevices(RuntimeError):
    """An operation on tensors of two devices: on a GPU it would fail, or copy behind the author's back."""


class Elsewhere(torch.Tensor):
    """A tensor that says it is elsewhere; `held` has its numbers."""

    held: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls: type[Elsewhere], real: torch.Tensor) -> Elsewhere:
        made: Elsewhere = torch.Tensor._make_wrapper_subclass(
            cls,
            real.shape,
            strides=real.stride(),
            storage_offset=real.storage_offset(),
            dtype=real.dtype,
            device=ELSEWHERE,
            requires_grad=False,
        )
        made.held = real
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Elsewhere({self.held!r})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _compute(func, args, kwargs or {})


class PretendedDevice(TorchDispatchMode):
    """Within it, tensors asked for on `ELSEWHERE` are made there; `operations` counts those computed there.

    It holds for one thread, as torch's modes do.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations = 0
        self._numbers = _NumbersFirst()

    def __enter__(self) -> PretendedDevice:
        self._numbers.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._numbers.__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = _compute(func, args, kwargs or {})
        self.operations += any(isinstance(leaf, Elsewhere) for leaf in tree_flatten(result)[0])
        return result


class _NumbersFirst(TorchFunctionMode):
    """`torch.tensor` of Python numbers: made on the CPU and copied, as for a GPU; torch drops them for `meta`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.tensor and "device" in kwargs:
            device = kwargs.pop("device")
            return func(*args, **kwargs).to(device)
        return func(*args, **kwargs)


def _compute(func: Any, args: Any, kwargs: Any) -> Any:
    leaves = tree_flatten((args, kwargs))[0]
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    there = [tensor for tensor in tensors if isinstance(tensor, Elsewhere)]
    packet = func.overloadpacket
    if packet is _aten._fused_sdp_choice:
        return SDPBackend.MATH.value  # the fused kernels are chosen by the device's name
    if there and len(there) < len(tensors) and packet not in _COPIES:
        raise MixedDevices(f"{func}: {[(tuple(tensor.shape), tensor.device.type) for tensor in tensors]}")
    asked = [leaf for leaf in leaves if isinstance(leaf, torch.device)]
    if asked:
        target = asked[-1]
    elif packet is _aten.to and len(tensors) > 1:
        target = tensors[1].device
    else:
        target = tensors[0].device if tensors else _CPU
    known = {id(tensor.held): tensor for tensor in there}
    args, kwargs = tree_map(_real, (args, kwargs))
    result = func(*args, **kwargs)
    if target != ELSEWHERE:
        if any(result is tensor.held for tensor in there):
            result = result.clone()  # `to` another device is a copy, though on the CPU it was none
        return result
    return tree_map(lambda leaf: _elsewhere(leaf, known), result)


def _real(leaf: Any) -> Any:
    if isinstance(leaf, Elsewhere):
        return leaf.held
    return _CPU if isinstance(leaf, torch.device) and leaf == ELSEWHERE else leaf


def _elsewhere(leaf: Any, known: dict[int, Elsewhere]) -> Any:
    """Wrapped, or the very argument that an operation in place has given back."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if id(leaf) in known:
        return known[id(leaf)]
    with torch.inference_mode(leaf.is_inference()):  # a view of an ordinary tensor stays one in inference mode
        return Elsewhere(leaf)
