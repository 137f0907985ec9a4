"""Videos and sounds through the whole engine: the notes' scripts, on small random models."""

import base64

import multimodal_models as small
import numpy as np
import pytest
from picture_chats import data_uri, encoded, image_part, picture, save_small_tokenizer, user, wav

from minivllm import LLM, SamplingParams
from minivllm.multimodal.audio import audio_item, read_audio
from minivllm.multimodal.errors import MediaError
from minivllm.multimodal.parse import items_of

PARAMS = SamplingParams(temperature=0.2, max_tokens=6, seed=1)
VIDEO = "<|vision_start|><|video_pad|><|vision_end|>"


def make(directory, **args):
    return LLM(str(directory), num_gpu_blocks_override=100, dtype="float32", **args)


@pytest.fixture(scope="module")
def seeing(tmp_path_factory):
    directory = tmp_path_factory.mktemp("qwen2-vl")
    small.save_qwen2_vl(small.make_qwen2_vl(), directory)
    names = ["<|vision_end|>", "<|vision_start|>", "<|video_pad|>", "<|image_pad|>"]
    return make(save_small_tokenizer(directory, names), limit_mm_per_prompt={"image": 4})


@pytest.fixture(scope="module")
def hearing(tmp_path_factory):
    directory = tmp_path_factory.mktemp("qwen2-audio")
    small.save_qwen2_audio(small.make_qwen2_audio(), directory)
    names = ["<|audio_eos|>", "<|audio_bos|>", "<|unused|>", "<|AUDIO|>"]
    return make(save_small_tokenizer(directory, names))


def run(llm, prompt):
    (output,) = llm.generate(prompt, PARAMS, use_tqdm=False)
    assert len(output.outputs[0].token_ids) > 0
    return output


def num_encoded(llm):
    return llm.llm_engine.model_runner.encoder_runner.num_encoded


def test_a_video_is_one_item_of_its_frames(seeing):
    frames = [picture(seed, (24, 16)) for seed in range(4)]
    prompt = f"user\n{VIDEO}Why is this video funny?\nassistant\n"
    before = num_encoded(seeing)
    forms = [frames, np.stack([np.asarray(f) for f in frames]), (frames, {"fps": 2}), [frames]]
    outputs = [run(seeing, {"prompt": prompt, "multi_modal_data": {"video": form}})
               for form in forms]  # fmt: skip
    assert num_encoded(seeing) == before + 1, "one video, however it is given"
    counts = {output.prompt_token_ids.count(small.VIDEO) for output in outputs}
    assert counts == {2 * 2 * 3}, "two layers of patches, merged two by two"
    changed = [*frames[:3], picture(9, (24, 16))]
    run(seeing, {"prompt": prompt, "multi_modal_data": {"video": changed}})
    assert num_encoded(seeing) == before + 2
    with pytest.raises(ValueError, match="the sizes of a video's frames must be"):
        run(seeing, {"prompt": prompt, "multi_modal_data": {"video": [frames[0], picture(1)]}})


def test_frames_are_four_pictures_of_a_chat(seeing):
    frames = [image_part(data_uri(encoded(picture(seed, (24, 16))))) for seed in range(4)]
    message = user("What are the animals in these pictures?", *frames)
    (output,) = seeing.chat([message], PARAMS, use_tqdm=False)
    assert output.prompt_token_ids.count(small.PLACEHOLDER) == 4 * 2 * 3
    assert output.prompt.count("<|vision_start|><|image_pad|><|vision_end|>\n") == 4
    own = user("<|image_1|> and <|image_2|>", *frames[:2])
    (output,) = seeing.chat([own], PARAMS, use_tqdm=False)
    assert "<|vision_end|> and <|vision_start|>" in output.prompt


def test_sounds_come_with_their_rate(hearing):
    prompt = "Audio 1: <|audio_bos|><|AUDIO|><|audio_eos|>\nWhat is recited in the audio?"
    sound = small.samples("poem", 8000)
    outputs = [
        run(hearing, {"prompt": prompt, "multi_modal_data": {"audio": form}})
        for form in ([(sound, 16000)], (sound, 16000), sound, [sound], sound.tolist())
    ]
    assert len({output.prompt_token_ids.count(small.PLACEHOLDER) for output in outputs}) == 1
    two = {"prompt": prompt.replace("1: ", "1: <|AUDIO|>"),
           "multi_modal_data": {"audio": [(sound, 16000), (sound[:4000], 8000)]}}  # fmt: skip
    assert run(hearing, two).prompt_token_ids.count(small.PLACEHOLDER) > 1


def test_sounds_of_a_chat_are_wav_files(hearing):
    data = wav(small.samples("poem", 8000))
    parts = [
        {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(),
                                                "format": "wav"}},
        {"type": "audio_url", "audio_url": {"url": data_uri(data, "audio/wav")}},
    ]  # fmt: skip
    before = num_encoded(hearing)
    outputs = [hearing.chat([user("What is it?", part)], PARAMS, use_tqdm=False)[0]
               for part in parts]  # fmt: skip
    assert outputs[0].prompt_token_ids == outputs[1].prompt_token_ids
    assert outputs[0].prompt_token_ids.count(small.PLACEHOLDER) > 1
    assert num_encoded(hearing) == before + 1
    picture_of_it = image_part(data_uri(encoded(picture())))
    with pytest.raises(ValueError, match="this model takes no image; it takes audio"):
        hearing.chat([user("What is it?", picture_of_it)], PARAMS, use_tqdm=False)
    for wrong in (b"", b"ID3", data[:20], encoded(picture())):
        part = {"type": "audio_url", "audio_url": {"url": data_uri(wrong, "audio/wav")}}
        with pytest.raises(ValueError, match="audio 0 of 1: it is no WAV file of 8, 16 or 32 bits"):
            hearing.chat([user("What is it?", part)], PARAMS, use_tqdm=False)


def test_a_wav_file_has_its_samples_and_its_rate():
    sound = np.linspace(-1, 1, 101)
    read, rate = read_audio(wav(sound, 8000))
    assert rate == 8000
    np.testing.assert_allclose(read, sound, atol=1e-4)
    with pytest.raises(MediaError):
        read_audio(b"RIFF")


def test_samples_of_integers_and_of_two_channels():
    both = np.array([[0, 255], [128, 128]], np.uint8)
    read, rate = audio_item((both, 8000))
    assert rate == 8000
    np.testing.assert_allclose(read, [-0.5, 127 / 256], atol=1e-6)
    rows = items_of({"audio": np.zeros((3, 5))})["audio"]
    assert [row.shape for row in rows] == [(5,)] * 3, "without a rate each row is a sound"
