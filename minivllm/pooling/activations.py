"""Activations behind a classifier: what turns logits into probabilities, or leaves them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Activation = Callable[[torch.Tensor], torch.Tensor]

_BY_PROBLEM: dict[str, Activation] = {
    "regression": lambda logits: logits,
    "single_label_classification": lambda logits: logits.softmax(-1),
    "multi_label_classification": torch.sigmoid,
}
_PREFIX = "torch.nn.modules."


def classifier_activation(hf_config: Any, num_labels: int) -> Activation:
    """The activation that a classifier's config.json asks for.

    That is by ``problem_type``; else by the function that Sentence Transformers has written there;
    else sigmoid for one label and softmax for more. ``[..., num_labels]`` in and out.

    Raises:
        ValueError: for a function that is not one of torch's modules: nothing else is run.
    """
    problem = getattr(hf_config, "problem_type", None) or ""
    if problem in _BY_PROBLEM:
        return _BY_PROBLEM[problem]
    of_library = getattr(hf_config, "sentence_transformers", None)
    name = of_library.get("activation_fn") if isinstance(of_library, dict) else None
    if name is None:
        name = getattr(hf_config, "sbert_ce_default_activation_function", None)
    if name is None:
        return torch.sigmoid if num_labels == 1 else _BY_PROBLEM["single_label_classification"]
    kind = getattr(torch.nn, str(name).rpartition(".")[2], None)
    try:
        if not str(name).startswith(_PREFIX) or kind is None:
            raise TypeError("it is no module of torch")
        return kind(dim=-1) if kind in (torch.nn.Softmax, torch.nn.LogSoftmax) else kind()
    except TypeError as error:  # or a module that is no function of one tensor
        raise ValueError(
            f"activation_fn={name!r} in config.json is not a function of {_PREFIX}*; no code that "
            "comes with a model is ever run."
        ) from error
