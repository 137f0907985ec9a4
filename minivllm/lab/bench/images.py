"""``minivllm bench images``: what a picture costs, in its tower, in a step, and the second time.

The model is a LLaVA of random weights, which transformers loads, too. A step over a picture's rows
is compared with a step over as many of a text, the tower with transformers' on the same batch, and
the first token behind a question with that behind the next question about the same picture.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import torch

from minivllm.entrypoints.llm import LLM
from minivllm.lab.bench.options import Repeats, Threads, count
from minivllm.lab.bench.report import Report
from minivllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from minivllm.sampling_params import SamplingParams
from minivllm.worker.multimodal_runner import MultiModalRunner
from minivllm.worker.profiling import full_step

PEER = "transformers"
PLACEHOLDER = 1
SIDE = 224  # of a picture, in pixels
PATCH = 14
NUM_ROWS = (SIDE // PATCH) ** 2  # of a picture
_QUESTION = 24  # tokens behind a picture


def bench_images(
    num_pictures: Annotated[int, count("Pictures of a batch, and of a step.")] = 4,
    num_layers: Annotated[int, count("Of the tower and of the decoder.")] = 6,
    hidden_size: Annotated[int, count("Of both; heads have 32 numbers.", 32)] = 384,
    repeats: Repeats = 7,
    threads: Threads = None,
) -> None:
    """Measure and print. What is compared runs in turn; of the runs the medians count."""
    with TemporaryDirectory(prefix="minivllm-bench-") as name:
        directory = Path(name)
        theirs = make_directory(directory, num_layers, hidden_size)
        llm = LLM(
            str(directory), skip_tokenizer_init=True, max_model_len=2 * num_pictures * NUM_ROWS,
            max_num_batched_tokens=num_pictures * NUM_ROWS, use_tqdm_on_load=False,
        )  # fmt: skip
        report = Report(
            "images",
            {
                "model": f"LLaVA, two times {num_layers} layers of {hidden_size}",
                "num_pictures": f"{num_pictures} of {NUM_ROWS} rows",
                "threads": threads,
                "clock": f"wall time, medians of {repeats} runs in turn after one that warms up",
            },
        )
        results = {
            "step": _in_turn(_steps(llm, num_pictures), repeats),
            "tower": _in_turn(_towers(llm, theirs, num_pictures), repeats),
            "question": _questions(llm, repeats),
        }
    for what, found in results.items():
        report.table(what, ("of", "ms"), list(found["ms"].items()))
    report.note(
        f"a step over pictures takes {results['step']['ratio']:.3f} of that over a text; the tower "
        f"{results['tower']['ratio']:.3f} of {PEER}' time; a second question "
        f"{results['question']['ratio']:.3f} of the first one's"
    )
    report.finish(results, {"peer": PEER})


def _in_turn(ways: dict[str, Callable[[], Any]], repeats: int) -> dict[str, Any]:
    """Milliseconds of two ways, and the median of the first one's time over the second one's."""
    runs: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(repeats + 1):
        for way, run in ways.items():
            begin = time.perf_counter()
            run()
            if number:  # the first one warms up
                runs[way].append(1e3 * (time.perf_counter() - begin))
    return _summary(runs)


def _summary(runs: dict[str, list[float]]) -> dict[str, Any]:
    ratio = statistics.median(one / other for one, other in zip(*runs.values(), strict=True))
    return {"ms": {way: statistics.median(times) for way, times in runs.items()}, "ratio": ratio}


def _steps(llm: LLM, num_pictures: int) -> dict[str, Callable[[], Any]]:
    """A step over pictures that are encoded already, and one over as many tokens of a text."""
    runner = llm.llm_engine.model_runner
    assert isinstance(runner, MultiModalRunner), "it reads pictures"
    num_tokens = num_pictures * NUM_ROWS
    features = [
        MultiModalFeatureSpec(
            {"pixel_values": _pixels(number)},
            modality="image",
            identifier=f"bench-{number}",
            mm_position=PlaceholderRange(offset=number * NUM_ROWS, length=NUM_ROWS),
        )
        for number in range(num_pictures)
    ]

    def run_step(items: list[MultiModalFeatureSpec]) -> Callable[[], Any]:
        plan = full_step(
            num_tokens, 1, 2 * num_tokens, block_size=runner.block_size, mm_features=items
        )
        plan.finished_req_ids = list(plan.num_scheduled_tokens)  # of the run before
        runner.execute_model(plan)
        plan = replace(plan, scheduled_encoder_inputs={})
        return lambda: runner.execute_model(plan)

    return {"pictures": run_step(features), "text": run_step([])}


def _towers(llm: LLM, theirs: Any, num_pictures: int) -> dict[str, Callable[[], Any]]:
    """Our tower with its projector, and theirs, on the same batch."""
    runner = llm.llm_engine.model_runner
    assert isinstance(runner, MultiModalRunner), "it reads pictures"
    encoder = runner.encoder_runner.encoder
    pixels = [_pixels(number) for number in range(num_pictures)]
    batch = torch.from_numpy(np.stack(pixels))

    @torch.inference_mode()
    def run_ours() -> None:
        items = [{"pixel_values": picture} for picture in pixels]
        encoder.encode("image", items, runner.attention)

    @torch.inference_mode()
    def run_theirs() -> None:
        theirs.get_image_features(batch)

    return {"minivllm": run_ours, PEER: run_theirs}


def _questions(llm: LLM, repeats: int) -> dict[str, Any]:
    """Milliseconds to the first token of a second question about a picture, and of the first."""
    from PIL import Image

    params = SamplingParams(temperature=0, max_tokens=1)
    runs: dict[str, list[float]] = {"second question": [], "first question": []}
    for number in range(repeats + 1):
        colors = np.random.default_rng(number).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
        picture = Image.fromarray(colors)
        times = []
        for word in (2, 3):
            prompt = {
                "prompt_token_ids": [5, PLACEHOLDER, *[word] * _QUESTION],
                "multi_modal_data": {"image": picture},
            }
            begin = time.perf_counter()
            llm.generate(prompt, params, use_tqdm=False)
            times.append(1e3 * (time.perf_counter() - begin))
        if number:  # the first one warms up
            runs["first question"].append(times[0])
            runs["second question"].append(times[1])
    return _summary(runs)


def _pixels(number: int) -> np.ndarray:
    """A picture as a processor would have scaled it."""
    return np.random.default_rng(number).standard_normal((3, SIDE, SIDE), np.float32)


def make_directory(directory: Path, num_layers: int, hidden_size: int) -> Any:
    """Write a LLaVA of random weights, CLIP and Llama. Returns it as transformers has it."""
    import transformers

    sizes = {
        "hidden_size": hidden_size,
        "intermediate_size": 4 * hidden_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": hidden_size // 32,
    }
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**sizes, image_size=SIDE, patch_size=PATCH),
        text_config=transformers.LlamaConfig(
            **sizes, vocab_size=4096, max_position_embeddings=16384, eos_token_id=0
        ),
        image_token_index=PLACEHOLDER,
    )
    torch.manual_seed(0)
    model = transformers.LlavaForConditionalGeneration(config).eval()
    model.save_pretrained(directory)
    side = {"height": SIDE, "width": SIDE}
    processor = {"image_processor_type": "SiglipImageProcessor", "size": side}
    (directory / "preprocessor_config.json").write_text(json.dumps(processor), encoding="utf-8")
    return model
