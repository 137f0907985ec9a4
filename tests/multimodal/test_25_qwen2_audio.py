"""Qwen2-Audio against transformers: from samples to logits, and through the engine."""

import random

import multimodal_models as small
import numpy as np
import pytest
import torch
import transformers
from helpers import make_llm, workers_of

from minivllm import SamplingParams
from minivllm.lab import oracle
from minivllm.models.audio.processors import resample
from minivllm.models.loader import load_config, load_encoder, load_model
from minivllm.models.processors import make_processor
from minivllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

CPU = torch.device("cpu")
RATE = 16000
LENGTHS = [12000, 1500, 16000, 4321, 30000]  # samples; the last is longer than the model knows


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    directory = tmp_path_factory.mktemp("qwen2-audio")
    theirs = small.make_qwen2_audio()
    return theirs, small.save_qwen2_audio(theirs, directory)


@pytest.fixture(scope="module")
def processor(checkpoint):
    _, directory = checkpoint
    return make_processor(str(directory), load_config(directory).hf_config, None)


def their_logits(theirs, directory, token_ids, sounds):
    """transformers' logits behind a prompt that has all placeholders of these samples."""
    inputs = {"input_ids": torch.tensor([token_ids])}
    if sounds:
        extractor = transformers.AutoFeatureExtractor.from_pretrained(directory)
        found = extractor(
            sounds, sampling_rate=RATE, padding="max_length", return_attention_mask=True,
            return_tensors="pt",
        )  # fmt: skip
        inputs["input_features"] = found["input_features"]
        inputs["feature_attention_mask"] = found["attention_mask"]
    with torch.no_grad():
        return theirs(**inputs).logits[0, -1]


def with_sounds(processor, parts):
    """A prompt's token ids and its features; samples among the ids of ``parts`` are sounds."""
    token_ids = []
    features = []
    for part in parts:
        if isinstance(part, int):
            token_ids.append(part)
            continue
        item = processor.process("audio", (part, RATE))
        place = PlaceholderRange(len(token_ids), len(item.replacement))
        features.append(MultiModalFeatureSpec(item.data, "audio", f"{len(part)}", place))
        token_ids += item.replacement
    return token_ids, features


@pytest.mark.bits
@pytest.mark.parametrize("num_sounds", [0, 1, 2, 3])
def test_logits_are_those_of_transformers(num_sounds, checkpoint, processor):
    theirs, directory = checkpoint
    config = load_config(directory)
    model = load_model(directory, config, torch.float32, CPU)
    encoder = load_encoder(directory, config, torch.float32, CPU)
    rng = random.Random(num_sounds)
    sounds = [small.samples(f"{n}", n) for n in rng.sample(LENGTHS, num_sounds)]
    parts = [5, 6]
    for sound in sounds:
        parts += [sound, *rng.choices(range(90), k=rng.randint(1, 4))]
    token_ids, features = with_sounds(processor, parts)
    given = oracle.encode(encoder, features, CPU)
    got = oracle.next_token_logits(model, token_ids, given)
    want = their_logits(theirs, directory, token_ids, sounds)
    torch.testing.assert_close(got, want, atol=1e-4, rtol=0)


def test_sounds_of_a_batch_are_those_of_each_alone(checkpoint, processor):
    _, directory = checkpoint
    encoder = load_encoder(directory, load_config(directory), torch.float32, CPU)
    items = [processor.process("audio", (small.samples("a", n), RATE)) for n in LENGTHS]
    backend = oracle.make_backend("paged_torch", CPU)
    together = encoder.encode("audio", [item.data for item in items], backend)
    for item, found in zip(items, together, strict=True):
        (alone,) = encoder.encode("audio", [item.data], backend)
        torch.testing.assert_close(found, alone, atol=1e-5, rtol=0)
        assert len(found) == len(item.replacement)
    _, item, length = encoder.largest_item(3)
    assert len(encoder.encode("audio", [item], backend)[0]) == length == small.MOMENTS // 4


def test_generate_with_sounds(checkpoint):
    """Samples with their rate, in stereo or at another rate, and a text beside them."""
    theirs, directory = checkpoint
    llm = make_llm(directory, block_size=4, max_model_len=100, max_num_batched_tokens=11)
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    token = small.PLACEHOLDER
    sound = small.samples("song", 9000)
    slow = resample(sound, RATE, RATE / 2)
    prompts = [
        {"prompt_token_ids": [3, token, 4], "multi_modal_data": {"audio": [(sound, RATE)]}},
        {"prompt_token_ids": [7, 8]},
        {
            "prompt_token_ids": [token, 9, token, 4],
            "multi_modal_data": {"audio": [(np.stack([sound, sound]), RATE), (slow, RATE // 2)]},
        },
    ]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    (worker,) = workers_of(llm)
    assert worker.model_runner.encoder_runner.num_encoded == 2  # stereo is the mono of both
    sounds = [[sound], [], [sound, resample(slow, RATE / 2, RATE)]]
    for output, given in zip(outputs, sounds, strict=True):
        best = their_logits(theirs, directory, output.prompt_token_ids, given).topk(2)
        assert best.values[0] - best.values[1] > 1e-3
        assert output.outputs[0].token_ids[0] == int(best.indices[0])


@pytest.mark.parametrize("target", [8000, 22050, 44100, 16001])
def test_a_tone_at_another_rate_is_the_same_tone(target):
    seconds = np.arange(RATE) / RATE
    tone = np.sin(2 * np.pi * 440 * seconds).astype(np.float32)
    found = resample(tone, RATE, target)
    want = np.sin(2 * np.pi * 440 * np.arange(target) / target)
    assert found.dtype == np.float32
    assert np.abs(found - want).max() < 1e-3


def test_what_has_no_room_at_a_lower_rate_is_left_out():
    seconds = np.arange(RATE) / RATE
    high = np.sin(2 * np.pi * 7000 * seconds).astype(np.float32)
    assert np.abs(resample(high, RATE, 8000)).max() < 1e-3


def test_a_sound_without_an_embedding_is_refused(processor):
    with pytest.raises(ValueError, match="a sound of 100 samples is too short"):
        processor.process("audio", (small.samples("a", 100), RATE))
    with pytest.raises(ValueError, match="mm_processor_kwargs has no argument 'speed'"):
        processor.process("audio", (small.samples("a", 4000), RATE), speed=2)
