"""Small random models of transformers, of every family, and their checkpoints in PyTorch's form."""

import json
import shutil

import torch
import transformers
from safetensors.torch import load_file

LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e4, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16,
}  # fmt: skip
TYPES = ["sliding_attention", "full_attention", "sliding_attention"]

# family, what differs from the small model below, and how long a sequence may be at most
CONFIGS = {
    "llama": ("Llama", {}, 64),
    "llama-grouped-tied": ("Llama", {"num_key_value_heads": 2, "tie_word_embeddings": True}, 64),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 24}, 64),
    "llama-llama3": ("Llama", {"rope_parameters": LLAMA3, "num_key_value_heads": 1}, 64),
    "llama-linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 3.0,
                     "rope_theta": 1e4}}, 192),
    "llama-dynamic": ("Llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 3.0,
                      "rope_theta": 1e4}}, 64),
    "llama-yarn": ("Llama", {"rope_parameters": YARN}, 64),
    "llama-yarn-not-longer": ("Llama", {"rope_parameters": YARN | {
                              "original_max_position_embeddings": 64}}, 64),
    "llama-yarn-no-factor": ("Llama", {"rope_parameters": YARN | {"factor": None}}, 64),
    "mistral": ("Mistral", {"sliding_window": 7, "num_key_value_heads": 2}, 64),
    "mistral-no-window": ("Mistral", {"sliding_window": None, "head_dim": 16}, 64),
    "qwen2": ("Qwen2", {"num_key_value_heads": 2, "tie_word_embeddings": True}, 64),
    "qwen2-window": ("Qwen2", {"use_sliding_window": True, "sliding_window": 5,
                     "max_window_layers": 1}, 64),
    "qwen2-yarn": ("Qwen2", {"rope_parameters": YARN | {"mscale": 2.0, "mscale_all_dim": 0.5,
                   "truncate": False}}, 64),
    "qwen3": ("Qwen3", {"num_key_value_heads": 2, "head_dim": 24}, 64),
    "qwen3-biases-tied": ("Qwen3", {"attention_bias": True, "tie_word_embeddings": True,
                          "head_dim": 8}, 64),
    "gemma3": ("Gemma3", {"sliding_window": 5, "num_key_value_heads": 2, "head_dim": 16,
               "layer_types": TYPES, "query_pre_attn_scalar": 24}, 64),
    "gemma3-linear-untied": ("Gemma3", {"sliding_window": 9, "num_key_value_heads": 1,
                             "head_dim": 8, "rope_parameters": {"full_attention": {
                                 "rope_type": "linear", "factor": 4.0, "rope_theta": 5e4}},
                             "sliding_window_pattern": 2, "attention_bias": True,
                             "final_logit_softcapping": 7.0, "tie_word_embeddings": False}, 64),
    "opt": ("OPT", {"ffn_dim": 48}, 64),
    "opt-gelu-untied": ("OPT", {"ffn_dim": 40, "activation_function": "gelu", "enable_bias": False,
                        "tie_word_embeddings": False}, 64),
    "gpt2": ("GPT2", {}, 64),
    "gpt2-inner-untied": ("GPT2", {"n_inner": 56, "activation_function": "relu",
                          "tie_word_embeddings": False}, 64),
}  # fmt: skip


def make_model(family: str, **changes):
    """A small random model of transformers; numbers that would stay 1 or 0 are random, too."""
    sizes = {
        "vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
        "max_position_embeddings": 64, "bos_token_id": None, "eos_token_id": 96,
        "pad_token_id": None,
    }  # fmt: skip
    if family not in ("GPT2", "OPT"):
        is_tied = family == "Gemma3"
        sizes |= {"intermediate_size": 48, "num_key_value_heads": 4, "tie_word_embeddings": is_tied}
    if family == "OPT":
        sizes |= {"word_embed_proj_dim": 32}
    text = "Text" if family == "Gemma3" else ""
    config = getattr(transformers, f"{family}{text}Config")(**sizes | changes)
    name = "GPT2LMHeadModel" if family == "GPT2" else f"{family}ForCausalLM"
    generator = torch.Generator().manual_seed(7)
    model = getattr(transformers, name)(config).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            is_norm = parameter.dim() == 1 and key.endswith("weight")
            parameter.normal_(1.0 if is_norm else 0.0, 0.3, generator=generator)
    return model


def as_bin(source, target, shards=1, **kwargs):
    """The same checkpoint in PyTorch's format."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors*"))
    weights = {}
    for file in sorted(source.glob("*.safetensors")):
        weights |= load_file(file)
    names = sorted(weights)
    files = ["pytorch_model.bin"] if shards == 1 else [
        f"pytorch_model-{i + 1:05}-of-{shards:05}.bin" for i in range(shards)
    ]  # fmt: skip
    for i, file in enumerate(files):
        torch.save({n: weights[n] for n in names[i::shards]}, target / file, **kwargs)
    if shards > 1:
        weight_map = {n: files[i % shards] for i, n in enumerate(names)}
        index = {"metadata": {}, "weight_map": weight_map}
        (target / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return target
