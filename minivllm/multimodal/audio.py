"""Sounds: from WAV, and from what a program gives, to samples of one channel and their rate.

(vLLM: vllm/multimodal/media/audio.py, vllm/multimodal/audio.py)
"""

from __future__ import annotations

import wave
from io import BytesIO
from typing import Any

from minivllm.multimodal.errors import MediaError
from minivllm.utils.validation import is_number, shown

MOST_SECONDS = 600  # of a sound
_WIDTHS = {1: "u1", 2: "<i2", 4: "<i4"}  # bytes of a sample


def read_audio(data: bytes) -> tuple[Any, int]:
    """Decode a WAV file without compression: float32 samples ``[num_samples]``, and their rate.

    Raises:
        MediaError: for another format, or a broken file.
    """
    import numpy as np

    try:
        with wave.open(BytesIO(data)) as file:
            kind = _WIDTHS[file.getsampwidth()]
            channels = file.getnchannels()
            rate = file.getframerate()
            frames = file.readframes(file.getnframes())
        samples = np.frombuffer(frames, kind).reshape(-1, channels)
    except Exception as error:
        raise MediaError("it is no WAV file of 8, 16 or 32 bits without compression") from error
    return audio_item((samples.T, rate))


def audio_item(item: Any) -> tuple[Any, float | None]:
    """A sound that a program gives: float32 samples ``[num_samples]``, and their rate or None.

    Args:
        item: an array or list of samples at the model's own rate, or ``(samples, rate)``; samples
            are ``[num_samples]`` or ``[channels, num_samples]``, whose mean is taken; of integers
            the whole range is -1 to 1.

    Raises:
        ValueError: for what is none, samples that are not finite, and a rate of 0.
    """
    import numpy as np

    rate = None
    if isinstance(item, tuple) and len(item) == 2 and np.ndim(item[1]) == 0:
        item, rate = item
        if not is_number(rate) or rate <= 0:
            raise ValueError(f"its rate must be a number of samples a second above 0, got {rate}")
    try:
        samples = np.asarray(item)
    except (TypeError, ValueError) as error:
        raise ValueError(f"it must be an array of samples, got {shown(item)}") from error
    if samples.dtype.kind not in "uif" or samples.ndim not in (1, 2) or samples.size == 0:
        raise ValueError(
            "it must be an array [num_samples] or [channels, num_samples] of numbers, got "
            f"{list(samples.shape)} of {samples.dtype}"
        )
    if samples.dtype.kind in "ui":
        info = np.iinfo(samples.dtype)
        middle = (info.max + info.min + 1) / 2
        samples = (samples - middle) / (info.max - middle + 1)
    samples = samples.astype(np.float32)
    if samples.ndim == 2:
        samples = samples.mean(axis=0)
    if not np.isfinite(samples).all():
        raise ValueError("its samples must be finite numbers, but some are NaN or infinite")
    if rate is not None and len(samples) > MOST_SECONDS * rate:
        raise ValueError(f"it may last {MOST_SECONDS} seconds, got {len(samples) / rate:.0f}")
    return samples, rate
