"""Write the picture model as a directory that `transformers` and vLLM load as it is."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import LlavaForConditionalGeneration

from minivllm.embedded import embedded_model_path
from minivllm.embedded.data.chat_format import chat_template
from minivllm.embedded.data.scene_questions import IMAGE
from minivllm.lab.training.vision_network import FILES, picture_config

# A checkpoint of LLaVA names its parts as the hub's first one did.
PREFIXES = {
    "model.language_model.": "language_model.model.",
    "model.vision_tower.vision_model.": "vision_tower.vision_model.",
    "model.vision_tower.": "vision_tower.vision_model.",
    "model.multi_modal_projector.": "multi_modal_projector.",
}


def hub_name(name: str) -> str:
    """A weight's name in a file, by its name in the network."""
    old = next(prefix for prefix in PREFIXES if name.startswith(prefix))
    return PREFIXES[old] + name.removeprefix(old)


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _text_models(name: str) -> dict[str, object]:
    """The content of one of the text model's files."""
    return json.loads((embedded_model_path() / name).read_text(encoding="utf-8"))


def write_preprocessor(directory: Path) -> None:
    """Write how a picture becomes the eye's input: its size, and numbers from -1 to 1."""
    directory.mkdir(parents=True, exist_ok=True)
    _write_json(directory / "preprocessor_config.json", FILES["preprocessor_config"])


def export(network: LlavaForConditionalGeneration, tokenizer: Tokenizer, directory: Path) -> None:
    """Weights are stored in bfloat16; the config asks loaders to compute in float32."""
    write_preprocessor(directory)
    tensors = {
        hub_name(name): tensor.detach().to(torch.bfloat16).contiguous()
        for name, tensor in network.named_parameters()
    }
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(directory / "tokenizer.json"))
    _write_json(directory / "config.json", picture_config(tokenizer))
    _write_json(directory / "processor_config.json", FILES["processor_config"])
    _write_json(directory / "generation_config.json", _text_models("generation_config.json"))
    own = {"chat_template": chat_template("picture_chat_template"), "image_token": IMAGE}
    _write_json(directory / "tokenizer_config.json", _text_models("tokenizer_config.json") | own)
    template = directory / "chat_template.jinja"  # where a processor looks for it
    template.write_text(own["chat_template"], encoding="utf-8")
