"""Muon for the weight matrices, AdamW for everything else.

Muon replaces each matrix' momentum by the nearest orthogonal matrix (all singular values near
one), found with a few Newton-Schulz steps: every direction learns at the same pace, which on
small models needs several times fewer steps than AdamW.
"""

import torch
from torch import Tensor, nn


def orthogonalize(matrices: Tensor, steps: int = 5) -> Tensor:
    """Push the singular values of matrices [count, rows, columns] (rows <= columns) to about 1."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = (matrices / (matrices.norm(dim=(1, 2), keepdim=True) + 1e-7)).bfloat16()
    for _ in range(steps):
        gram = x @ x.transpose(1, 2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.to(matrices.dtype)


class Muon:
    """Matrices of equal shape are stacked, so that one batched product serves all of them."""

    def __init__(self, matrices: list[nn.Parameter], momentum: float, decay: float) -> None:
        self.momentum, self.decay = momentum, decay
        self.groups: dict[tuple[int, int], list[nn.Parameter]] = {}
        for matrix in matrices:
            self.groups.setdefault(tuple(matrix.shape), []).append(matrix)
        self.buffers = {
            shape: torch.zeros(len(group), *shape) for shape, group in self.groups.items()
        }

    @torch.no_grad()
    def step(self, rate: float) -> None:
        for shape, group in self.groups.items():
            gradients = torch.stack([matrix.grad for matrix in group])
            buffer = self.buffers[shape]
            buffer.lerp_(gradients, 1 - self.momentum)
            update = gradients.lerp(buffer, self.momentum)
            rows, columns = shape
            if rows > columns:
                update = orthogonalize(update.transpose(1, 2)).transpose(1, 2)
            else:
                update = orthogonalize(update)
            scale = rate * max(1.0, rows / columns) ** 0.5
            for matrix, change in zip(group, update, strict=True):
                matrix.mul_(1 - rate * self.decay).sub_(scale * change)


class Optimizer:
    """Both methods behind one learning-rate factor (1 at full speed, 0 at the end).

    The embedding is also the output projection, so in every step every token gets some gradient,
    and AdamW makes equal steps of small and large ones: a low rate keeps rare tokens distinct.
    """

    MUON_RATE, EMBEDDING_RATE, VECTOR_RATE = 0.02, 5e-3, 2e-3

    def __init__(self, network: nn.Module) -> None:
        self.parameters = list(network.parameters())
        named = dict(network.named_parameters())
        embedding = [p for name, p in named.items() if "embed_tokens" in name]
        vectors = [p for p in named.values() if p.dim() == 1]
        matrices = [p for name, p in named.items() if p.dim() == 2 and "embed_tokens" not in name]
        self.muon = Muon(matrices, momentum=0.95, decay=0.2)
        groups = [
            {"params": embedding, "rate": self.EMBEDDING_RATE},
            {"params": vectors, "rate": self.VECTOR_RATE},
        ]
        self.adam = torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-8, weight_decay=0.0)

    def step(self, factor: float) -> None:
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.muon.step(self.MUON_RATE * factor)
        for group in self.adam.param_groups:
            group["lr"] = group["rate"] * factor
        self.adam.step()
        for parameter in self.parameters:
            parameter.grad = None

    def state_dict(self) -> dict:
        return {"muon": self.muon.buffers, "adam": self.adam.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        self.muon.buffers = state["muon"]
        self.adam.load_state_dict(state["adam"])
