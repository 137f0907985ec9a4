"""Measure the picture model: ``python -m minivllm.lab.training.vision_evaluate``.

minivllm's own engine answers greedily, about scenes and in conversations that training never saw.
"""

from pathlib import Path
from typing import Annotated

import typer

from minivllm.embedded import embedded_vision_path
from minivllm.embedded.data.scene_cases import PictureCase, pair_cases, picture_cases, rates
from minivllm.entrypoints.llm import LLM
from minivllm.lab.training.evaluate import answers as text_answers
from minivllm.lab.training.evaluate import is_right
from minivllm.lab.training.manifest import update_manifest
from minivllm.lab.training.scene_drawing import picture
from minivllm.lab.training.suites import Case, all_suites
from minivllm.sampling_params import SamplingParams

MAX_TOKENS = 96


def answers(llm: LLM, cases: list[PictureCase]) -> list[str]:
    """Greedy answers of an engine with vLLM's interface, in the order of the cases."""
    pictures = {scene: picture(scene) for case in cases for scene in case.scenes}
    prompts = [
        {
            "prompt": case.prompt,
            "multi_modal_data": {"image": [pictures[scene] for scene in case.scenes]},
        }
        for case in cases
    ]
    greedy = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
    return [output.outputs[0].text for output in llm.generate(prompts, greedy, use_tqdm=False)]


def text_rates(llm: LLM, suites: dict[str, list[Case]]) -> dict[str, float]:
    """The share of right answers in each of these of the text model's suites."""
    found = {}
    for name, cases in suites.items():
        said = text_answers(llm, cases)
        right = [is_right(case, answer) for case, answer in zip(cases, said, strict=True)]
        found[name] = round(sum(right) / len(right), 4)
    return found


def main(
    model: Annotated[Path | None, typer.Option(help="Checkpoint directory.")] = None,
    count: Annotated[int, typer.Option(help="Scenes.")] = 500,
    texts: Annotated[int, typer.Option(help="Cases of each text suite.")] = 30,
    save: Annotated[bool, typer.Option("--save", help="Write into manifest.json.")] = False,
) -> None:
    """Print the share of right answers, of each kind."""
    directory = model or embedded_vision_path()
    llm = LLM(model=str(directory))
    scores = {"pictures": picture_cases(count), "two pictures": pair_cases(count // 5)}
    found = {name: rates(cases, answers(llm, cases)) for name, cases in scores.items()}
    found["text"] = text_rates(llm, all_suites("evaluation", texts))
    for name, by_kind in found.items():
        print(name, *(f"{kind}: {rate:.1%}" for kind, rate in by_kind.items()), sep="\n  ")
    if save:
        update_manifest(directory, scores=found)


if __name__ == "__main__":
    typer.run(main)
