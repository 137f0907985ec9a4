"""The picture model that ships: its files, and what it answers through transformers."""

import io
import random
import re

import pytest
import torch
from helpers import AT_NIGHT, nightly
from PIL import Image, ImageDraw
from transformers import AutoImageProcessor, AutoProcessor, AutoTokenizer

from minivllm import LLM, SamplingParams, embedded_model_path, embedded_vision_path
from minivllm.embedded.data.chat_format import chat_template
from minivllm.embedded.data.corpus import samples
from minivllm.embedded.data.scene_cases import picture_cases, rates
from minivllm.embedded.data.scene_questions import prompt
from minivllm.lab.training import vision, vision_evaluate
from minivllm.lab.training.curriculum import VISION_PLAN
from minivllm.lab.training.manifest import data_hashes, file_hashes, read_manifest
from minivllm.lab.training.scene_drawing import picture
from minivllm.lab.training.suites import all_suites
from minivllm.lab.training.tokenization import load_tokenizer
from minivllm.lab.training.vision_batches import Rows, fingerprint, image_processor, stack
from minivllm.lab.training.vision_network import (
    PATCHES,
    load_picture_network,
    make_picture_network,
    picture_tokenizer,
)

VISION = embedded_vision_path()
MEGABYTE = 1_000_000
TEXT_MODEL = "220fd306bb298735572a55bfdcecd75d67b656f069a5d9894cf031cdd17d3344"
"""SHA-256 of the text model's weights, from which the picture model was trained."""
CONTENT = "What is the content of this image?"


def test_it_is_small_and_reads_long_prompts():
    assert sum(path.stat().st_size for path in VISION.rglob("*")) <= 10.5 * MEGABYTE
    config = load_picture_network(VISION).config
    assert (config.model_type, config.vision_config.model_type) == ("llava", "siglip_vision_model")
    assert config.text_config.model_type == "qwen2"
    assert config.text_config.max_position_embeddings >= 4096
    assert config.image_seq_length == PATCHES == 64


def test_manifest_fits_the_files_the_scenes_and_the_text():
    manifest = read_manifest(VISION)
    seed = manifest["seed"]
    assert manifest["files"] == file_hashes(VISION)
    assert manifest["data"] == {
        "scenes and questions": fingerprint(seed),
        **data_hashes(seed, VISION_PLAN.stages[1:]),
    }


def test_the_text_models_files_are_as_they_were():
    directory = embedded_model_path()
    assert file_hashes(directory) == read_manifest(directory)["files"]
    assert file_hashes(directory)["model.safetensors"] == TEXT_MODEL


# Tokens and templates


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(VISION)


def test_the_tokenizer_is_the_text_models_with_new_words(tokenizer):
    assert picture_tokenizer().to_str() == load_tokenizer(VISION).to_str()
    text_model = AutoTokenizer.from_pretrained(embedded_model_path())
    assert tokenizer.get_vocab().items() >= text_model.get_vocab().items()
    for word in ("<image>", "circle", "red", "bottom"):
        assert len(tokenizer.encode(word)) == 1
    for text in ("hundred", "The capital of Peru is Lima.", "| 12 | Ann Lee |"):
        assert tokenizer.encode(text) == text_model.encode(text)


def test_its_template_writes_text_chats_as_the_text_models(tokenizer):
    source = samples(VISION_PLAN.stages[1].mixture, 4)
    text_model = AutoTokenizer.from_pretrained(embedded_model_path())
    chats = [
        [{"role": "user", "content": "Hi!"}],
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": next(source).text},
        ],
        [
            {"role": "user", "content": "Look it up."},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}] * 2,
            },
            {"role": "tool", "content": "{}"},
            {"role": "assistant", "content": "Done."},
        ],
    ]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    for chat in chats:
        for given in (None, tools):
            for open_end in (False, True):
                one, other = (
                    t.apply_chat_template(
                        chat, tools=given, tokenize=False, add_generation_prompt=open_end
                    )
                    for t in (tokenizer, text_model)
                )
                assert one == other
    assert tokenizer.chat_template == chat_template("picture_chat_template")


def test_its_template_takes_parts_in_their_order(tokenizer):
    question = {"type": "text", "text": CONTENT}
    image = {"type": "image"}
    for parts, form in (([image, question], "chat"), ([question, image], "text first")):
        chat = [{"role": "user", "content": parts}]
        rendered = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        assert rendered == prompt(form, 1, CONTENT)
    chat = [{"role": "user", "content": [image, image, question]}]
    rendered = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert rendered == prompt("chat", 2, CONTENT)


# Training


@pytest.fixture(scope="module")
def rows():
    rng = random.Random(5)
    maker = Rows(picture_tokenizer())
    return [maker.draw(rng) for _ in range(60)]


def read_by(row, branch, end=None):
    """Places in a row of the tokens of a question and of all that it reads."""
    return [i for i, b in enumerate(row.branch[:end]) if b in (0, branch)]


def test_each_question_of_a_row_is_a_prompt_of_its_own(rows, tokenizer):
    """The text before an answer has the same tokens as a whole, each in its place."""
    image = tokenizer.convert_tokens_to_ids("<image>")
    for row in rows:
        for _, first, _ in row.answers:
            before = read_by(row, row.branch[first], end=first)
            assert [row.positions[i] for i in before] == list(range(len(before)))
            ids = [row.ids[i] for i in before]
            text = tokenizer.decode(ids).replace("<image>" * PATCHES, "<image>")
            again = tokenizer.encode(text)
            assert ids == [i for t in again for i in [t] * (PATCHES if t == image else 1)]


@torch.no_grad()
def test_questions_in_one_row_do_not_see_each_other(rows):
    network = make_picture_network(picture_tokenizer(), seed=1).eval()
    row = next(row for row in rows if len(row.scenes) == 1)
    batch = stack([row])
    together = network(
        input_ids=batch.ids,
        pixel_values=batch.pixels,
        attention_mask=batch.seen,
        position_ids=batch.positions,
    ).logits[0]
    for branch in (1, max(row.branch)):
        chosen = read_by(row, branch)
        alone = network(input_ids=batch.ids[:, chosen], pixel_values=batch.pixels).logits[0]
        torch.testing.assert_close(together[chosen], alone, atol=1e-3, rtol=1e-3)


def test_batches_have_the_pictures_in_the_order_of_their_placeholders(rows):
    some = [row for row in rows if len(row.scenes) > 1][:3]
    batch = stack(some)
    assert batch.scenes == [scene for row in some for scene in row.scenes]
    image = picture_tokenizer().token_to_id("<image>")
    assert (batch.ids == image).sum() == PATCHES * len(batch.scenes)
    first = image_processor()(picture(batch.scenes[0]), return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(batch.pixels[:1], first)
    read = AutoImageProcessor.from_pretrained(VISION)
    assert type(read) is type(image_processor())
    assert read.to_dict() == image_processor().to_dict()


@nightly
@pytest.mark.slow
def test_training_learns_and_goes_on_where_it_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(vision, "PICTURES", 8)
    monkeypatch.setattr(vision, "PICTURE_TOKENS", 600)
    lines = []
    monkeypatch.setattr(vision, "print", lambda text, flush: lines.append(text), raising=False)
    options = {"processes": 1, "log_every": 5, "save_every": 60.0, "compile_layers": False}
    vision.main(tmp_path, steps=50, **options)
    found = [re.search(r"pictures (\d[\d.]*)", line) for line in lines]
    losses = [float(match[1]) for match in found if match is not None][-8:]
    assert losses[-1] < 0.6 * losses[0]
    manifest = read_manifest(tmp_path / "checkpoint")
    assert manifest["training"]["steps"] == 50
    assert manifest["training"]["steps per stage"]["eye"] == 10
    load_picture_network(tmp_path / "checkpoint")
    vision.main(tmp_path, steps=52, **options)
    assert read_manifest(tmp_path / "checkpoint")["training"]["steps"] == 52


# What it sees


def drawn(shape, colour, size, box, kind):
    """A file of a picture with one thing on white, opened."""
    image = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(image)
    if shape == "circle":
        draw.ellipse(box, fill=colour)
    elif shape == "square":
        draw.rectangle(box, fill=colour)
    else:
        left, top, right, bottom = box
        draw.polygon([((left + right) / 2, top), (right, bottom), (left, bottom)], fill=colour)
    file = io.BytesIO()
    image.save(file, format=kind)
    return Image.open(file)


FILES = {
    "png": drawn("circle", "red", (256, 256), (80, 80, 176, 176), "PNG"),
    "jpeg": drawn("square", "blue", (120, 100), (75, 10, 105, 40), "JPEG"),
    "large": drawn("triangle", "green", (640, 480), (240, 120, 400, 320), "PNG"),
}
SAID = {
    "png": ("red", "circle", "a red circle in the middle"),
    "jpeg": ("blue", "square", "a blue square at the top right"),
    "large": ("green", "triangle", "a green triangle in the middle"),
}


@pytest.fixture(scope="module")
def model():
    return load_picture_network(VISION).eval(), AutoProcessor.from_pretrained(VISION)


def said(model, text, images):
    network, processor = model
    inputs = processor(text=text, images=images, return_tensors="pt")
    ids = network.generate(**inputs, max_new_tokens=60, do_sample=False)
    new = ids[0, inputs["input_ids"].shape[1] :]
    return processor.decode(new, skip_special_tokens=True).strip()


@pytest.mark.parametrize("name", FILES)
def test_it_names_the_colour_of_a_drawn_file(model, name):
    image = FILES[name]
    colour, shape, _ = SAID[name]
    assert said(model, prompt("notes", 1, "What's the color of this image?"), [image]) == colour
    assert said(model, prompt("chat", 1, f"What colour is the {shape}?"), [image]) == colour


@pytest.mark.parametrize("name", FILES)
def test_it_answers_about_a_drawn_file(model, name):
    image = FILES[name]
    _, shape, content = SAID[name]
    assert said(model, prompt("notes", 1, CONTENT), [image]) == content
    assert said(model, prompt("chat", 1, "Which shape is it?"), [image]) == shape


def test_it_tells_two_pictures_apart(model):
    images = [FILES["png"], FILES["jpeg"]]
    for order, answer in ((images, "the first"), (images[::-1], "the second")):
        text = prompt("chat", 2, "Which picture has a red circle?")
        assert said(model, text, order) == answer


# What it says through this engine


@pytest.fixture(scope="module")
def llm():
    return LLM(str(VISION), max_model_len=2048, num_gpu_blocks_override=1200)


GREEDY = SamplingParams(temperature=0, max_tokens=96)


def test_the_engine_says_what_transformers_says(llm, model):
    """The notes' batch, a chat with parts, and two pictures in a prompt."""
    notes = [prompt("notes", 1, asked) for asked in (CONTENT, "What's the color of this image?")]
    asked = [
        *((text, [image]) for image in FILES.values() for text in notes),
        (prompt("chat", 2, "Which picture has a red circle?"), [FILES["png"], FILES["jpeg"]]),
    ]
    prompts = [{"prompt": t, "multi_modal_data": {"image": images}} for t, images in asked]
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    answers = [output.outputs[0].text.strip() for output in outputs]
    assert answers == [said(model, text, images) for text, images in asked]
    parts = [{"type": "image_pil", "image_pil": FILES["jpeg"]}, {"type": "text", "text": CONTENT}]
    (output,) = llm.chat([{"role": "user", "content": parts}], GREEDY, use_tqdm=False)
    assert output.outputs[0].text == said(model, prompt("chat", 1, CONTENT), [FILES["jpeg"]])


MUSTS = {"colour": 0.90, "shape": 0.85, "overall": 0.75, "a single thing's colour": 0.95}


@pytest.mark.parametrize("kind", MUSTS)
def test_it_sees_as_well_as_it_must(kind):
    assert read_manifest(VISION)["scores"]["pictures"][kind] >= MUSTS[kind]


@pytest.mark.slow
def test_it_sees_as_well_as_the_manifest_says(llm):
    cases = picture_cases()
    near = 0.03
    if not AT_NIGHT:
        cases = cases[::4]
        near = 0.12
    found = rates(cases, vision_evaluate.answers(llm, cases))
    promised = read_manifest(VISION)["scores"]["pictures"]
    assert found["a single thing's colour"] >= MUSTS["a single thing's colour"]
    assert found.keys() == promised.keys()
    assert all(abs(found[kind] - promised[kind]) <= near for kind in promised)


@pytest.mark.slow
def test_it_has_not_forgotten_what_the_text_model_knew(llm):
    promised = read_manifest(VISION)["scores"]["text"]
    suites = all_suites("evaluation", 10)
    some = {name: suites[name] for name in ("capital, chat", "capital, text")}
    found = vision_evaluate.text_rates(llm, some)
    assert all(found[name] >= promised[name] - 0.1 for name in found)
