"""Pictures through the whole engine: the notes' scripts, what is encoded, what is cached."""

import asyncio
import subprocess
import sys
import threading

import pytest
import torch
import transformers
from picture_chats import (
    NUM_EMBEDS,
    data_uri,
    encoded,
    image_part,
    picture,
    save_picture_chat,
    user,
)

from minivllm import LLM, AsyncEngineArgs, AsyncLLM, SamplingParams
from minivllm.sampling_params import RequestOutputKind

A, B, C, D = (picture(seed) for seed in range(4))
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
QUESTION = "USER: <image>\nWhat is the content of this image?\nASSISTANT:"


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return save_picture_chat(tmp_path_factory.mktemp("pictures"))


def make(directory, **args):
    usual = {"num_gpu_blocks_override": 300, "max_model_len": 300, "dtype": "float32"}
    return LLM(str(directory), **usual | args)


@pytest.fixture(scope="module")
def llm(directory):
    return make(directory)


@pytest.fixture(scope="module")
def theirs(directory):
    """Greedy tokens of transformers for a prompt of ours that is processed."""
    model = transformers.LlavaForConditionalGeneration.from_pretrained(directory)

    def generate(llm, prompt):
        processed = llm.llm_engine.input_processor.preprocess(prompt)
        ids = torch.tensor([processed.prompt_token_ids])
        inputs = {}
        if processed.mm_features:
            pixels = [torch.from_numpy(f.data["pixel_values"]) for f in processed.mm_features]
            inputs["pixel_values"] = torch.stack(pixels)
        with torch.no_grad():
            found = model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, min_new_tokens=6,
                max_new_tokens=6, pad_token_id=0, eos_token_id=None, **inputs,
            )  # fmt: skip
        return found[0, ids.shape[1] :].tolist()

    return generate


def run(llm, prompts, params=GREEDY):
    return llm.generate(prompts, params, use_tqdm=False)


def num_encoded(llm):
    return llm.llm_engine.model_runner.encoder_runner.num_encoded


@pytest.mark.bits
def test_the_notes_scripts_run_as_typed(llm, theirs):
    """One picture; two prompts with one each; two pictures in one; a text alone."""
    one = {"prompt": QUESTION, "multi_modal_data": {"image": A}}
    color = "USER: <image>\nWhat's the color of this image?\nASSISTANT:"
    batch = [{"prompt": color, "multi_modal_data": {"image": image}} for image in (B, C)]
    several = {
        "prompt": "<|user|>\n<|image_1|>\n<|image_2|>\nWhat is different?<|end|>\n<|assistant|>\n",
        "multi_modal_data": {"image": [A, D]},
    }
    prompts = [one, *batch, several, "Hello"]
    outputs = run(llm, prompts)
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output.outputs[0].token_ids == theirs(llm, prompt)
    assert len({tuple(output.outputs[0].token_ids) for output in outputs[1:3]}) == 2, "they differ"
    (alone,) = run(llm, one)
    assert alone.outputs[0].token_ids == outputs[0].outputs[0].token_ids


def test_frames_of_a_video_come_as_pictures_of_a_chat(directory):
    llm = make(directory, limit_mm_per_prompt={"image": 4})
    frames = [image_part(data_uri(encoded(image, "JPEG"), "image/jpeg")) for image in (A, B, C, D)]
    (output,) = llm.chat([user("What happens?", *frames)], GREEDY, use_tqdm=False)
    own = llm.llm_engine.input_processor.multimodal.processor.placeholder_ids["image"]
    assert output.prompt_token_ids.count(own) == 4 * NUM_EMBEDS
    assert num_encoded(llm) == 4
    with pytest.raises(ValueError, match=r"At most 4 image\(s\) may be provided in one prompt"):
        llm.chat([user(*frames, frames[0])], GREEDY, use_tqdm=False)
    text = [{"type": "text", "text": "Classify this sentiment: vLLM is wonderful!"}]
    assert llm.chat([{"role": "user", "content": text}], GREEDY, use_tqdm=False)


def test_each_picture_is_encoded_once_and_its_blocks_are_found_again(directory):
    llm = make(directory)
    prompts = [{"prompt": f"{n}<image>", "multi_modal_data": {"image": image}}
               for n in range(3) for image in (A, B)]  # fmt: skip
    run(llm, prompts)
    assert num_encoded(llm) == 2
    asked = {"prompt": QUESTION, "multi_modal_data": {"image": C}}
    (first,) = run(llm, asked)
    (second,) = run(llm, asked)
    assert num_encoded(llm) == 3
    assert second.num_cached_tokens == (len(second.prompt_token_ids) - 1) // 16 * 16
    assert second.outputs[0].token_ids == first.outputs[0].token_ids
    changed = C.copy()
    changed.putpixel((0, 0), (0, 0, 0))
    (third,) = run(llm, {"prompt": QUESTION, "multi_modal_data": {"image": changed}})
    assert num_encoded(llm) == 4
    assert third.num_cached_tokens < 16, "its first block has a part of the picture"


def test_metrics_count_what_the_processor_cache_has(directory, tiny_chat):
    llm = make(directory)
    for image in (A, B, A):
        run(llm, {"prompt": QUESTION, "multi_modal_data": {"image": image}})
    found = {metric.name: metric.value for metric in llm.get_metrics() if "mm_" in metric.name}
    assert found == {"vllm:mm_cache_queries": 3, "vllm:mm_cache_hits": 1}
    text = LLM(str(tiny_chat), num_gpu_blocks_override=50)
    assert not [metric.name for metric in text.get_metrics() if "mm_" in metric.name]


def test_one_uuid_is_one_picture_for_the_program_that_says_so(directory):
    llm = make(directory)
    cat = {"multi_modal_uuids": {"image": "cat"}}
    first, second, again = (
        run(llm, {"prompt": QUESTION, "multi_modal_data": {"image": image}} | cat)[0]
        for image in (A, B, None)
    )
    assert num_encoded(llm) == 1
    assert first.outputs[0].token_ids == second.outputs[0].token_ids == again.outputs[0].token_ids


def test_a_picture_that_cannot_be_disturbs_no_other(directory):
    llm = make(directory, encoder_cache_size=NUM_EMBEDS, max_num_encoder_input_tokens=NUM_EMBEDS)
    good = {"prompt": QUESTION, "multi_modal_data": {"image": A}}
    (want,) = run(llm, good)
    long = {"prompt": "<image>" * 20, "multi_modal_data": {"image": [A] * 20}}
    broken = {"prompt": QUESTION, "multi_modal_data": {"image": "cat.png"}}
    for bad, said in (
        (long, "prompt 1 of 2: the prompt has 320 tokens, but max_model_len is 300"),
        (broken, "prompt 1 of 2: image 0 of 1: it must be a picture of PIL or an array"),
    ):
        with pytest.raises(ValueError, match=said):
            run(llm, [good, bad])
    small = make(directory, encoder_cache_size=NUM_EMBEDS - 1)
    with pytest.raises(ValueError, match="image 0 of the prompt has 16 embeddings, but max_num_e"):
        run(small, good)
    assert run(small, "Hello")
    assert run(llm, good)[0].outputs[0].token_ids == want.outputs[0].token_ids
    llm.llm_engine.check_integrity()


def test_options_of_one_call_are_for_prompts_without_their_own(llm):
    def features(call_options, own=None):
        made = llm._make_requests(
            {"prompt": QUESTION, "multi_modal_data": {"image": A}} | (own or {}),
            GREEDY, None, None, None, call_options,
        )  # fmt: skip
        return made[0].mm_features[0].identifier

    raw, usual = {"do_rescale": False}, {"do_rescale": True}
    assert features(raw) != features(None)
    assert features(raw, {"mm_processor_kwargs": usual}) == features(usual) != features(raw)


def test_options_of_the_tokenizer_never_cut_a_picture(llm):
    prompt = {"prompt": "<|image_1|> What?", "multi_modal_data": {"image": A}}
    (want,) = run(llm, prompt)
    whole = {"truncation": True, "max_length": 100}
    (got,) = llm.generate(prompt, GREEDY, use_tqdm=False, tokenization_kwargs=whole)
    assert got.prompt_token_ids == want.prompt_token_ids
    short = {"truncation": True, "max_length": 9}
    with pytest.raises(ValueError, match="truncate_prompt_tokens must be at least"):
        llm.generate(prompt, GREEDY, use_tqdm=False, tokenization_kwargs=short)


def test_an_item_that_no_step_can_hold_whole_is_found_at_the_start(directory):
    with pytest.raises(ValueError, match="max_num_batched_tokens must be at least 16, one item of"):
        make(directory, max_num_batched_tokens=8, max_num_seqs=4, disable_chunked_mm_input=True)
    config = make(directory, max_num_batched_tokens=8, max_num_seqs=4).llm_engine.vllm_config
    limits = config.scheduler_config
    assert (limits.max_num_encoder_input_tokens, limits.encoder_cache_size) == (16, 16)


def test_the_asynchronous_engine_reads_pictures_beside_its_loop(directory, llm):
    """In a thread: the loop turns while the processor works."""
    prompts = [{"prompt": QUESTION, "multi_modal_data": {"image": image}} for image in (A, B)]
    want = [output.outputs[0].token_ids for output in run(llm, prompts)]

    async def main():
        args = AsyncEngineArgs(str(directory), num_gpu_blocks_override=100, dtype="float32",
                               disable_log_stats=True)  # fmt: skip
        engine = AsyncLLM(args)
        inner = engine.input_processor.multimodal.processor
        plain, begun, go_on = inner.process, threading.Event(), threading.Event()

        def waits(*given, **options):
            begun.set()
            assert go_on.wait(60)
            return plain(*given, **options)

        inner.process = waits
        params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True,
                                output_kind=RequestOutputKind.FINAL_ONLY)  # fmt: skip

        async def ask(name, prompt):
            (output,) = [output async for output in engine.generate(prompt, params, name)]
            return output

        asked = [asyncio.ensure_future(ask(str(n), prompt)) for n, prompt in enumerate(prompts)]
        text = await ask("text", "Hello")
        assert await asyncio.to_thread(begun.wait, 60)
        assert not any(one.done() for one in asked)
        go_on.set()
        found = [(await one).outputs[0].token_ids for one in asked]
        with pytest.raises(ValueError, match="has 0 placeholders <image> for 1 image"):
            await ask("bad", {"prompt": "a", "multi_modal_data": {"image": A}})
        engine.shutdown()
        return text, found

    text, found = asyncio.run(main())
    assert len(text.outputs[0].token_ids) == 6
    assert found == want


def test_without_pillow_text_goes_on(tiny_chat):
    """A text model and its server run; importing the package needs neither it nor torch."""
    code = f"""
import sys
sys.modules["PIL"] = None
import minivllm
assert not {{"torch", "numpy", "PIL.Image"}} & sys.modules.keys()
from minivllm.entrypoints.openai.background import BackgroundServer
import httpx
with BackgroundServer({str(tiny_chat)!r}, "--num-gpu-blocks-override", "50") as server:
    asked = {{"messages": [{{"role": "user", "content": "Hello"}}], "max_tokens": 2}}
    url = server.url + "/v1/chat/completions"
    print(httpx.post(url, json=asked, timeout=60).status_code)
    asked["messages"][0]["content"] = [{{"type": "image_url", "image_url": {{"url": "data:,"}}}}]
    print(httpx.post(url, json=asked, timeout=60).json()["error"]["message"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    first, second = done.stdout.split("\n")[-3:-1]
    assert first == "200", done.stderr[-2000:]
    assert second.endswith("is not a multimodal model")
