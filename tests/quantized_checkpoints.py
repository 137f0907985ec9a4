"""Small random checkpoints of every quantized format, and what each weight in them is.

Packed bit by bit with whole numbers of any length, after the formats' descriptions: nothing here
is shared with the code that reads them.
"""

import json
import math
import shutil

import numpy as np
import torch
from safetensors.torch import load_file, save_file


class Packed:
    """A linear layer's tensors, and the weight they stand for, float32 ``[outputs, inputs]``."""

    def __init__(self, dequantized, /, **tensors):
        self.weight = np.asarray(dequantized, np.float32)
        self.tensors = {
            kind: t if isinstance(t, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(t))
            for kind, t in tensors.items()
        }


def words(numbers, bits):
    """One row of numbers as int32 words: one long number, cut."""
    whole = sum(int(number) << (bits * i) for i, number in enumerate(numbers))
    data = whole.to_bytes(math.ceil(len(numbers) * bits / 32) * 4, "little")
    return np.frombuffer(data, np.int32)


def rows(table, bits):
    return np.stack([words(row, bits) for row in table])


def random_scales(rng, shape, dtype=np.float16):
    return rng.uniform(0.02, 0.06, shape).astype(dtype)


def gptq(rng, inputs, outputs, bits=4, group=32, sym=True, v1=True, desc_act=False):
    group = inputs if group == -1 else group
    groups, half = inputs // group, 2 ** (bits - 1)
    q = rng.integers(0, 2 * half, (inputs, outputs))
    zeros = np.full((groups, outputs), half)
    if not sym:
        zeros = rng.integers(int(v1), 2 * half, (groups, outputs))
    g_idx = np.arange(inputs, dtype=np.int32) // group
    if desc_act:
        g_idx = rng.permutation(g_idx)
    scales = random_scales(rng, (groups, outputs)) * np.float16(8 / half)
    weight = (scales.astype(np.float32)[g_idx] * (q - zeros[g_idx])).T
    return Packed(
        weight, qweight=rows(q.T, bits).T, qzeros=rows(zeros - int(v1), bits), scales=scales,
        g_idx=g_idx,
    )  # fmt: skip


def awq(rng, inputs, outputs, group=32):
    q = rng.integers(0, 16, (inputs, outputs))
    zeros = rng.integers(0, 16, (inputs // group, outputs))
    scales = random_scales(rng, zeros.shape)
    of_group = np.arange(inputs) // group
    weight = (scales.astype(np.float32)[of_group] * (q - zeros[of_group])).T

    def packed(table):
        order = [8 * word + i for word in range(outputs // 8) for i in (0, 2, 4, 6, 1, 3, 5, 7)]
        return rows(table[:, order], 4)

    return Packed(weight, qweight=packed(q), qzeros=packed(zeros), scales=scales)


def pack_quantized(rng, inputs, outputs, bits=4, group=32, asym=False, g_idx=False):
    group = inputs if group == -1 else group
    half = 2 ** (bits - 1)
    q = rng.integers(-half, half, (outputs, inputs))
    zeros = rng.integers(-half, half, (outputs, inputs // group)) * int(asym)
    scales = torch.from_numpy(random_scales(rng, zeros.shape, np.float32)).bfloat16()
    scales = scales * (8 / half)
    of_group = np.arange(inputs, dtype=np.int32) // group
    of_group = rng.permutation(of_group) if g_idx else of_group
    more = {"weight_zero_point": rows((zeros + half).T, bits).T} if asym else {}
    more |= {"weight_g_idx": of_group} if g_idx else {}
    return Packed(
        (q - zeros[:, of_group]) * scales.float().numpy()[:, of_group],
        weight_packed=rows(q + half, bits), weight_scale=scales,
        weight_shape=np.array([outputs, inputs]), **more,
    )  # fmt: skip


def int_quantized(rng, inputs, outputs, strategy="channel", static=False, asym=False):
    q = rng.integers(-127, 128, (outputs, inputs)).astype(np.int8)
    scales = random_scales(rng, (1,) if strategy == "tensor" else (outputs, 1), np.float32) / 16
    more = {"input_scale": np.array([0.03], np.float32)} if static else {}
    more |= {"input_zero_point": np.array([5], np.int8)} if asym else {}
    return Packed(q * scales, weight=q, weight_scale=scales, **more)


def float_quantized(rng, inputs, outputs, strategy="channel", static=False, block=None, inv=False):
    q = torch.from_numpy(rng.normal(0, 60, (outputs, inputs))).to(torch.float8_e4m3fn)
    shape = {"tensor": (1,), "channel": (outputs, 1)}.get(strategy)
    if block:
        shape = math.ceil(outputs / block), math.ceil(inputs / block)
    scales = random_scales(rng, shape, np.float32) / 16
    wide = scales
    if block:
        wide = np.kron(scales, np.ones((block, block), np.float32))[:outputs, :inputs]
    more = {"input_scale": np.array([0.01], np.float32)} if static else {}
    more["weight_scale_inv" if inv else "weight_scale"] = scales
    return Packed(q.float().numpy() * wide, weight=q, **more)


# -- activations of 8 bits, number by number -----------------------------------------------------

E4M3 = [float(v) for v in torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()]


def nearest_e4m3(number):
    """Nearest of all finite numbers that there are; of two the one with an even last bit."""
    codes = [c for c in range(256) if not math.isnan(E4M3[c])]
    return E4M3[min(codes, key=lambda c: (abs(E4M3[c] - number), c % 2))]


def rounded_row(row, kind, scale=None, zero=0, group=None):
    """A token's activations as a format with 8 bits multiplies them."""
    if scale is None and group is not None:
        parts = [row[i : i + group] for i in range(0, len(row), group)]
        return [v for part in parts for v in rounded_row(part, kind)]
    if scale is None:
        most = np.float32(127 if kind == "int8" else 448)
        scale = np.float32(max(abs(v) for v in row)) / most or np.float32(1)
    scale = np.float32(scale)
    if kind == "int8":
        codes = [min(max(round(float(np.float32(v) / scale + zero)), -128), 127) for v in row]
    else:
        codes = [nearest_e4m3(float(np.float32(v) / scale)) for v in row]
    return [np.float32(code - zero) * scale for code in codes]


# -- checkpoints ---------------------------------------------------------------------------------

SIZES = {
    "vocab_size": 50, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 64, "initializer_range": 0.2,
    "eos_token_id": 2, "bos_token_id": None,
}  # fmt: skip


def write_float(family, directory):
    """A random model of a family: Qwen2 with biases, grouped heads and a tied embedding."""
    import transformers

    more = {"tie_word_embeddings": False}
    if family == "Qwen2":
        more = {"num_key_value_heads": 2, "tie_word_embeddings": True}
    torch.manual_seed(3)
    config = getattr(transformers, f"{family}Config")(**SIZES, **more)
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.5)
    model.save_pretrained(directory)
    return directory


def write_quantized(
    source, directory, config, packer, options, skip=(), special=None, old_file=None
):
    """Replace a checkpoint's linear weights; write a twin of floats into it.

    Args:
        source: of the float checkpoint.
        directory: to be made; the twin is in its folder ``twin``.
        config: its quantization_config.
        packer, options: a function above, and its arguments.
        skip: parts of names of the layers that stay as they are.
        special: other options, by a part of names.
        old_file: where the configuration is; None: in config.json.

    Returns:
        What each quantized layer was given, by name.
    """
    rng = np.random.default_rng(0)
    shutil.copytree(source, directory)
    shutil.copytree(source, directory / "twin")
    weights = load_file(source / "model.safetensors")
    twin, packed = dict(weights), {}
    for key, weight in list(weights.items()):
        name = key.removesuffix(".weight")
        if not name.endswith("_proj") or any(part in name for part in skip):
            continue
        del weights[key]
        changes = [more for part, more in (special or {}).items() if part in name]
        packed[name] = packer(rng, *reversed(weight.shape), **(changes or [options])[0])
        weights |= {f"{name}.{kind}": tensor for kind, tensor in packed[name].tensors.items()}
        twin[key] = torch.from_numpy(packed[name].weight)
    save_file(weights, directory / "model.safetensors")
    save_file({k: v.contiguous() for k, v in twin.items()}, directory / "twin/model.safetensors")
    file = directory / (old_file or "config.json")
    there = {} if old_file else json.loads(file.read_text())
    file.write_text(json.dumps(config if old_file else there | {"quantization_config": config}))
    return packed
