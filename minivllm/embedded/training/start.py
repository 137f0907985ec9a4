"""Begin a training with the weights of another checkpoint."""

from pathlib import Path

import torch
from tokenizers import Tokenizer

from minivllm.embedded.training.export import load_network
from minivllm.embedded.training.network import Network
from minivllm.embedded.training.tokenization import load_tokenizer


@torch.no_grad()
def take_over(network: Network, tokenizer: Tokenizer, directory: Path) -> None:
    """Copy the weights of the checkpoint in `directory`, which has the same sizes.

    The vocabularies may differ: a token that the old tokenizer lacks begins as the mean of the
    tokens into which the old one cuts its text.
    """
    old, old_tokenizer = load_network(directory).state_dict(), load_tokenizer(directory)
    known, table = old_tokenizer.get_vocab(), old["model.embed_tokens.weight"]
    embedding = torch.empty(tokenizer.get_vocab_size(), table.shape[1])
    for token, index in tokenizer.get_vocab().items():
        if token in known:
            embedding[index] = table[known[token]]
        else:
            pieces = old_tokenizer.encode(tokenizer.decode([index]), add_special_tokens=False).ids
            embedding[index] = table[pieces].mean(0)
    network.load_state_dict({**old, "model.embed_tokens.weight": embedding})
