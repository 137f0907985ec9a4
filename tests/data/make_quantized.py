"""Make the layers in tests/data/quantized: packed and dequantized by the reference packages.

Tests read the files and need neither package. They were made once, in an environment of its own
that has torch and transformers, by::

    pip install --no-deps gptqmodel==7.7.0 autoawq==0.2.9
    pip install --no-deps defuser device-smi logbar pypcre tokenicer threadpoolctl  # of gptqmodel
    pip install --no-deps datasets dill multiprocess pandas pyarrow xxhash  # of both
    python tests/data/make_quantized.py

A file has a layer's tensors as a checkpoint has them, the weight that the package makes of them,
and in its metadata the ``quantization_config``. The packages multiply in the dtype of the scales,
so they are given the same scales in float32, in which no product is rounded.
"""

import json
from pathlib import Path

import torch
from awq.modules.linear.gemm import WQLinear_GEMM
from awq.utils.packing_utils import dequantize_gemm
from gptqmodel.nn_modules.qlinear.torch import TorchLinear
from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module
from safetensors.torch import save_file

DIRECTORY = Path(__file__).parent / "quantized"
INPUTS, OUTPUTS, GROUP = 32, 32, 16
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": True, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}
CASES = {
    "gptq_v1_sym": GPTQ,
    "gptq_v1_asym": GPTQ | {"sym": False},
    "gptq_v2_asym": GPTQ | {"sym": False, "checkpoint_format": "gptq_v2"},
    "gptq_desc_act": GPTQ | {"sym": False, "desc_act": True},
    "gptq_8_bits": GPTQ | {"bits": 8, "sym": False},
    "gptq_3_bits": GPTQ | {"bits": 3, "sym": False},
    "awq_gemm": AWQ,
}


def random_layer(config, generator):
    """A linear layer on a grid of codes; scales and zeros ``[OUTPUTS, groups]``, and the groups."""
    half = 2 ** (config["bits"] - 1)
    shape = OUTPUTS, INPUTS // GROUP
    scales = (torch.rand(shape, generator=generator) * 0.05 + 0.01).half().float()
    zeros = torch.full(shape, half)
    if not config.get("sym", False):
        zeros = torch.randint(1, 2 * half, shape, generator=generator)
    groups = torch.arange(INPUTS) // GROUP
    if config.get("desc_act", False):
        groups = groups[torch.randperm(INPUTS, generator=generator)]
    codes = torch.randint(0, 2 * half, (OUTPUTS, INPUTS), generator=generator)
    layer = torch.nn.Linear(INPUTS, OUTPUTS, bias=False).requires_grad_(False)
    layer.weight.copy_((codes - zeros[:, groups]) * scales[:, groups])
    return layer, scales, zeros, groups.int()


def pack_gptq(config, layer, scales, zeros, groups):
    """The layer's tensors, and the weight that they are."""
    keys = "bits", "group_size", "sym", "desc_act"
    packed = TorchLinear(
        **{key: config[key] for key in keys}, in_features=INPUTS, out_features=OUTPUTS
    )
    packed.pack_original(layer, scales, zeros, groups)
    stored = packed.scales
    packed.scales = stored.float()
    weight = packed.dequantize_weight().T
    if "checkpoint_format" not in config:
        convert_gptq_v2_to_v1_format_module(packed, packed)  # it only wants bits and words
    tensors = {kind: getattr(packed, kind) for kind in ("qweight", "qzeros", "g_idx")}
    return tensors | {"scales": stored}, weight


def pack_awq(config, layer, scales, zeros, groups):
    """The layer's tensors, and the weight that they are."""
    packed = WQLinear_GEMM.from_linear(layer, 4, GROUP, scales=scales.T, zeros=zeros.T)
    tensors = {kind: getattr(packed, kind) for kind in ("qweight", "qzeros", "scales")}
    rest = tensors["scales"].float(), 4, GROUP
    return tensors, dequantize_gemm(tensors["qweight"], tensors["qzeros"], *rest).T


if __name__ == "__main__":
    DIRECTORY.mkdir(exist_ok=True)
    for seed, (name, config) in enumerate(CASES.items()):
        pack = {"gptq": pack_gptq, "awq": pack_awq}[config["quant_method"]]
        layer, *grid = random_layer(config, torch.Generator().manual_seed(seed))
        tensors, weight = pack(config, layer, *grid)
        assert torch.equal(weight, layer.weight), name
        tensors = {f"layer.{kind}": tensor for kind, tensor in tensors.items()}
        save_file(
            {key: t.contiguous() for key, t in (tensors | {"dequantized": weight}).items()},
            DIRECTORY / f"{name}.safetensors",
            metadata={"quantization_config": json.dumps(config)},
        )
