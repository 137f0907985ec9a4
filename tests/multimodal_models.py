"""Small random models of transformers that read pictures, and prompts with pictures in them."""

import numpy as np
import torch
import transformers

from minivllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

PLACEHOLDER = 95
EOS = 96
SIDE = 24  # of a picture, in pixels

TOWERS = {"clip": transformers.CLIPVisionConfig, "siglip": transformers.SiglipVisionConfig}
DECODERS = {
    "llama": (transformers.LlamaConfig, {"num_key_value_heads": 2}),
    "mistral": (transformers.MistralConfig, {"num_key_value_heads": 2, "sliding_window": 20}),
    "qwen2": (transformers.Qwen2Config, {"num_key_value_heads": 2}),
    "qwen3": (transformers.Qwen3Config, {"num_key_value_heads": 2, "head_dim": 8}),
    "gpt2": (transformers.GPT2Config, {}),
    "opt": (transformers.OPTConfig, {"ffn_dim": 48, "word_embed_proj_dim": 32}),
}
_TEXT = {
    "vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 256, "bos_token_id": None, "eos_token_id": EOS,
    "pad_token_id": None, "tie_word_embeddings": False,
}  # fmt: skip
_VISION = {
    "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 3,
    "image_size": SIDE, "patch_size": 6,
}  # fmt: skip


def randomized(model):
    """The model with all its numbers random, those too that would stay 0 or 1."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            is_norm = parameter.dim() == 1 and key.endswith("weight")
            parameter.normal_(1.0 if is_norm else 0.0, 0.2, generator=generator)
    return model.eval()


def make_llava(tower: str, decoder: str, **changes):
    """A LLaVA of transformers, whose pictures have 16 embeddings unless ``changes`` say more."""
    text_class, text = DECODERS[decoder]
    if decoder not in ("gpt2", "opt"):
        text = {"intermediate_size": 48, **text}
    config = transformers.LlavaConfig(
        vision_config=TOWERS[tower](**_VISION | changes.pop("vision", {})),
        text_config=text_class(**_TEXT | text | changes.pop("text", {})),
        image_token_index=PLACEHOLDER,
        **{"vision_feature_select_strategy": "full" if tower == "siglip" else "default"} | changes,
    )
    return randomized(transformers.LlavaForConditionalGeneration(config))


def save(model, directory):
    """Save it with its image processor, which is written as a file of the hub has it."""
    model.save_pretrained(directory)
    side = {"height": SIDE, "width": SIDE}
    transformers.SiglipImageProcessorPil(size=side).save_pretrained(directory)
    return directory


def pixels(name: str) -> np.ndarray:
    """A picture as its processor would have scaled it, drawn from its name."""
    generator = np.random.default_rng(list(name.encode()))
    return generator.standard_normal((3, SIDE, SIDE), np.float32)


def with_pictures(parts: list, num_embeds: int = 16) -> tuple[list[int], list]:
    """A prompt's token ids and its features; among the ids of ``parts`` names stand for pictures."""
    token_ids: list[int] = []
    features = []
    for part in parts:
        if isinstance(part, int):
            token_ids.append(part)
            continue
        place = PlaceholderRange(offset=len(token_ids), length=num_embeds)
        data = {"pixel_values": pixels(part)}
        features.append(MultiModalFeatureSpec(data, "image", part, place, part))
        token_ids += [PLACEHOLDER] * num_embeds
    return token_ids, features


def their_logits(model, token_ids: list[int], features: list) -> torch.Tensor:
    """transformers' logits behind a prompt, float32 ``[vocab]``."""
    inputs = {"input_ids": torch.tensor([token_ids])}
    if features:
        stacked = np.stack([feature.data["pixel_values"] for feature in features])
        inputs["pixel_values"] = torch.from_numpy(stacked)
    with torch.no_grad():
        return model(**inputs).logits[0, -1]
