"""Every argument of vLLM 0.32: taken, or refused in a sentence that says whose it is, and why.

``tests/data/vllm_arguments.json`` has the names and vLLM's defaults, by class and call.
"""

import inspect
import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from minivllm import LLM, EngineArgs, PoolingParams, SamplingParams
from minivllm.config import PoolerConfig
from minivllm.config.structured_outputs import StructuredOutputsConfig
from minivllm.engine.arg_utils import AsyncEngineArgs
from minivllm.sampling_params import BeamSearchParams, RequestOutputKind, StructuredOutputsParams
from minivllm.utils.vllm_arguments import arguments_of

FILE = Path(__file__).parents[1] / "data/vllm_arguments.json"
NAMES = json.loads(FILE.read_text(encoding="utf-8"))
# Each class, what it needs beside, and where vLLM's list of its arguments is.
CLASSES = {
    EngineArgs: ({}, "EngineArgs"),
    AsyncEngineArgs: ({}, "EngineArgs"),
    SamplingParams: ({}, "SamplingParams"),
    BeamSearchParams: ({"beam_width": 2, "max_tokens": 3}, "BeamSearchParams"),
    StructuredOutputsParams: ({"regex": "a"}, "StructuredOutputsParams"),
    StructuredOutputsConfig: ({}, "StructuredOutputsConfig"),
    PoolingParams: ({}, "PoolingParams"),
    PoolerConfig: ({}, "PoolerConfig"),
}
EACH = [(cls, name) for cls, (_, names) in CLASSES.items() for name in NAMES[names]]
OTHER = object()  # what nothing has as its default


def is_refused_as_vllms(message):
    """True for a sentence that says of an argument that it is vLLM's, and why it is not here."""
    return re.search(r": it is vLLM's, not minivllm's \(.{10,}\); leave it out", message)


def default_of(names, name):
    value = NAMES[names][name]
    return RequestOutputKind[value] if name == "output_kind" else value


@pytest.mark.parametrize(("cls", "name"), EACH)
def test_an_argument_is_ours_or_has_vllms_default_only(cls, name):
    beside, names = CLASSES[cls]
    default = default_of(names, name)
    if default != "required":
        cls(**beside | ({} if name in beside else {name: default}))
    if name not in {field.name for field in fields(cls)}:
        with pytest.raises(ValueError, match=f"has no argument '{name}'") as refused:
            cls(**beside, **{name: OTHER})
        assert is_refused_as_vllms(str(refused.value))


@pytest.mark.parametrize("name", sorted(NAMES["LLM"] | NAMES["EngineArgs"]))
def test_llm_takes_what_the_engine_takes_and_says_so_of_the_rest(name):
    ours = {field.name for field in fields(EngineArgs)} | {"chat_template"}
    if name in ours:
        return
    assert name in arguments_of("EngineArgs")
    with pytest.raises(ValueError, match=f"^LLM has no argument '{name}'") as refused:
        LLM(**{name: OTHER})
    assert is_refused_as_vllms(str(refused.value))


@pytest.mark.parametrize("call", [name for name in NAMES if name.startswith("LLM.")])
def test_a_call_has_vllms_arguments(call):
    parameters = inspect.signature(getattr(LLM, call.removeprefix("LLM."))).parameters
    assert NAMES[call].keys() <= parameters.keys()
    for name, default in NAMES[call].items():
        if default != "required" and name != "use_tqdm":
            assert parameters[name].default == default


def test_the_list_of_what_is_not_here_is_vllms():
    """No name in it is ours, or of nobody; the defaults are the recorded ones."""
    for cls, (_, names) in CLASSES.items():
        for name, (default, why) in arguments_of(names).items():
            assert name in NAMES[names] or name in NAMES["LLM"], name
            assert name not in {field.name for field in fields(cls)}
            assert why[0].islower() or why.startswith(("SamplingParams", "K "))
            if isinstance(default, (str, int, float, list)):
                wanted = (
                    str(default_of(names, name)) if name == "output_kind" else NAMES[names][name]
                )
                assert default == wanted, name
    assert arguments_of("LLM").keys() <= {
        n for c in NAMES if c.startswith("LLM.") for n in NAMES[c]
    }


@pytest.mark.parametrize(
    "given",
    [{"optimization_level": True}, {"nnodes": 1.5}, {"mm_encoder_only": True},
     {"hf_token": True}, {"offload_params": {"a"}}, {"ignore_patterns": []}, {"watermark": 0.1},
     {"mm_hasher_algorithm": "sha256"}],
)  # fmt: skip
def test_another_value_asks_for_something(given):
    with pytest.raises(ValueError, match="it is vLLM's, not minivllm's"):
        EngineArgs(**given)


@pytest.mark.parametrize(
    "given",
    [{"limit_mm_per_prompt": {}}, {"offload_params": set()}, {"node_rank": 0},
     {"ignore_patterns": ("original/**/*",)},
     {"reasoning_parser": ""}, {"worker_cls": None}],
)  # fmt: skip
def test_what_asks_for_nothing_is_taken(given):
    assert EngineArgs(**given) == EngineArgs()


def test_calls_refuse_what_only_vllm_does(tiny_chat):
    llm = LLM(str(tiny_chat), num_gpu_blocks_override=200)
    talk, params = [{"role": "user", "content": "a"}], SamplingParams(max_tokens=1)
    search = BeamSearchParams(beam_width=2, max_tokens=1)
    for call in (llm.generate, llm.chat):
        with pytest.raises(ValueError, match="is not a multimodal model"):
            call(talk if call == llm.chat else "a", params, mm_processor_kwargs={"num_crops": 4})
    with pytest.raises(ValueError, match="it is vLLM's, not minivllm's"):
        llm.beam_search("a", search, concurrency_limit=2)
    assert llm.generate("a", params, False, mm_processor_kwargs={})
    assert llm.beam_search("a", search, concurrency_limit=None)


def test_llm_has_a_template_for_its_chats(tiny_chat, tmp_path):
    file = tmp_path / "template.jinja"
    file.write_text("{% for m in messages %}<{{ m.content }}>{% endfor %}")
    talk, params = [{"role": "user", "content": "a"}], SamplingParams(max_tokens=1)
    llm = LLM(str(tiny_chat), num_gpu_blocks_override=200, chat_template=str(file))
    (output,) = llm.chat(talk, params, False)
    assert output.prompt == "<a>"
    (output,) = llm.chat(talk, params, False, chat_template="{{ messages[0].content }}")
    assert output.prompt == "a"
