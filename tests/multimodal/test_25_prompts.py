"""Prompts with pictures, before an engine has them: their forms, their tokens, what is refused."""

import builtins
import threading

import numpy as np
import pytest
import torch
from picture_attacks import host, network
from picture_chats import (
    NUM_EMBEDS,
    PARTS,
    data_uri,
    encoded,
    image_part,
    picture,
    save_picture_chat,
    user,
)
from PIL import Image

from minivllm import EngineArgs, SamplingParams
from minivllm.engine.input_processor import EngineInput, InputProcessor
from minivllm.entrypoints.chat_parts import ChatMedia
from minivllm.entrypoints.chat_utils import render_chat
from minivllm.multimodal.errors import MediaError
from minivllm.multimodal.processing import ProcessedItem

A, B, C = (picture(seed) for seed in range(3))


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return save_picture_chat(tmp_path_factory.mktemp("pictures"))


def make(directory, **args):
    config = EngineArgs(str(directory), max_model_len=256, **args).create_engine_config()
    return InputProcessor.from_config(config)


@pytest.fixture(scope="module")
def processor(directory):
    return make(directory)


def given(prompt="a<image>b", **parts):
    return {"prompt": prompt, **parts}


def with_image(image, prompt="a<image>b", **parts):
    return given(prompt, multi_modal_data={"image": image}, **parts)


def pixels(processed):
    return processed.mm_features[0].data["pixel_values"]


def hashes(processed):
    return [feature.identifier for feature in processed.mm_features]


# -- forms ---------------------------------------------------------------------------------------


def test_a_placeholder_becomes_as_many_tokens_as_the_picture_has_embeddings(processor):
    own = processor.multimodal.processor.placeholder_ids["image"]
    before, after = processor.tokenizer.encode("a"), processor.tokenizer.encode("b")
    found = processor.preprocess(with_image(A))
    assert found.prompt_token_ids == [*before, *[own] * NUM_EMBEDS, *after]
    (feature,) = found.mm_features
    assert (feature.modality, feature.mm_position.offset) == ("image", len(before))
    assert feature.mm_position.length == NUM_EMBEDS
    assert feature.data["pixel_values"].shape == (3, 24, 24)
    assert feature.data["pixel_values"].dtype == np.float32
    assert found.prompt == "a<image>b"


def test_every_form_of_a_picture_is_the_same_picture(processor):
    array = np.asarray(A)
    forms = [A, [A], (A,), array, [array], array.transpose(2, 0, 1), torch.from_numpy(array.copy()),
             array[None], A.convert("RGBA"), array.astype(np.float32) / 255,
             np.ascontiguousarray(array[::-1])[::-1]]  # fmt: skip
    found = [processor.preprocess(with_image(form)) for form in forms]
    assert {tuple(hashes(one)) for one in found} == {tuple(hashes(found[0]))}
    assert len(hashes(found[0])) == 1
    ids = processor.tokenizer.encode("a<image>b")
    by_ids = processor.preprocess(
        {"prompt_token_ids": ids, "multi_modal_data": {"image": A}, "cache_salt": "x"}
    )
    assert (hashes(by_ids), by_ids.cache_salt) == (hashes(found[0]), "x")


def test_several_pictures_come_in_order_and_may_be_numbered(processor):
    both = processor.preprocess(with_image([A, B], "<image>, <image>!"))
    first, second = both.mm_features
    assert first.mm_position.end < second.mm_position.offset
    alone = [hashes(processor.preprocess(with_image(one)))[0] for one in (A, B)]
    assert hashes(both) == alone
    numbered = processor.preprocess(with_image([A, B], "<|image_1|>, <|image_2|>!"))
    assert numbered.prompt_token_ids == both.prompt_token_ids
    assert hashes(numbered) == alone
    assert numbered.prompt == "<|image_1|>, <|image_2|>!", "what was asked, as it was asked"
    again = processor.preprocess(with_image([A, A], "<image>, <image>!"))
    assert hashes(again) == [alone[0]] * 2


def test_a_prompt_without_pictures_is_as_in_a_text_model(processor):
    ids = processor.tokenizer.encode("Hello")
    for prompt in ("Hello", ids, given("Hello"), given("Hello", multi_modal_data={}),
                   given("Hello", multi_modal_data={"image": []}),
                   given("Hello", multi_modal_data={"image": None}),
                   given("Hello", multi_modal_data=None)):  # fmt: skip
        found = processor.preprocess(prompt)
        assert (found.prompt_token_ids, found.mm_features) == (ids, [])
    found = processor.preprocess(with_image(A))
    assert processor.preprocess(found) is found
    request = processor.make_request("r", found, SamplingParams())
    assert request.mm_features == found.mm_features
    assert request.prompt_token_ids == found.prompt_token_ids


# -- identity ------------------------------------------------------------------------------------


def test_the_same_picture_is_processed_once(directory, monkeypatch):
    processor = make(directory)
    runs = []
    inner = processor.multimodal.processor
    process = inner.process
    monkeypatch.setattr(inner, "process", lambda *a, **k: runs.append(a) or process(*a, **k))
    for image in (A, B, A, A.copy(), B):
        processor.preprocess(with_image(image))
    assert len(runs) == 2
    without = make(directory, mm_processor_cache_gb=0)
    first, second = (without.preprocess(with_image(A)) for _ in range(2))
    assert first.mm_features[0].data is not second.mm_features[0].data
    assert hashes(first) == hashes(second)


def test_options_are_part_of_identity_and_reach_the_processor(processor):
    plain = processor.preprocess(with_image(A))
    other = processor.preprocess(with_image(A, mm_processor_kwargs={"do_rescale": False}))
    assert hashes(plain) != hashes(other)
    assert not np.allclose(pixels(plain), pixels(other))


def test_options_of_the_engine_are_those_of_prompts_without_their_own(directory, processor):
    engine = make(directory, mm_processor_kwargs={"do_rescale": False})
    of_the_prompt = processor.preprocess(with_image(A, mm_processor_kwargs={"do_rescale": False}))
    assert hashes(engine.preprocess(with_image(A))) == hashes(of_the_prompt)
    own = engine.preprocess(with_image(A, mm_processor_kwargs={"do_rescale": True}))
    plain = processor.preprocess(with_image(A))
    assert np.array_equal(pixels(own), pixels(plain))


def test_a_program_s_uuid_is_its_picture_s_identity(directory):
    processor = make(directory)
    named = with_image([A, B], "<image><image>", multi_modal_uuids={"image": ["cat", None]})
    found = processor.preprocess(named)
    assert hashes(found)[0] == "cat"
    assert hashes(found)[1] == hashes(processor.preprocess(with_image(B)))[0]
    other = processor.preprocess(with_image(B, multi_modal_uuids={"image": "cat"}))
    assert other.mm_features[0].data is found.mm_features[0].data, "it is trusted"
    known = processor.preprocess(with_image([None], multi_modal_uuids={"image": ["cat"]}))
    assert known.mm_features[0].data is found.mm_features[0].data, "it need not come again"
    options = {"do_rescale": False}
    changed = with_image(A, multi_modal_uuids={"image": "cat"}, mm_processor_kwargs=options)
    assert hashes(processor.preprocess(changed)) != ["cat"]


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"multi_modal_uuids": {"image": "cat"}, "image": picture(0, (20, 20))},
         r"uuid 'cat' is that of an item of size \(30, 20\), but this one has \(20, 20\)"),
        ({"multi_modal_uuids": {"image": ["a", "b"]}}, "must be 1, one for each item, got 2"),
        ({"multi_modal_uuids": {"image": [5]}}, "must be a non-empty string, or None, got 5"),
        ({"multi_modal_uuids": {"image": [""]}}, "must be a non-empty string"),
        ({"multi_modal_uuids": ["cat"]}, "must be a dict of uuids by modality"),
        ({"multi_modal_uuids": {"video": "cat"}}, "must be None without such an item"),
        ({"multi_modal_uuids": {"dog": "cat"}}, "a modality in multi_modal_uuids must be one of"),
        ({"image": [None]}, "has neither data nor a uuid"),
        ({"image": [None], "multi_modal_uuids": {"image": ["dog"]}}, "no item of uuid 'dog' any"),
    ],
)  # fmt: skip
def test_a_uuid_that_cannot_be(parts, said, directory):
    processor = make(directory)
    processor.preprocess(with_image(A, multi_modal_uuids={"image": "cat"}))
    prompt = with_image(parts.get("image", A))
    prompt |= {name: value for name, value in parts.items() if name != "image"}
    with pytest.raises(ValueError, match=said):
        processor.preprocess(prompt)


# -- what is refused -----------------------------------------------------------------------------

LONG = "<image>" * 40
REFUSED = {
    "too few placeholders": (with_image([A, B]), "has 1 placeholder <image> for 2 images; it ne"),
    "too many placeholders": (with_image(A, LONG), "has 40 placeholders <image> for 1 image; it"),
    "none at all": (with_image(A, "a"), "has 0 placeholders <image> for 1 image; it needs one"),
    "in a user's text": (given("What is <image>?"), "has 1 placeholder <image> for 0 images"),
    "unknown modality": (given(multi_modal_data={"picture": A}), "must be one of image, video, au"),
    "another modality": (given(multi_modal_data={"audio": np.zeros(9)}), "takes no audio; it take"),
    "no dict": (given(multi_modal_data=A), "multi_modal_data must be a dict of items by modality"),
    "a path": (with_image("/etc/passwd"), "image 0 of 1: it must be a picture of PIL or an array"),
    "bytes": (with_image([b"abc"]), "image 0 of 1: it must be a picture of PIL or an array"),
    "0 x 0": (with_image(Image.new("RGB", (0, 0))), "a picture needs pixels, but this one is 0 x"),
    "no height": (with_image(np.zeros((0, 5, 3), np.uint8)), "but this one is 5 x 0"),
    "a line": (with_image(Image.new("RGB", (1, 201))), "200 times as long as it is wide, but"),
    "NaN": (with_image(np.full((9, 9, 3), np.nan)), "must be numbers from 0 to 1 everywhere"),
    "beyond 1": (with_image(np.full((9, 9, 3), 1.5)), "must be numbers from 0 to 1 everywhere"),
    "two dimensions": (with_image(np.zeros((9, 9), np.uint8)), "an array must be [height, width, "),
    "five channels": (with_image(np.zeros((9, 9, 5), np.uint8)), "with 1, 3 or 4 channels"),
    "integers": (with_image(np.zeros((9, 9, 3), np.int64)), "must be uint8 or a float, got 'int6"),
    "an option": (with_image(A, mm_processor_kwargs={"do_magic": 1}), "has no argument 'do_magic'"),
    "an option's value": (with_image(A, mm_processor_kwargs={"size": "big"}), "image 0 of 1: "),
    "no options": (with_image(A, mm_processor_kwargs=[1]), "mm_processor_kwargs must be a dict"),
    "another key": (with_image(A, multi_modal_kwargs={}), "no argument 'multi_modal_kwargs'; did"),
    "ids that are none": ({"prompt_token_ids": [[1]], "multi_modal_data": {"image": A}}, "every i"),
    "numbers out of order": (with_image([A, B], "<|image_2|><|image_1|>"), "in the order of the i"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_in_a_sentence(name, processor):
    prompt, said = REFUSED[name]
    with pytest.raises(ValueError) as refused:
        processor.preprocess(prompt)
    assert said in str(refused.value)


def test_a_truncated_file_that_a_program_has_opened(processor, tmp_path):
    file = tmp_path / "cut.png"
    file.write_bytes(encoded(A)[:-500])
    with pytest.raises(ValueError, match="image 1 of 2: it is a broken picture: it cannot be dec"):
        processor.preprocess(with_image([A, Image.open(file)], "<image><image>"))


def test_more_pictures_than_the_limit_are_refused_with_vllms_sentence(directory):
    few = make(directory, limit_mm_per_prompt="image=2")
    assert few.preprocess(with_image([A, B], "<image><image>"))
    said = (r"^At most 2 image\(s\) may be provided in one prompt. Set `--limit-mm-per-prompt` to "
            "increase this limit.")  # fmt: skip
    with pytest.raises(ValueError, match=said):
        few.preprocess(with_image([A, B, C], "<image><image><image>"))
    with pytest.raises(ValueError, match=r"At most 0 image\(s\) may"):
        make(directory, limit_mm_per_prompt={"image": 0}).preprocess(with_image(A))
    many = make(directory).preprocess(with_image([A] * 20, "<image>" * 20))
    assert len(many.mm_features) == 20, "999 are allowed by default"


def test_a_prompt_with_a_picture_is_not_cut(processor):
    def cut(prompt, keep):
        params = SamplingParams(truncate_prompt_tokens=keep)
        return processor.make_request("r", prompt, params).prompt_token_ids

    assert len(cut(with_image(A), 18)) == 18
    assert len(cut(with_image(A), -1)) == 18
    with pytest.raises(ValueError, match="truncate_prompt_tokens must be at least 18, the token"):
        cut(with_image(A), 17)
    assert len(cut("abcdef", 3)) == 3


def test_without_pillow_a_picture_gets_a_sentence_and_text_none(processor, monkeypatch):
    inner = builtins.__import__

    def without(name, *args, **kwargs):
        if name.partition(".")[0] == "PIL":
            raise ImportError(name)
        return inner(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    assert processor.preprocess("Hello").prompt_token_ids
    for image in (A, np.asarray(A)):
        with pytest.raises(ValueError, match=r"pillow, which is not installed: pip install 'mini"):
            processor.preprocess(with_image(image))


def test_a_processor_that_breaks_is_one_request_s_trouble(processor, monkeypatch):
    def breaks(*args, **kwargs):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(processor.multimodal.processor, "process", breaks)
    with pytest.raises(ValueError, match="image 0 of 1: the model's processor cannot read it: div"):
        processor.preprocess(with_image(picture(99)))


def test_threads_may_process_at_once(directory):
    processor = make(directory)
    images = [picture(seed) for seed in range(6)]
    want = [hashes(processor.preprocess(with_image(image))) for image in images]
    found = {}

    def work(number):
        one = processor.preprocess(with_image(images[number % 6]))
        found[number] = hashes(one), len(one.prompt_token_ids)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: (want[number % 6], 18) for number in range(12)}


# -- a model with breaks between rows, and two modalities ----------------------------------------


class TwoModalities:
    """A processor of pictures with a break behind each row, and of sounds of any length."""

    placeholders = {"image": "<image>", "audio": "<|audio|>"}  # noqa: RUF012
    placeholder_ids = {"image": 1, "audio": 2}  # noqa: RUF012
    max_embeddings = {"image": 4, "audio": 100}  # noqa: RUF012

    def process(self, modality, item, **options):
        if modality == "audio":
            samples, rate = item
            data = {"samples": samples, "rate": np.array(rate)}
            return ProcessedItem(data, [2] * max(1, len(samples) // 10))
        return ProcessedItem({"x": np.asarray(item)}, [1, 1, 9, 1, 1, 9], (True, True, False) * 2)


@pytest.fixture
def two(directory):
    processor = make(directory)
    processor.multimodal.processor = TwoModalities()
    return processor


def test_items_of_several_modalities_come_by_their_place(two):
    sound = np.arange(30, dtype=np.float32)
    prompt = {
        "prompt_token_ids": [5, 2, 6, 1, 2, 7],
        "multi_modal_data": {"image": A, "audio": [(sound, 8000), sound[:9]]},
    }
    found = two.preprocess(prompt)
    assert found.prompt_token_ids == [5, 2, 2, 2, 6, 1, 1, 9, 1, 1, 9, 2, 7]
    places = [(f.modality, f.mm_position.offset, f.mm_position.num_embeds)
              for f in found.mm_features]  # fmt: skip
    assert places == [("audio", 1, 3), ("image", 5, 4), ("audio", 11, 1)]
    assert found.mm_features[0].data["rate"] == 8000


@pytest.mark.parametrize(
    ("sound", "said"),
    [
        ((np.array([0.0, np.nan]), 8000), "its samples must be finite numbers, but some are NaN"),
        (np.array([np.inf]), "its samples must be finite"),
        ((np.zeros(9), 0), "its rate must be a number of samples a second above 0, got 0"),
        ((np.zeros(9), -1), "above 0, got -1"),
        ((np.zeros(9), float("nan")), "above 0, got nan"),
        ((np.zeros(9000), 1e-6), "it may last 600 seconds"),
        (np.zeros(0), "of numbers, got [0] of float64"),
        (np.zeros((2, 2, 2)), "got [2, 2, 2]"),
        ("hello", "of numbers, got"),
        ((np.array(["a"]), 8000), "of numbers, got"),
    ],
)  # fmt: skip
def test_a_sound_that_cannot_be(sound, said, two):
    prompt = {"prompt_token_ids": [2], "multi_modal_data": {"audio": [sound]}}
    with pytest.raises(ValueError) as refused:
        two.preprocess(prompt)
    assert "audio 0 of 1: " in str(refused.value)
    assert said in str(refused.value)


# -- chats ---------------------------------------------------------------------------------------


def chat(processor, *messages, **options):
    media = ChatMedia.of(processor, "model")
    return render_chat(processor.tokenizer, list(messages), media, **options)


URL = data_uri(encoded(A))
START = "<|im_start|>user\n"
END = "<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        (["What?", image_part(URL)], "<image>\nWhat?"),
        ([image_part(URL), "What?", image_part(URL)], "<image>\n<image>\nWhat?"),
        (["In <image> is", image_part(URL)], "In <image> is"),
        (["In <image>", image_part(URL), "and", image_part(URL)], "<image>\nIn <image>\nand"),
        (["In <|image_1|>", "and <|image_2|>", image_part(URL), image_part(URL)],
         "In <image>\nand <image>"),
        ([image_part(URL)], "<image>\n"),
        (["a", "b"], "a\nb"),
    ],
)  # fmt: skip
def test_a_template_of_text_gets_placeholders_in_front(parts, text, processor):
    prompt = chat(processor, user(*parts))
    assert prompt["prompt"] == START + text + END
    found = processor.preprocess(prompt)
    assert len(found.mm_features) == text.count("<image>")


def test_or_where_the_parts_are(directory):
    processor = make(directory, interleave_mm_strings=True)
    prompt = chat(processor, user("a", image_part(URL), "b", image_part(URL)))
    assert prompt["prompt"] == START + "a\n<image>\nb\n<image>" + END
    with pytest.raises(ValueError, match="a message has 2 placeholders <image> in its text, but 1"):
        chat(processor, user("a <image>", image_part(URL)))


@pytest.mark.parametrize("form", ["auto", "openai"])
def test_a_template_that_loops_over_parts_writes_them_itself(form, processor):
    options = {"chat_template": PARTS, "chat_template_content_format": form}
    prompt = chat(processor, user("a", image_part(URL), "b"), **options)
    assert prompt["prompt"] == START + "a<image>\nb" + END
    assert len(processor.preprocess(prompt).mm_features) == 1
    silent = chat(processor, user("a", image_part(URL)), chat_template=PARTS.replace("<image>", ""))
    with pytest.raises(ValueError, match="has 0 placeholders <image> for 1 image; it needs one"):
        processor.preprocess(silent)
    twice = chat(processor, user("a <image>", image_part(URL)), **options)
    with pytest.raises(ValueError, match="has 2 placeholders <image> for 1 image; it needs one"):
        processor.preprocess(twice)


def test_pictures_of_several_messages_come_in_order(processor):
    pil = {"type": "image_pil", "image_pil": B}
    short = {"image_url": data_uri(encoded(C))}
    answer = {"role": "assistant", "content": "A cat."}
    prompt = chat(processor, user("a", image_part(URL)), answer, user("b", pil, short))
    found = processor.preprocess(prompt)
    want = [hashes(processor.preprocess(with_image(one)))[0] for one in (A, B, C)]
    assert hashes(found) == want
    named = chat(processor, user({**pil, "uuid": "dog"}, image_part(URL, uuid="cat")))
    assert hashes(processor.preprocess(named)) == ["dog", "cat"]
    again = chat(processor, user({"type": "image_pil", "image_pil": None, "uuid": "dog"}))
    assert hashes(processor.preprocess(again)) == ["dog"]


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"type": "image_url", "image_url": "https://a.example/b.png"}, "must be a dict with a ur"),
        ({"type": "image_url", "image_url": {}}, "the url of image_url must be a string"),
        ({"type": "image_url", "image_url": {"url": 5}}, "the url of image_url must be a string"),
        ({"type": "image_url"}, "needs image_url, or a uuid of an earlier item"),
        ({"type": "image_url", "image_url": None}, "needs image_url, or a uuid"),
        ({"type": "image_pil"}, "needs image_pil, or a uuid"),
        ({"type": "image_url", "image_url": {"url": "a"}, "uuid": 5}, "uuid must be a non-empty"),
        ({"type": "input_audio", "input_audio": "a"}, "input_audio must be a dict with data"),
        ({"type": "audio_url", "audio_url": {"url": "a"}}, "this model takes no audio; it takes"),
        ({"type": "video_url", "video_url": {"url": "a"}}, "this model takes no video; it takes"),
        ({"type": "image_embeds", "image_embeds": "a"}, "a message's content must be text, or a l"),
    ],
)  # fmt: skip
def test_a_part_that_cannot_be(part, said, processor):
    with pytest.raises(ValueError, match=said):
        chat(processor, user("a", part))


def test_more_placeholders_in_a_text_than_pictures_are_refused(processor):
    said = "a message has 2 placeholders <image> in its text, but 1 image; it needs one for each"
    with pytest.raises(ValueError, match=said):
        chat(processor, user("<image> <image>", image_part(URL)))


def test_a_text_model_is_not_a_multimodal_model(tiny_chat):
    processor = make(tiny_chat)
    with pytest.raises(ValueError, match=r"^model is not a multimodal model$"):
        chat(processor, user("a", image_part(URL)))
    with pytest.raises(ValueError, match="is not a multimodal model"):
        processor.preprocess(with_image(A))
    assert "<image>" in chat(processor, user("a <image> <|image_1|>"))["prompt"], "this is text"


def test_a_picture_comes_from_a_host_only_if_that_is_allowed(directory):
    part = image_part("http://pictures.example/a.png")
    closed = make(directory)
    with pytest.raises(MediaError, match="image 0 of 1: no host is allowed; it would need --allow"):
        closed.preprocess(chat(closed, user("a", part)))
    with host() as port:
        opened = make(directory, allowed_media_domains=["pictures.example"])
        opened.multimodal.connector.network = network(port)
        found = opened.preprocess(chat(opened, user("a", part)))
    assert hashes(found) == hashes(closed.preprocess(with_image(picture(0))))


def test_nothing_is_fetched_for_a_prompt_that_is_refused_anyway(directory):
    allowed = ["pictures.example"]
    processor = make(directory, allowed_media_domains=allowed, limit_mm_per_prompt="image=1")
    asked = []
    processor.multimodal.connector.load_bytes = asked.append
    part = image_part("http://pictures.example/a.png")
    prompt = chat(processor, user("a", part, part))
    (first, _) = prompt["multi_modal_data"]["image"]
    fewer = {"multi_modal_data": {"image": first}, "multi_modal_uuids": None}
    for wrong in (prompt, prompt | fewer):
        with pytest.raises(ValueError, match=r"At most 1|2 placeholders <image> for 1 image"):
            processor.preprocess(wrong)
    assert asked == []


def test_what_is_processed_already_is_an_engine_input(processor):
    assert isinstance(processor.preprocess([1, 2]), EngineInput)
