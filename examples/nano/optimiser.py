"""Muon for the matrices inside blocks, AdamW for everything else, over master weights.

The parameters of the model hold what the forward pass uses, which late in training is what the
checkpoint will store; the masters here stay exact. Gradients are taken at the former and applied
to the latter, which is the straight-through estimate.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

MUON_SUFFIXES = (
    "wq_a.weight",
    "attn.wq_b.weight",
    "attn.wkv.weight",
    "wo_a.weight",
    "wo_b.weight",
    "gate_and_up_projs",
    "down_projs",
    "gate_proj.weight",
    "up_proj.weight",
    "down_proj.weight",
    "engram.wkv.weight",
    "main_proj.weight",
    "compressor.wkv.weight",
)


@torch.no_grad()
def orthogonalised(matrix: Tensor, steps: int = 5) -> Tensor:
    """Nearly the orthogonal factor of [..., m, n], by the quintic Newton-Schulz iteration."""
    wide = matrix.shape[-2] <= matrix.shape[-1]
    x = matrix if wide else matrix.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-12)
    for _ in range(steps):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x if wide else x.mT


class Optimiser:
    """Steps masters of named parameters. `muon` and `adam` are the two peak learning rates."""

    def __init__(
        self, named: Iterable[tuple[str, nn.Parameter]], muon: float, adam: float, decay: float
    ) -> None:
        self.parameters = dict(named)
        self.masters = {name: p.detach().clone() for name, p in self.parameters.items()}
        self.first = {name: torch.zeros_like(p) for name, p in self.masters.items()}
        self.second = {
            name: torch.zeros_like(p) for name, p in self.masters.items() if not self._muon(name)
        }
        self.counts = dict.fromkeys(self.masters, 0)
        self.muon, self.adam, self.decay = muon, adam, decay

    def _muon(self, name: str) -> bool:
        return name.endswith(MUON_SUFFIXES)

    @torch.no_grad()
    def step(self, scale: float) -> float:
        """One step at `scale` times the peak rates; returns the norm of the gradient. Parameters
        without a gradient stay."""
        norms = [p.grad.norm() for p in self.parameters.values() if p.grad is not None]
        norm = float(torch.stack(norms).norm()) if norms else 0.0
        for name, parameter in self.parameters.items():
            if parameter.grad is None:
                continue
            gradient, parameter.grad = parameter.grad, None
            master, first = self.masters[name], self.first[name]
            self.counts[name] += 1
            if self._muon(name):
                first.lerp_(gradient, 0.05)
                update = orthogonalised(gradient.lerp(first, 0.95))
                update.mul_(max(1.0, update.shape[-2] / update.shape[-1]) ** 0.5)
                rate = self.muon * scale
                master.mul_(1 - rate * self.decay).add_(update, alpha=-rate)
                continue
            second, count = self.second[name], self.counts[name]
            first.lerp_(gradient, 0.1)
            second.lerp_(gradient.square(), 0.02)
            corrected = (second / (1 - 0.98**count)).sqrt_().add_(1e-9)
            rate = self.adam * scale * self._gain(name)
            if master.dim() > 1 and "_hc." not in name:
                master.mul_(1 - rate * self.decay)
            master.addcdiv_(first, corrected, value=-rate / (1 - 0.9**count))
        return norm

    @staticmethod
    def _gain(name: str) -> float:
        """Learning rates relative to the common one."""
        if name.endswith(
            ("embed_tokens.weight", "engram.embed.weight", "markov_head.embed.weight")
        ):
            return 2.0
        return 1.0

    def state(self) -> dict[str, Any]:
        """Everything to continue from."""
        return {
            "masters": self.masters,
            "first": self.first,
            "second": self.second,
            "counts": self.counts,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        for mine, theirs in (
            (self.masters, state["masters"]),
            (self.first, state["first"]),
            (self.second, state["second"]),
        ):
            for name, value in theirs.items():
                mine[name].copy_(value)
        self.counts = dict(state["counts"])
