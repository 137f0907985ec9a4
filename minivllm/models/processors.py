"""make_processor: transformers' own processor of a model's pictures or sounds, and their tokens.

transformers and PIL are imported when they are needed, and torchvision never is. A processor scales
one item and says how many placeholders it needs; the prompt is expanded by who asks for that.
(vLLM: ``_call_hf_processor`` and ``_get_prompt_updates`` of each model's file)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from minivllm.models.language_half import placeholder_id
from minivllm.models.llava import num_image_tokens
from minivllm.multimodal.processing import MultiModalProcessor, ProcessedItem
from minivllm.utils.validation import check, check_names

_MOST_STRETCHED = 200  # how many times as long as the other a picture's side may be


def make_processor(model: str, hf_config: Any, tokenizer: Any) -> MultiModalProcessor | None:
    """Make the processor of a model's items; None of a text model.

    Args:
        model: its directory.
        hf_config: its config.json, as transformers reads it.
        tokenizer: names the placeholders; None: they have their usual names.

    Raises:
        ValueError: if the directory has no such processor, or pillow is not installed.
    """
    architecture = (getattr(hf_config, "architectures", None) or [None])[0]
    make = PROCESSORS.get(architecture)
    return None if make is None else make(model, hf_config, tokenizer)


class PictureReader:
    """transformers' image processor of a directory.

    Args:
        model: the directory, with a preprocessor_config.json.

    Raises:
        ValueError: if it has none, or pillow is not installed.
    """

    def __init__(self, model: str):
        try:
            import PIL  # noqa: F401
        except ImportError as error:
            raise ValueError(
                "pictures need the package pillow, which is not installed: "
                "pip install 'minivllm[multimodal]'."
            ) from error
        import transformers

        new = int(transformers.__version__.split(".")[0]) >= 5
        plain: dict[str, Any] = {"backend": "pil"} if new else {"use_fast": False}
        try:
            self.processor = transformers.AutoImageProcessor.from_pretrained(
                model, local_files_only=True, trust_remote_code=False, **plain
            )
        except Exception as error:
            raise ValueError(
                f"no image processor can be read from {model!r} ({error}); a model of pictures has "
                "a preprocessor_config.json."
            ) from error

    def __call__(self, picture: Any, **options: Any) -> dict[str, np.ndarray]:
        """Scale one picture.

        Args:
            picture: of PIL, or bytes ``[height, width, channels]``.
            options: of transformers' processor.

        Raises:
            ValueError: for a picture or an option that cannot be.
        """
        known = getattr(type(self.processor), "valid_kwargs", None)
        if known is not None:
            check_names("mm_processor_kwargs", options, sorted(known.__annotations__))
        picture = _as_picture(picture)
        try:
            found = self.processor(picture, return_tensors="np", **options)
        except Exception as error:
            raise ValueError(f"the picture cannot be processed: {error}") from error
        return {name: np.asarray(array) for name, array in found.items()}


def _as_picture(item: Any) -> Any:
    """A PIL picture in RGB. Raises ``ValueError`` for what is none, or far too long."""
    from PIL import Image

    if isinstance(item, np.ndarray):
        ok = item.dtype == np.uint8 and item.ndim == 3 and item.shape[2] in (1, 3, 4)
        allowed = "[height, width, 1, 3 or 4] of uint8"
        check(ok, "a picture's array", f"{list(item.shape)} of {item.dtype}", allowed)
        item = Image.fromarray(item[..., 0] if item.shape[2] == 1 else item)
    check(isinstance(item, Image.Image), "a picture", type(item).__name__, "a PIL image, an array")
    short, long = sorted(item.size)
    ok = short > 0 and long <= _MOST_STRETCHED * short
    allowed = f"at least 1 x 1, one side at most {_MOST_STRETCHED} times the other"
    check(ok, "a picture's size", f"{item.width} x {item.height}", allowed)
    return item if item.mode == "RGB" else item.convert("RGB")


def _placeholders(tokenizer: Any, **ids: int) -> dict[str, str]:
    """The text of each modality's placeholder."""
    if tokenizer is None:
        return {modality: f"<{modality}>" for modality in ids}
    return {modality: tokenizer.convert_ids_to_tokens(token) for modality, token in ids.items()}


class LlavaProcessor:
    """Pictures of one size, each of which has the same number of embeddings."""

    def __init__(self, model: str, hf_config: Any, tokenizer: Any):
        self.read = PictureReader(model)
        token = placeholder_id(hf_config, "image_token_id", "image_token_index")
        vision = hf_config.vision_config
        self.shape = 1, vision.num_channels, vision.image_size, vision.image_size
        self.placeholders: Mapping[str, str] = _placeholders(tokenizer, image=token)
        self.placeholder_ids: Mapping[str, int] = {"image": token}
        self.max_embeddings: Mapping[str, int] = {"image": num_image_tokens(hf_config)}

    def process(self, modality: str, item: Any, **mm_processor_kwargs: Any) -> ProcessedItem:
        """See ``MultiModalProcessor.process``."""
        check_modality(modality, self.placeholders)
        pixels = self.read(item, **mm_processor_kwargs)["pixel_values"]
        allowed = f"{list(self.shape)}, which the model reads"
        what = "the shape of a picture that the image processor has scaled"
        check(pixels.shape == self.shape, what, list(pixels.shape), allowed)
        token = self.placeholder_ids["image"]
        replacement = [token] * self.max_embeddings["image"]
        return ProcessedItem({"pixel_values": np.asarray(pixels[0], np.float32)}, replacement)


def check_modality(modality: str, known: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` for a modality that a model does not read."""
    check(modality in known, "modality", modality, f"one of {', '.join(known)} for this model")


PROCESSORS: dict[str, Callable[[str, Any, Any], MultiModalProcessor]] = {
    "LlavaForConditionalGeneration": LlavaProcessor,
}
