"""Muon for the weight matrices, AdamW for everything else.

Muon replaces each matrix' momentum by the nearest orthogonal matrix (all singular values near
one), found with a few Newton-Schulz steps: every direction learns at the same pace, which on
small models needs several times fewer steps than AdamW.
"""

import torch
from torch import nn


class Optimizer:
    """Both methods behind one learning-rate factor (1 at full speed, 0 at the end).

    The embedding is also the output projection, so in every step every token gets some gradient,
    and AdamW makes equal steps of small and large ones: a low rate keeps rare tokens distinct.
    """

    MUON_RATE = 0.02
    EMBEDDING_RATE = 5e-3
    OTHER_RATE = 2e-3

    def __init__(self, network: nn.Module) -> None:
        named = dict(network.named_parameters())
        self.parameters = list(named.values())
        embedding = [p for name, p in named.items() if "embed_tokens" in name]
        others = [p for p in named.values() if p.dim() != 2]
        matrices = [p for name, p in named.items() if p.dim() == 2 and "embed_tokens" not in name]
        self.methods: tuple[torch.optim.Optimizer, ...] = (
            torch.optim.Muon(matrices, lr=self.MUON_RATE, momentum=0.95, weight_decay=0.2),
            torch.optim.AdamW(
                [
                    {"params": embedding, "lr": self.EMBEDDING_RATE},
                    {"params": others, "lr": self.OTHER_RATE},
                ],
                betas=(0.9, 0.98),
                weight_decay=0.0,
            ),
        )
        for group in self._groups():
            group["full_rate"] = group["lr"]

    def _groups(self) -> list[dict]:
        return [group for method in self.methods for group in method.param_groups]

    def step(self, factor: float) -> None:
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for group in self._groups():
            group["lr"] = group["full_rate"] * factor
        for method in self.methods:
            method.step()
            method.zero_grad()

    def state_dict(self) -> list[dict]:
        return [method.state_dict() for method in self.methods]

    def load_state_dict(self, states: list[dict]) -> None:
        for method, state in zip(self.methods, states, strict=True):
            method.load_state_dict(state)
