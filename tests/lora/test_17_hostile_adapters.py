"""An engine and adapters that cannot be used: each harms the request that asks for it, no other."""

import asyncio
import json
import shutil

import pytest
from adapters import CONFIG, NAMES, tensors_for, write_adapter
from helpers import make_llm
from small_models import make_model

from minivllm import AsyncEngineArgs, AsyncLLM, SamplingParams
from minivllm.lora.request import LoRARequest

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
PROMPT = [5, 17, 29, 41, 53]
LIMITS = {"enable_lora": True, "max_loras": 2, "max_cpu_loras": 3, "max_lora_rank": 8}


@pytest.fixture
def llm(tiny_llama):
    return make_llm(tiny_llama, enable_prefix_caching=True, **LIMITS)


@pytest.fixture
def directories(llama, tmp_path):
    """Adapters "a" and "b" that fit, and what is wrong with others."""
    parts = ("q_proj", "v_proj", "down_proj")
    for seed, name in enumerate(("a", "b")):
        write_adapter(tmp_path / name, tensors_for(llama, parts, seed=seed), lora_alpha=16)
    good = tensors_for(llama)
    write_adapter(tmp_path / "rank", tensors_for(llama, rank=16), r=16)
    write_adapter(tmp_path / "dora", good, use_dora=True)
    write_adapter(tmp_path / "bias", good, bias="all")
    write_adapter(tmp_path / "other", {f"base_model.model.{n}": t for n, t in good.items()})
    write_adapter(tmp_path / "nan", {name: tensor / 0 for name, tensor in good.items()})
    write_adapter(tmp_path / "broken", good)
    (tmp_path / "broken" / NAMES[1]).write_bytes(b"\xff" * 100)
    write_adapter(tmp_path / "truncated", good)
    data = (tmp_path / "truncated" / NAMES[1]).read_bytes()
    (tmp_path / "truncated" / NAMES[1]).write_bytes(data[:-1])
    write_adapter(tmp_path / "text", good)
    (tmp_path / "text" / NAMES[0]).write_text("r: 4")
    return tmp_path


BAD = {
    "missing": "Loading lora bad failed: No adapter found for ",
    "rank": "LoRA rank 16 is greater than max_lora_rank 8.",
    "dora": "vLLM does not yet support DoRA.",
    "bias": "Adapter bias is not supported.",
    "other": "expected target modules in {",
    "nan": "numbers that are not finite",
    "broken": "is broken, truncated, or",
    "truncated": "is broken, truncated, or",
    "text": "it is no JSON",
}


def request(directories, name, number, **kwargs):
    return LoRARequest(name, number, str(directories / name), **kwargs)


def tokens(llm, lora_request, prompt=PROMPT):
    (output,) = llm.generate([prompt], GREEDY, use_tqdm=False, lora_request=lora_request)
    return output.outputs[0].token_ids


def step(engine, found) -> None:
    """One step; a request's tokens so far go to ``found``."""
    found |= {output.request_id: output.outputs[0].token_ids for output in engine.step()}
    engine.engine_core.check_integrity()


def finish(engine, found) -> dict[str, list[int]]:
    while engine.has_unfinished_requests():
        step(engine, found)
    return found


def test_a_bad_adapter_harms_its_own_request_alone(llm, directories):
    """Bad ones come between the steps of others."""
    engine = llm.llm_engine
    loras = {"a": request(directories, "a", 1), "b": request(directories, "b", 2), "base": None}
    want = {name: tokens(llm, lora) for name, lora in loras.items()}
    assert len({tuple(ids) for ids in want.values()}) == 3
    for name, lora in loras.items():
        engine.add_request(name, {"prompt_token_ids": PROMPT}, GREEDY, lora_request=lora)
    found: dict[str, list[int]] = {}
    for name, sentence in BAD.items():
        bad = LoRARequest("bad", 3, str(directories / name))
        with pytest.raises(ValueError) as error:
            engine.add_request(name, {"prompt_token_ids": PROMPT}, GREEDY, lora_request=bad)
        assert sentence in str(error.value)
        with pytest.raises(ValueError):
            engine.engine_core.loras.add(bad)
        assert engine.engine_core.loras.list_loras() == {1, 2}
        step(engine, found)
    assert finish(engine, found) == want


def test_generate_begins_none_of_its_prompts(llm, directories):
    a, bad = request(directories, "a", 1), LoRARequest("bad", 3, str(directories / "dora"))
    want = tokens(llm, a)
    with pytest.raises(ValueError, match=r"prompt 1 of 3: .*vLLM does not yet support DoRA"):
        llm.generate([PROMPT] * 3, GREEDY, use_tqdm=False, lora_request=[a, bad, None])
    assert not llm.llm_engine.has_unfinished_requests()
    assert tokens(llm, a) == want


@pytest.mark.parametrize("other", ["name", "path"])
def test_an_id_in_use_is_not_anothers(llm, directories, other):
    a = request(directories, "a", 1)
    want = tokens(llm, a)
    name, path = ("c", "a") if other == "name" else ("a", "b")
    with pytest.raises(ValueError, match="lora_int_id 1 is in use by 'a' from "):
        tokens(llm, LoRARequest(name, 1, str(directories / path)))
    assert tokens(llm, a) == want
    assert llm.llm_engine.engine_core.loras.remove(1)
    assert tokens(llm, LoRARequest(name, 1, str(directories / path)))


def test_a_path_that_vanishes_after_the_first_request(llm, directories):
    a, b = request(directories, "a", 1), request(directories, "b", 2)
    want = tokens(llm, a)
    shutil.rmtree(directories / "a")
    assert [tokens(llm, a), tokens(llm, b) != want, tokens(llm, a)] == [want, True, want]
    with pytest.raises(ValueError, match="Loading lora a failed: No adapter found for "):
        tokens(llm, request(directories, "a", 1, load_inplace=True))
    assert tokens(llm, a) == want
    assert llm.llm_engine.engine_core.loras.remove(1)
    with pytest.raises(ValueError, match="Loading lora a failed: No adapter found for "):
        tokens(llm, a)
    assert llm.llm_engine.engine_core.loras.list_loras() == {2}


def test_a_bad_reload_leaves_the_old_weights(llm, directories):
    a = request(directories, "a", 1)
    want = tokens(llm, a)
    (directories / "a" / NAMES[0]).write_text(json.dumps(CONFIG | {"use_dora": True}))
    with pytest.raises(ValueError, match="DoRA"):
        tokens(llm, request(directories, "a", 1, load_inplace=True))
    assert llm.llm_engine.engine_core.loras.list_loras() == {1}
    assert tokens(llm, a) == want


def test_a_changed_file_is_read_only_when_asked_for(llm, directories):
    """And then no block of the old weights is a hit."""
    a, b = request(directories, "a", 1), request(directories, "b", 2)
    prompt = [7 + i % 60 for i in range(40)]
    old, new = tokens(llm, a, prompt), tokens(llm, b, prompt)
    assert old != new
    for name in NAMES:
        shutil.copy(directories / "b" / name, directories / "a" / name)
    assert tokens(llm, a, prompt) == old
    (output,) = llm.generate(
        [prompt], GREEDY, use_tqdm=False,
        lora_request=request(directories, "a", 1, load_inplace=True),
    )  # fmt: skip
    assert output.outputs[0].token_ids == new
    assert output.num_cached_tokens == 0
    assert tokens(llm, a, prompt) == new


def test_a_reload_while_its_requests_run(llm, directories):
    """They finish with the weights that they began with."""
    engine, a = llm.llm_engine, request(directories, "a", 1)
    old, new = tokens(llm, a), tokens(llm, request(directories, "b", 2))
    engine.add_request("running", {"prompt_token_ids": PROMPT}, GREEDY, lora_request=a)
    engine.step()
    for name in NAMES:
        shutil.copy(directories / "b" / name, directories / "a" / name)
    again = request(directories, "a", 1, load_inplace=True)
    engine.add_request("later", {"prompt_token_ids": PROMPT}, GREEDY, lora_request=again)
    assert finish(engine, {}) == {"running": old, "later": new}


def test_models_and_engines_without_adapters(tiny_llama, directories, tmp_path):
    a = request(directories, "a", 1)
    with pytest.raises(ValueError, match=r"Got lora_request .* but LoRA is not enabled!"):
        tokens(make_llm(tiny_llama), a)
    make_model("GPT2").save_pretrained(tmp_path / "gpt2")
    with pytest.raises(ValueError, match="GPT2LMHeadModel does not support LoRA yet"):
        tokens(make_llm(tmp_path / "gpt2", enable_lora=True), a)


def test_async_requests_beside_a_bad_one(tiny_llama, directories):
    async def main():
        engine = AsyncLLM(
            AsyncEngineArgs(
                str(tiny_llama), skip_tokenizer_init=True, num_gpu_blocks_override=100,
                disable_log_stats=True, **LIMITS,
            )
        )  # fmt: skip

        async def ids(request_id, lora):
            prompt = {"prompt_token_ids": PROMPT}
            async for output in engine.generate(prompt, GREEDY, request_id, lora_request=lora):
                last = output
            return list(last.outputs[0].token_ids)

        loras = [request(directories, "a", 1), LoRARequest("bad", 9, "/nowhere"), None]
        loras += [request(directories, "b", 2), LoRARequest("bad", 9, str(directories / "nan"))]
        try:
            alone = [await ids(f"alone {i}", loras[i]) for i in (0, 2, 3)]
            both = (ids(f"with {i}", lora) for i, lora in enumerate(loras))
            return alone, await asyncio.gather(*both, return_exceptions=True)
        finally:
            engine.shutdown()

    alone, (a, missing, base, b, nan) = asyncio.run(main())
    assert [a, base, b] == alone
    assert str(missing) == "Loading lora bad failed: No adapter found for /nowhere"
    assert "numbers that are not finite" in str(nan)
    assert {type(missing), type(nan)} == {ValueError}
