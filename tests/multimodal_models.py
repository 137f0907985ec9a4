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
    """A prompt's token ids and features; names among the ids of ``parts`` stand for pictures."""
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


# -- Qwen2-VL ----------------------------------------------------------------------------------

VIDEO = 94
PATCH_NUMBERS = 3 * 2 * 4 * 4


def make_qwen2_vl(**text):
    """A Qwen2-VL of transformers with patches of 4 x 4 pixels."""
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
    sizes = {"num_key_value_heads": 2, "intermediate_size": 48, "rope_parameters": rope}
    config = transformers.Qwen2VLConfig(
        vision_config={
            "depth": 2, "embed_dim": 32, "hidden_size": 32, "mlp_ratio": 2, "num_heads": 4,
            "patch_size": 4, "in_channels": 3,
        },
        text_config=_TEXT | sizes | text,
        image_token_id=PLACEHOLDER,
        video_token_id=VIDEO,
        vision_start_token_id=93,
        vision_end_token_id=92,
        tie_word_embeddings=text.get("tie_word_embeddings", False),
    )  # fmt: skip
    return randomized(transformers.Qwen2VLForConditionalGeneration(config))


def save_qwen2_vl(model, directory):
    """Save it with an image processor whose pictures have up to 60 embeddings."""
    model.save_pretrained(directory)
    transformers.Qwen2VLImageProcessorPil(
        patch_size=4, size={"shortest_edge": 64, "longest_edge": 60 * 64}
    ).save_pretrained(directory)
    return directory


def grid_item(name: str, grid: tuple[int, int, int], offset: int) -> MultiModalFeatureSpec:
    """A picture or, of several frames, a video whose patches lie so."""
    frames, rows, columns = grid
    generator = np.random.default_rng(list(name.encode()))
    patches = generator.standard_normal((frames * rows * columns, PATCH_NUMBERS), np.float32)
    data = {"pixel_values": patches, "grid_thw": np.array(grid)}
    modality = "image" if frames == 1 else "video"
    place = PlaceholderRange(offset=offset, length=len(patches) // 4)
    return MultiModalFeatureSpec(data, modality, f"{name}-{grid}", place)


def with_grids(parts: list) -> tuple[list[int], list]:
    """A prompt's token ids and features; grids among the ids of ``parts`` stand for items."""
    token_ids: list[int] = []
    features = []
    for part in parts:
        if isinstance(part, int):
            token_ids.append(part)
            continue
        feature = grid_item("picture", part, len(token_ids))
        features.append(feature)
        token = PLACEHOLDER if feature.modality == "image" else VIDEO
        token_ids += [token] * feature.mm_position.length
    return token_ids, features


def their_grid_logits(model, token_ids: list[int], features: list) -> torch.Tensor:
    """transformers' logits behind a prompt, float32 ``[vocab]``."""
    ids = torch.tensor([token_ids])
    inputs = {"input_ids": ids, "mm_token_type_ids": (ids == PLACEHOLDER) + 2 * (ids == VIDEO)}
    for modality, end in (("image", ""), ("video", "_videos")):
        items = [feature.data for feature in features if feature.modality == modality]
        if items:
            patches = np.concatenate([item["pixel_values"] for item in items])
            grids = np.stack([item["grid_thw"] for item in items])
            inputs[f"pixel_values{end}"] = torch.from_numpy(patches)
            inputs[f"{modality}_grid_thw"] = torch.from_numpy(grids)
    if not features:
        del inputs["mm_token_type_ids"]
    model.model.rope_deltas = None
    with torch.no_grad():
        return model(**inputs).logits[0, -1]
