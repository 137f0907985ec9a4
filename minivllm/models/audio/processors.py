"""Processor of sounds: transformers' own on numpy, and how many placeholders they need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minivllm.models.audio.qwen2_audio import num_embeds
from minivllm.models.language_half import check_modality, placeholder_id, placeholder_texts
from minivllm.multimodal.processing import ProcessedItem
from minivllm.utils.validation import check, check_names

_SILENCE = 4  # moments behind a sound that its last row sees


class Qwen2AudioProcessor:
    """Sounds, as the frequencies of each hundredth of a second."""

    def __init__(self, model: str, hf_config: Any, tokenizer: Any):
        from transformers import AutoFeatureExtractor

        try:
            self.extractor = AutoFeatureExtractor.from_pretrained(
                model, local_files_only=True, trust_remote_code=False
            )
        except Exception as error:
            raise ValueError(
                f"no feature extractor can be read from {model!r} ({error}); a model of sounds has "
                "a preprocessor_config.json."
            ) from error
        most = 2 * hf_config.audio_config.max_source_positions
        found = getattr(self.extractor, "nb_max_frames", None)
        allowed = f"{most}, as max_source_positions in config.json asks for"
        check(
            found == most, "moments that preprocessor_config.json makes of a sound", found, allowed
        )
        token = placeholder_id(hf_config, "audio_token_id", "audio_token_index")
        own = placeholder_texts(tokenizer, audio=token)["audio"]
        around = () if tokenizer is None else ("<|audio_bos|>", "<|audio_eos|>")
        known = {} if tokenizer is None else tokenizer.get_vocab()
        first, last = around if around and all(text in known for text in around) else ("", "")
        self.placeholders: Mapping[str, str] = {"audio": f"{first}{own}{last}"}
        self.placeholder_ids: Mapping[str, int] = {"audio": token}
        self.max_embeddings: Mapping[str, int] = {"audio": num_embeds(most)}

    def process(self, modality: str, item: Any, **mm_processor_kwargs: Any) -> ProcessedItem:
        """See ``MultiModalProcessor.process``: samples, or ``(samples, rate)``.

        A sound that is longer than the model knows is cut, as transformers does.
        """
        check_modality(modality, self.placeholders)
        check_names("mm_processor_kwargs", mm_processor_kwargs, ())
        samples, rate = item if isinstance(item, tuple) else (item, None)
        samples = np.asarray(samples, np.float32)
        samples = samples.mean(0) if samples.ndim == 2 else samples
        target = self.extractor.sampling_rate
        found = self.extractor(
            resample(samples, rate or target, target),
            sampling_rate=target,
            padding="max_length",
            return_attention_mask=True,
            return_tensors="np",
        )
        length = int(found["attention_mask"][0].sum())
        if num_embeds(length) < 1:
            raise ValueError(
                f"a sound of {len(samples)} samples is too short: the model has no embedding of it."
            )
        features = np.asarray(found["input_features"][0, :, : length + _SILENCE], np.float32)
        data = {"input_features": features, "feature_length": np.array(length)}
        return ProcessedItem(data, [self.placeholder_ids["audio"]] * num_embeds(length))


def resample(samples: np.ndarray, rate: float, target: float) -> np.ndarray:
    """Samples at another rate: the same frequencies, without those that it has no room for.

    Args:
        samples: ``[num_samples]``.
        rate, target: samples a second, now and then.
    """
    if rate == target:
        return samples
    num_samples = max(1, round(len(samples) * target / rate))
    frequencies = np.fft.rfft(samples)[: num_samples // 2 + 1]
    found = np.fft.irfft(frequencies, num_samples) * (num_samples / len(samples))
    return found.astype(np.float32)
