"""Keeps account of the tensors of a process while code runs on fake tensors: when each storage begins and ceases to live, the
floating-point operations, and the bytes handed to collectives.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from unittest.mock import patch

import torch
from torch import Tensor, UntypedStorage
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from snaketrain.models import Args, Kwargs, Value

PARTS = ("parameters", "gradients", "optimizer", "activations", "loss", "exchange", "other")
PART_OF_PHASE = {"forward": "activations", "loss": "loss", "backward": "activations", "update": "optimizer"}
COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "fsdp")  # libraries of operations
REDUCING = ("reduce", "gather", "scatter", "broadcast", "all_to_all", "alltoall", "send")  # of these names, what moves data
attention = torch.ops.aten
FLOPS_OF_CPU_ATTENTION: dict[Value, Callable[..., int]] = {
    attention._scaled_dot_product_flash_attention_for_cpu.default: lambda q, k, v, *_: sdpa_flop_count(q.shape, k.shape, v.shape),  # type: ignore[no-untyped-call]  # torch's
    attention._scaled_dot_product_flash_attention_for_cpu_backward.default: lambda above, q, k, v, *_: sdpa_backward_flop_count(  # type: ignore[no-untyped-call]  # torch's
        above.shape, q.shape, k.shape, v.shape
    ),
}
FLOPS_OF_EXPERTS: dict[str, Callable[..., int]] = {  # grouped products of transformers, of all experts together
    "transformers::grouped_mm_fallback": lambda rows, weights, *_: 2 * rows.shape[0] * weights.shape[1] * weights.shape[2],
    "transformers::grouped_mm_fallback_backward": lambda rows, weights, *_: 4 * rows.shape[0] * weights.shape[1] * weights.shape[2],
}


@dataclass(eq=False, slots=True)
class Storage:
    """What is known of one storage. It keeps its record when it ceases to live."""

    phase: str  # in which it began
    bytes: int = 0
    part: str | None = None  # of PARTS, where that is known for certain
    exchanged: bool = False  # it holds what collectives send or receive

    @property
    def belongs_to(self) -> str:
        return self.part or ("exchange" if self.exchanged else PART_OF_PHASE.get(self.phase.rpartition(" ")[2], "other"))


class Ledger(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """`phase` is set by whoever knows what the code is doing: its last word decides which part a new storage belongs to."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.phase = "build"
        self.flops = 0
        self.exchanged: Counter[str] = Counter()  # bytes by operation
        self.made_up = 0  # numbers that were asked for
        self.events: list[tuple[str, Storage, int]] = []  # the phase, and by how much a storage grew or shrank
        self.living: dict[int, Storage] = {}
        self._references: dict[int, weakref.ref[UntypedStorage]] = {}

    def __enter__(self) -> "Ledger":
        resize, ledger = UntypedStorage.resize_, self

        def resize_(storage: UntypedStorage, size: int) -> UntypedStorage:  # by which FSDP2 frees and allocates gathered parameters
            resize(storage, size)
            if storage._cdata in ledger.living:  # a fake tensor's storage is on the meta device
                ledger._hold(storage).exchanged = True
            return storage

        self._resizing = patch.object(UntypedStorage, "resize_", resize_)
        self._resizing.start()
        super().__enter__()  # type: ignore[no-untyped-call]  # torch's
        return self

    def __exit__(self, *error: object) -> None:
        self._resizing.stop()
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # torch's

    def __torch_dispatch__(self, func: Value, types: Sequence[type], args: Args = (), kwargs: Kwargs | None = None) -> Value:
        kwargs = kwargs or {}
        if DTensor in types:
            return NotImplemented  # it comes back with the local tensors
        if func is torch.ops.aten._local_scalar_dense.default and isinstance(args[0], FakeTensor):
            return self._number(args[0])
        waits = func is torch.ops._c10d_functional.wait_tensor.default
        found = args[0] if waits else func(*args, **kwargs)
        collective = func.namespace in COLLECTIVES
        for tensor in _tensors(found):
            record = self._hold(tensor.untyped_storage())
            record.exchanged = record.exchanged or (collective and not waits)
        if collective and kwargs.get("out") is not None:
            for tensor in _tensors(kwargs["out"]):
                self._hold(tensor.untyped_storage()).exchanged = True
        self._count(func, args, kwargs, found)
        return found

    def mark(self, tensors: Iterable[object], part: str) -> None:
        """Say for certain which part these belong to."""
        for tensor in _tensors(list(tensors)):
            self._hold(tensor.untyped_storage()).part = part

    def mark_living(self, phase: str, part: str) -> None:
        """The same for all that began in this phase and still live."""
        for storage in self.living.values():
            if storage.phase == phase and storage.part is None and not storage.exchanged:
                storage.part = part

    def peaks(self, first_event: int) -> dict[str, dict[str, int]]:
        """For each phase from an event on, the bytes of each part at its fullest moment."""
        now, most = 0, dict[str, tuple[int, int]]()
        for number, (phase, _, change) in enumerate(self.events):
            now += change
            if number >= first_event and now > most.get(phase, (-1, 0))[0]:
                most[phase] = now, number
        phases = {number: phase for phase, (_, number) in most.items()}
        found, living = dict[str, dict[str, int]](), Counter[Storage]()
        for number, (_, storage, change) in enumerate(self.events):
            living[storage] += change
            if number in phases:
                parts: Counter[str] = Counter()
                for each, size in living.items():
                    parts[each.belongs_to] += size
                found[phases[number]] = {part: parts[part] for part in PARTS}
        return found

    def _hold(self, storage: UntypedStorage) -> Storage:
        key, size = storage._cdata, storage.nbytes()
        record = self.living.get(key)
        if record is None:
            record = self.living[key] = Storage(self.phase)
            self._references[key] = weakref.ref(storage, lambda _: self._free(key))
        if size != record.bytes:
            self.events.append((self.phase, record, size - record.bytes))
            record.bytes = size
        return record

    def _free(self, key: int) -> None:
        record = self.living.pop(key)
        self._references.pop(key)
        self.events.append((self.phase, record, -record.bytes))

    def _number(self, tensor: Tensor) -> float | int | bool:
        """Fake tensors have no values. A norm of 1 is finite, and what is asked for as true or false is false."""
        self.made_up += 1
        return False if tensor.dtype == torch.bool else 1.0 if tensor.is_floating_point() else 1

    def _count(self, func: Value, args: Args, kwargs: Kwargs, found: Value) -> None:
        if func in FLOPS_OF_CPU_ATTENTION:
            self.flops += FLOPS_OF_CPU_ATTENTION[func](*args)
        elif func.name() in FLOPS_OF_EXPERTS:
            self.flops += FLOPS_OF_EXPERTS[func.name()](*args)
        elif func._overloadpacket in flop_registry:
            self.flops += flop_registry[func._overloadpacket](*args, **kwargs, out_val=found)
        name = func._overloadpacket.__name__
        if func.namespace in COLLECTIVES[:3] and any(word in name for word in REDUCING):
            # of what is gathered the whole, of what is scattered too
            self.exchanged[name.strip("_")] += max(sum(t.nbytes for t in _tensors(each)) for each in (*args, found))


def _tensors(found: object) -> list[Tensor]:
    """All tensors in something, as this process holds them; without those on the meta device."""
    local = []
    for leaf in tree_leaves(found):
        if isinstance(leaf, Tensor):
            tensor = leaf._local_tensor if isinstance(leaf, DTensor) else leaf
            tensor = tensor.elem if isinstance(tensor, AsyncCollectiveTensor) else tensor
            if tensor.device.type != "meta":
                local.append(tensor)
    return local
