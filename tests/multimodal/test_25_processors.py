"""Processors of pictures and videos: arrays as transformers makes them, placeholders, refusals."""

import multimodal_models as small
import numpy as np
import pytest
import torch
import transformers
from helpers import make_llm, workers_of
from PIL import Image

from minivllm import SamplingParams
from minivllm.models.loader import load_config
from minivllm.models.processors import make_processor


class Names:
    """A tokenizer, as far as processors ask it."""

    def convert_ids_to_tokens(self, ids):
        return [f"<{i}>" for i in ids] if isinstance(ids, list) else f"<{ids}>"


def processor_of(directory, tokenizer=None):
    return make_processor(str(directory), load_config(directory).hf_config, tokenizer)


@pytest.fixture(scope="module")
def llava(tmp_path_factory):
    return small.save(small.make_llava("clip", "llama"), tmp_path_factory.mktemp("llava"))


@pytest.fixture(scope="module")
def qwen2_vl(tmp_path_factory):
    theirs = small.make_qwen2_vl()
    directory = small.save_qwen2_vl(theirs, tmp_path_factory.mktemp("qwen2-vl"))
    return theirs, directory


def picture(width, height, seed=0):
    colors = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(colors)


def test_a_text_model_has_none(tmp_path):
    small.transformers.LlamaConfig(architectures=["LlamaForCausalLM"]).save_pretrained(tmp_path)
    assert processor_of(tmp_path) is None


def test_pictures_of_one_size(llava):
    processor = processor_of(llava)
    assert processor.placeholders == {"image": "<image>"}
    assert processor.placeholder_ids == {"image": small.PLACEHOLDER}
    assert processor.max_embeddings == {"image": 16}
    assert processor_of(llava, Names()).placeholders == {"image": f"<{small.PLACEHOLDER}>"}
    theirs = transformers.AutoImageProcessor.from_pretrained(llava)
    for item in (picture(40, 30), picture(7, 90), picture(1, 1), picture(8, 8).convert("L")):
        found = processor.process("image", item)
        want = theirs(item.convert("RGB"), return_tensors="np")["pixel_values"][0]
        assert np.array_equal(found.data["pixel_values"], want)
        assert found.replacement == [small.PLACEHOLDER] * 16
    as_array = processor.process("image", np.asarray(picture(40, 30)))
    same = processor.process("image", picture(40, 30))
    assert np.array_equal(as_array.data["pixel_values"], same.data["pixel_values"])


@pytest.mark.parametrize(
    ("item", "options", "message"),
    [
        (np.zeros((3, 3)), {}, r"a picture's array must be \[height, width, 1, 3 or 4\] of uint8"),
        (np.zeros((0, 4, 3), np.uint8), {}, "size must be at least 1 x 1"),
        (np.zeros((1, 900, 3), np.uint8), {}, "at most 200 times the other, got '900 x 1'"),
        ("cat.png", {}, "a picture must be a PIL image"),
        (picture(9, 9), {"zoom": 2}, "mm_processor_kwargs has no argument 'zoom'"),
        (picture(9, 9), {"size": "large"}, "cannot be processed: .*size"),
        (picture(9, 9), {"size": {"height": 12, "width": 12}},
         r"must be \[1, 3, 24, 24\], which the model reads, got \[1, 3, 12, 12\]"),
    ],
)  # fmt: skip
def test_what_is_no_picture_is_refused(item, options, message, llava):
    with pytest.raises(ValueError, match=message):
        processor_of(llava).process("image", item, **options)


def test_another_modality_is_refused(llava):
    with pytest.raises(ValueError, match="modality must be one of image for this model"):
        processor_of(llava).process("audio", picture(9, 9))


def test_a_directory_without_a_processor_is_named(tmp_path):
    small.make_llava("clip", "llama").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"no image processor can be read from .*preprocessor_"):
        processor_of(tmp_path)


def test_pillow_that_is_not_installed(llava, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(ValueError, match=r"need the package pillow.*minivllm\[multimodal\]"):
        processor_of(llava)


def test_pictures_of_any_size(qwen2_vl):
    _, directory = qwen2_vl
    processor = processor_of(directory, Names())
    assert processor.placeholders == {"image": "<93><95><92>", "video": "<93><94><92>"}
    assert processor.max_embeddings == {"image": 60, "video": 420}
    theirs = transformers.AutoImageProcessor.from_pretrained(directory)
    for size in ((8, 8), (40, 24), (200, 9), (300, 300)):
        found = processor.process("image", picture(*size))
        want = theirs(picture(*size), return_tensors="np")
        assert np.array_equal(found.data["pixel_values"], want["pixel_values"])
        assert found.data["grid_thw"].tolist() == want["image_grid_thw"][0].tolist()
        assert len(found.replacement) == want["image_grid_thw"].prod() // 4 <= 60
    smaller = processor.process(
        "image", picture(300, 300), size={"shortest_edge": 64, "longest_edge": 640}
    )
    assert len(smaller.replacement) <= 10


@pytest.mark.parametrize("num_frames", [1, 2, 5])
def test_frames_come_in_pairs(num_frames, qwen2_vl):
    """A layer of patches has two frames; an odd last one is its own second."""
    _, directory = qwen2_vl
    processor = processor_of(directory)
    frames = [picture(24, 16, seed) for seed in range(num_frames)]
    found = processor.process("video", frames)
    alone = [processor.process("image", frame).data["pixel_values"] for frame in frames]
    layers = (num_frames + 1) // 2
    rows, columns = found.data["grid_thw"][1:]
    assert found.data["grid_thw"][0] == layers
    assert found.replacement == [small.VIDEO] * (layers * rows * columns // 4)
    patches = found.data["pixel_values"].reshape(layers, rows * columns, 3, 2, 4, 4)
    for number in range(2 * layers):
        one = alone[min(number, num_frames - 1)].reshape(rows * columns, 3, 2, 4, 4)
        assert np.array_equal(patches[number // 2, :, :, number % 2], one[:, :, 0])


def test_frames_of_two_sizes_are_refused(qwen2_vl):
    _, directory = qwen2_vl
    with pytest.raises(ValueError, match="the sizes of a video's frames must be the same of all"):
        processor_of(directory).process("video", [picture(24, 16), picture(16, 24)])


def test_generate_with_a_video_and_a_picture(qwen2_vl):
    """Frames as one item, and a picture behind them."""
    theirs, directory = qwen2_vl
    llm = make_llm(directory, block_size=4, max_model_len=200, max_num_batched_tokens=13)
    frames = [picture(24, 16, seed) for seed in range(3)]
    data = {"video": [frames], "image": picture(30, 20)}
    prompt = {"prompt_token_ids": [3, 94, 4, 95, 5], "multi_modal_data": data}
    params = SamplingParams(temperature=0, max_tokens=1)
    (output,) = llm.generate(prompt, params, use_tqdm=False)
    (worker,) = workers_of(llm)
    assert worker.model_runner.encoder_runner.num_encoded == 2
    processor = processor_of(directory)
    features = []
    for modality, item in (("video", frames), ("image", data["image"])):
        found = processor.process(modality, item)
        place = small.PlaceholderRange(0, len(found.replacement))
        features.append(small.MultiModalFeatureSpec(found.data, modality, modality, place))
    best = small.their_grid_logits(theirs, output.prompt_token_ids, features).topk(2)
    assert best.values[0] - best.values[1] > 1e-3
    assert output.outputs[0].token_ids == [int(best.indices[0])]
    assert torch.isfinite(best.values).all()
