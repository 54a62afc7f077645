"""Spreads the experts of a mixture over ranks: each rank sends its tokens to the ranks of their experts, and gets the results back."""

from fnmatch import fnmatchcase

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from snaketrain.models.call_types import Value

SETTING = "train.strategy.arguments.expert"
DISPATCHES = "ep_dispatch_experts"  # how transformers' plans mark modules of experts


class ExpertDimension:
    def __init__(self, mesh: DeviceMesh):
        """`mesh`: of the dimension `expert` alone."""
        self.mesh = mesh
        self.parts: set[nn.Module] = set()  # the modules of experts

    def apply(self, module: nn.Module) -> nn.Module:
        for name, experts in experts_of(module).items():
            if experts.num_experts % self.mesh.size():
                raise SystemExit(
                    f"{SETTING}: {self.mesh.size()} does not divide the {experts.num_experts} experts of `{name}`. Use a number that does."
                )
            for key, parameter in list(experts.named_parameters(recurse=False)):
                mine = distribute_tensor(parameter.detach(), self.mesh, [Shard(0)], src_data_rank=None)
                experts.register_parameter(key, nn.Parameter(mine, parameter.requires_grad))
            experts.forward = Dispatch(experts, self.mesh)
            self.parts.add(experts)
        return module


def experts_of(module: nn.Module) -> dict[str, Value]:
    """The modules of experts by name, from transformers' own plan. Their parameters have a first dimension of experts."""
    base = getattr(module, "base_model", module)
    plan = getattr(getattr(base, "config", None), "base_model_ep_plan", None) or {}
    patterns = [pattern for pattern, way in plan.items() if way == DISPATCHES]
    found = {name: part for name, part in base.named_modules() if any(fnmatchcase(name, pattern) for pattern in patterns)}
    if not found:
        raise SystemExit(
            f"{SETTING}: {type(module).__name__} has no plan for experts (`base_model_ep_plan` of its configuration), as Mixtral and Qwen's "
            "mixtures have. Remove it."
        )
    return found


class Dispatch:
    """The forward pass of a module of experts: tokens, the experts of each, and their weights."""

    def __init__(self, experts: Value, mesh: DeviceMesh):
        self.experts, self.group, self.ranks, self.here = experts, mesh.get_group(), mesh.size(), experts.num_experts // mesh.size()

    def __call__(self, hidden: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        from transformers.integrations.moe import grouped_mm_experts_forward

        tokens, experts_each = top_k_index.shape
        chosen = top_k_index.flatten()
        order = chosen.argsort(stable=True)  # pairs of a token and an expert, by expert
        sent, received, theirs = self.sizes(chosen)
        rows = exchange(hidden[order // experts_each], sent, received, self.group)
        expert = torch.arange(self.here, device=hidden.device).repeat(self.ranks).repeat_interleave(theirs, output_size=len(rows))
        local = LocalExperts(self.experts, self.here, self.ranks)
        one_each = expert[:, None], rows.new_ones(len(rows), 1)
        done = grouped_mm_experts_forward(local, rows, *one_each)  # type: ignore[arg-type]  # it reads attributes alone
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=order.device)
        results = exchange(done, received, sent, self.group)[back].view(tokens, experts_each, -1)
        weighted: Tensor = (results * top_k_weights[..., None].to(results.dtype)).sum(1)
        return weighted.to(hidden.dtype)

    def sizes(self, chosen: Tensor) -> tuple[list[int], list[int], Tensor]:
        """The number of pairs that go to each rank, and that come from each; the latter also by expert, in the order of the ranks."""
        counts = torch.bincount(chosen, minlength=self.here * self.ranks)
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts, group=self.group)
        sent, received = (each.view(self.ranks, self.here).sum(1).tolist() for each in (counts, theirs))
        return sent, received, theirs


class LocalExperts:
    """What transformers' function needs of a module of experts, with those of this rank alone.

    Their gradients are sums over the tokens of all ranks already, where those of other parameters are averaged over the ranks later.
    """

    def __init__(self, experts: nn.Module, number: int, ranks: int):
        self._experts, self._ranks, self.num_experts = experts, ranks, number

    def __getattr__(self, name: str) -> Value:
        found = getattr(self._experts, name)
        if not isinstance(found, Tensor):
            return found
        local = found.to_local() if isinstance(found, DTensor) else found
        return _ScaledGradient.apply(local, 1.0 / self._ranks)  # type: ignore[no-untyped-call]  # torch has no types for it


class _ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(context: Value, tensor: Tensor, scale: float) -> Tensor:
        context.scale = scale
        return tensor.view_as(tensor)

    @staticmethod
    def backward(context: Value, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * context.scale, None


def exchange(rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
    """Rows to the ranks that shall have them: so many to each, so many from each."""
    found: Tensor = _Exchange.apply(rows, sent, received, group)  # type: ignore[no-untyped-call]  # torch has no types for it
    return found


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(context: Value, rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
        context.back = received, sent, group
        found = rows.new_empty(sum(received), *rows.shape[1:])
        dist.all_to_all_single(found, rows.contiguous(), received, sent, group=group)
        return found

    @staticmethod
    def backward(context: Value, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return exchange(gradient, *context.back), None, None, None
