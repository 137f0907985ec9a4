"""Processors of pictures: transformers' own on PIL and numpy, and the placeholders they need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minivllm.models.language_half import check_modality, placeholder_id, placeholder_texts
from minivllm.models.llava import num_image_tokens
from minivllm.multimodal.processing import ProcessedItem
from minivllm.utils.validation import check, check_names

_MOST_LAYERS = 7  # of a video's patches: of the largest frames 14 are counted on, as in vLLM
_MOST_STRETCHED = 200  # how many times as long as the other a picture's side may be


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


class LlavaProcessor:
    """Pictures of one size, each of which has the same number of embeddings."""

    def __init__(self, model: str, hf_config: Any, tokenizer: Any):
        self.read = PictureReader(model)
        token = placeholder_id(hf_config, "image_token_id", "image_token_index")
        vision = hf_config.vision_config
        self.shape = 1, vision.num_channels, vision.image_size, vision.image_size
        self.placeholders: Mapping[str, str] = placeholder_texts(tokenizer, image=token)
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


class Qwen2VLProcessor:
    """Pictures and videos of any size: each has as many embeddings as it has squares of patches.

    A video is a list of frames of one size; two of them make a layer of patches.
    """

    def __init__(self, model: str, hf_config: Any, tokenizer: Any):
        self.read = PictureReader(model)
        tokens = {
            kind: placeholder_id(hf_config, f"{kind}_token_id") for kind in ("image", "video")
        }
        begin = getattr(hf_config, "vision_start_token_id", None)
        end = getattr(hf_config, "vision_end_token_id", None)
        around = [] if tokenizer is None else tokenizer.convert_ids_to_tokens([begin, end])
        first, last = around or ("", "")
        own = placeholder_texts(tokenizer, **tokens)
        self.placeholders: Mapping[str, str] = {
            modality: f"{first}{text}{last}" for modality, text in own.items()
        }
        self.placeholder_ids: Mapping[str, int] = tokens
        size = self.read.processor.size
        side = hf_config.vision_config.patch_size * 2
        most = max(1, int(size["longest_edge"]) // side**2)
        self.max_embeddings: Mapping[str, int] = {"image": most, "video": most * _MOST_LAYERS}

    def process(self, modality: str, item: Any, **mm_processor_kwargs: Any) -> ProcessedItem:
        """See ``MultiModalProcessor.process``."""
        check_modality(modality, self.placeholders)
        is_video = modality == "video"
        frames = list(item) if is_video else [item]
        check(len(frames) > 0, "the number of a video's frames", 0, "at least 1")
        layers = [self._patches(frame, mm_processor_kwargs) for frame in frames]
        sizes = {(rows, columns) for _, rows, columns in layers}
        what = "the sizes of a video's frames"
        check(len(sizes) == 1, what, sorted(sizes), "the same of all")
        ((rows, columns),) = sizes
        patches = [pixels for pixels, _, _ in layers]
        if is_video:
            patches = _in_pairs(patches)
        grid = np.array([len(patches), rows, columns])
        data = {"pixel_values": np.concatenate(patches), "grid_thw": grid}
        replacement = [self.placeholder_ids[modality]] * (int(grid.prod()) // 4)
        return ProcessedItem(data, replacement)

    def _patches(self, frame: Any, options: dict[str, Any]) -> tuple[np.ndarray, int, int]:
        """A picture's patches, ``[rows * columns, numbers]``, and how many rows and columns."""
        found = self.read(frame, **options)
        _, rows, columns = (int(number) for number in found["image_grid_thw"][0])
        return np.asarray(found["pixel_values"], np.float32), rows, columns


def _in_pairs(frames: list[np.ndarray]) -> list[np.ndarray]:
    """Patches of a video's frames, two in one: each frame's are there twice, as a picture's are.

    An odd last one is its own second. A patch's numbers are ``[channel, frame, row, column]``.
    """
    frames = [*frames, *frames[-1:]] if len(frames) % 2 else frames
    pairs = []
    for first, second in zip(frames[::2], frames[1::2], strict=True):
        both = first.reshape(len(first), 3, 2, -1).copy()
        both[:, :, 1] = second.reshape(both.shape)[:, :, 1]
        pairs.append(both.reshape(first.shape))
    return pairs
