"""Small random pooling models of transformers, and what each says of a prompt."""

import json
import random

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

FAMILIES = {
    "Llama": {"num_key_value_heads": 2},
    "Mistral": {"num_key_value_heads": 2, "sliding_window": 64},
    "Qwen2": {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "Qwen3": {"num_key_value_heads": 2, "head_dim": 16},
    "OPT": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "GPT2": {},
}
ENCODERS = {"Bert": {}, "Roberta": {"pad_token_id": 1}, "XLMRoberta": {"pad_token_id": 1}}
VOCAB_SIZE, MAX_LEN = 97, 256
FILE = "model.safetensors"
ST = "sentence_transformers.models"
MODES = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens",
         "weightedmean_tokens", "lasttoken")  # fmt: skip


def make_model(family, kind="Model", seed=7, **changes):
    """A random model: ``kind`` is the end of its class's name."""
    sizes = {
        "vocab_size": VOCAB_SIZE, "hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "max_position_embeddings": MAX_LEN, "bos_token_id": None,
        "eos_token_id": None, "pad_token_id": None,
    }  # fmt: skip
    if family not in ("GPT2", "OPT"):
        sizes |= {"intermediate_size": 48, "tie_word_embeddings": False}
    config = getattr(transformers, f"{family}Config")(
        **sizes | (FAMILIES | ENCODERS)[family] | changes
    )
    if (family, kind) == ("GPT2", "ForCausalLM"):
        kind = "LMHeadModel"
    model = getattr(transformers, f"{family}{kind}")(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_norm = parameter.dim() == 1 and name.endswith("weight")
            parameter.normal_(1.0 if is_norm else 0.0, 0.2, generator=generator)
    return model


def save(model, directory, **changes):
    """Save a checkpoint; ``changes`` are fields of its config.json."""
    model.save_pretrained(directory)
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return directory


def reward_model(directory, architecture, num_labels, seed=11, **changes):
    """A reward model's checkpoint, whose code is not in transformers: a decoder, and two layers."""
    model = make_model("Qwen2", **changes)
    generator = torch.Generator().manual_seed(seed)
    score = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, num_labels))
    with torch.no_grad():
        for parameter in score.parameters():
            parameter.normal_(0.0, 0.2, generator=generator)
    save(model, directory, architectures=[architecture], auto_map={"AutoModel": "its_code.Model"})
    tensors = {f"model.{n}": tensor for n, tensor in load_file(directory / FILE).items()}
    tensors |= {f"score.{name}": tensor for name, tensor in score.state_dict().items()}
    save_file(
        tensors | {"lm_head.weight": torch.zeros(model.config.vocab_size, 32)}, directory / FILE
    )
    return lambda prompt: score(hidden_states(model, prompt)).detach()


def sentence_transformer(directory, mode, dense=(), norm=True):
    """Write the files that Sentence Transformers puts beside a checkpoint."""
    kinds = ["Pooling", *["Dense"] * len(dense), *["Normalize"] * norm]
    modules = [{"idx": 0, "name": "0", "path": "", "type": f"{ST}.Transformer"}]
    for index, kind in enumerate(kinds, 1):
        path = f"{index}_{kind}"
        modules.append({"idx": index, "name": str(index), "path": path, "type": f"{ST}.{kind}"})
        (directory / path).mkdir()
    (directory / "modules.json").write_text(json.dumps(modules))
    modes = {f"pooling_mode_{name}": name == mode for name in MODES}
    config = {"word_embedding_dimension": 32, **modes, "include_prompt": True}
    (directory / "1_Pooling/config.json").write_text(json.dumps(config))
    for index, layer in enumerate(dense, 2):
        config = {
            "in_features": layer.in_features, "out_features": layer.out_features,
            "bias": layer.bias is not None,
            "activation_function": "torch.nn.modules.activation.Tanh",
        }  # fmt: skip
        path = directory / f"{index}_Dense"
        (path / "config.json").write_text(json.dumps(config))
        tensors = {f"linear.{name}": tensor.detach() for name, tensor in layer.named_parameters()}
        save_file(tensors, path / FILE)


def make_prompts(number=50, longest=200, seed=3):
    """Prompts of mixed lengths, the shortest and the longest among them; some begin alike."""
    rng = random.Random(seed)
    lengths = [1, longest, *(rng.randint(1, longest) for _ in range(number - 2))]
    rng.shuffle(lengths)
    common = rng.choices(range(VOCAB_SIZE), k=longest)
    same = [rng.randint(0, n) if rng.random() < 0.5 else 0 for n in lengths]
    return [common[:s] + rng.choices(range(VOCAB_SIZE), k=n - s)
            for n, s in zip(lengths, same, strict=True)]  # fmt: skip


@torch.no_grad()
def hidden_states(model, prompt):
    """float32 ``[len(prompt), hidden_size]``, after the last norm."""
    base = model.base_model
    return base(torch.tensor([prompt])).last_hidden_state[0]


@torch.no_grad()
def logits(model, prompt):
    """float32 ``[num_labels]`` of a classifier of transformers."""
    return model(torch.tensor([prompt])).logits[0]


def normalized(vector):
    return torch.nn.functional.normalize(vector, dim=-1)


def assert_near(found, wanted):
    """Equal to 1e-5 of the largest number, or of 1."""
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        one = torch.as_tensor(one)
        assert (one.shape, one.dtype) == (other.shape, torch.float32)
        most = max(1.0, float(other.abs().max()))
        assert float((one - other).abs().max()) <= 1e-5 * most
