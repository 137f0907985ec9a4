"""Gemma 3, and models of which some layers have a window: held to transformers; bad configs."""

import json
import random

import pytest
import torch
import transformers
from helpers import make_llm
from small_models import make_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from minivllm import LLM, EngineArgs, SamplingParams
from minivllm.lab.oracle import next_token_logits
from minivllm.models.loader import load_config, load_model
from minivllm.models.registry import get_decoders

CPU = torch.device("cpu")
FULL, SLIDING = "full_attention", "sliding_attention"


def load(directory, dtype=torch.float32):
    return load_model(directory, load_config(directory), dtype, CPU)


def write_config(directory, **fields):
    """A config.json like a hub's: what is None is left out."""
    config = json.loads((directory / "config.json").read_text()) | fields
    config = {name: value for name, value in config.items() if value is not None}
    (directory / "config.json").write_text(json.dumps(config))


# -- tokens and logits ----------------------------------------------------------------------------

MIXED = {  # family, and where its windows are
    "gemma3": ("Gemma3", {"layer_types": [SLIDING, FULL, SLIDING], "head_dim": 16}),
    "mistral": ("Mistral", {"num_key_value_heads": 2}),
    "qwen2": ("Qwen2", {"layer_types": [SLIDING, SLIDING, FULL], "use_sliding_window": True}),
    "qwen3": ("Qwen3", {"layer_types": [FULL, SLIDING, SLIDING], "use_sliding_window": True}),
}
MIXTURES = {  # how prompts come in, and out of how small a pool
    "whole": {"enable_prefix_caching": False, "max_num_batched_tokens": 512},
    "a token at a time": {"max_num_batched_tokens": 1, "max_num_seqs": 1, "block_size": 1},
    "chunks, cached": {"max_num_batched_tokens": 7},
    "preempted": {"block_size": 4, "enable_prefix_caching": False, "max_num_batched_tokens": 50},
    "swapped": {"block_size": 4, "enable_prefix_caching": False, "swap_space": 0.001},
    "two ranks": {"tensor_parallel_size": 2, "distributed_executor_backend": "together"},
    "two stages": {"pipeline_parallel_size": 2, "distributed_executor_backend": "together"},
}


@torch.inference_mode()
def all_logits(model, ids):
    return model(torch.tensor([ids])).logits[0]


def hold(theirs, prompt, tokens):
    """Every token is transformers' own wherever its choice is clear. Returns how many were."""
    logits = all_logits(theirs, [*prompt, *tokens])[len(prompt) - 1 : -1]
    best = logits.topk(2)
    clear = best.values[:, 0] - best.values[:, 1] > 1e-4
    assert torch.equal(torch.tensor(tokens)[clear], best.indices[clear, 0])
    return int(clear.sum())


@pytest.mark.slow
@pytest.mark.parametrize("window", [4, 11, 24])
@pytest.mark.parametrize("name", MIXED)
def test_tokens_are_those_of_transformers(name, window, tmp_path):
    """Two siblings of each prompt, in every mixture; prompts go beyond three windows."""
    family, changes = MIXED[name]
    theirs = make_model(family, sliding_window=window, **changes, max_position_embeddings=128)
    theirs.save_pretrained(tmp_path)
    rng = random.Random(window)
    common = rng.choices(range(96), k=3 * window + 5)
    shared = (3 * window, window, 0, 9, 3 * window + 5, 2 * window, 3 * window)
    prompts = [common[:n] + rng.choices(range(96), k=5) for n in shared]
    longest = 3 * window + 20
    for mixture, kwargs in MIXTURES.items():
        is_small = mixture in ("preempted", "swapped")
        pool = {"num_gpu_blocks_override": 3 * (longest // 4) + 6} if is_small else {}
        n = 1 if is_small else min(kwargs.get("max_num_seqs", 2), 2)  # the best token, twice
        params = SamplingParams(n=n, top_k=1, max_tokens=9, ignore_eos=True)
        llm = make_llm(tmp_path, **{"block_size": 16, "max_model_len": longest, **pool, **kwargs})
        num_clear = 0
        for _ in range(2):
            for output in llm.generate(prompts, params, use_tqdm=False):
                for sample in output.outputs:
                    num_clear += hold(theirs, output.prompt_token_ids, sample.token_ids)
            llm.llm_engine.check_integrity()
        # a window in all layers leaves room for everyone
        is_short = is_small and name != "mistral"
        assert not is_short or llm.llm_engine.scheduler.num_preemptions > 0
        assert num_clear > 110 * n


@pytest.mark.parametrize("name", MIXED)
def test_logits_are_those_of_transformers(name, tmp_path):
    family, changes = MIXED[name]
    ids = random.Random(3).choices(range(97), k=60)
    theirs = make_model(family, sliding_window=11, **changes)
    theirs.save_pretrained(tmp_path)
    want = all_logits(theirs, ids)
    ours = load(tmp_path)
    for length in (1, 11, 12, 34, 60):
        got = next_token_logits(ours, ids[:length])
        torch.testing.assert_close(got, want[length - 1], atol=1e-4, rtol=0)


def test_a_window_is_seen(tmp_path):
    """Without it logits are others, so that the comparisons can fail."""
    ids = random.Random(3).choices(range(97), k=60)
    make_model("Gemma3", sliding_window=4, **MIXED["gemma3"][1]).save_pretrained(tmp_path)
    narrow = next_token_logits(load(tmp_path), ids)
    write_config(tmp_path, sliding_window=60)
    assert (next_token_logits(load(tmp_path), ids) - narrow).abs().max() > 0.1


def test_bfloat16_rounds_as_transformers_does(tmp_path):
    """Embeddings and their scale, then norms that multiply before they round."""
    theirs = make_model("Gemma3", **MIXED["gemma3"][1], hidden_size=48).to(torch.bfloat16)
    theirs.save_pretrained(tmp_path)
    ours = load(tmp_path, torch.bfloat16)
    ids = torch.arange(97)
    rows = theirs.model.embed_tokens(ids)
    assert torch.equal(ours.embed(ids, ids), rows)
    norm = theirs.model.layers[0].input_layernorm
    assert torch.equal(ours.model.layers[0].input_layernorm(rows), norm(rows))


# -- configs --------------------------------------------------------------------------------------


def test_an_older_config_is_the_same_model(tmp_path):
    """Checkpoints of 2025 are so: bases by name, a scaling of the full layers, a pattern."""
    theirs = make_model("Gemma3", sliding_window=5, head_dim=16, sliding_window_pattern=3,
                        rope_parameters={
                            FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
                            SLIDING: {"rope_type": "default", "rope_theta": 2e4}})  # fmt: skip
    theirs.save_pretrained(tmp_path)
    new = load_config(tmp_path)
    write_config(
        tmp_path, rope_parameters=None, layer_types=None, _sliding_window_pattern=None,
        sliding_window_pattern=3, rope_theta=5e5, rope_local_base_freq=2e4,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
    )  # fmt: skip
    old = load_config(tmp_path)
    assert (old.rope, old.local_rope) == (new.rope, new.local_rope)
    assert old.sliding_windows == new.sliding_windows == (5, 5, None)
    assert old.max_model_len == 64  # the stretched length already
    ids = random.Random(3).choices(range(97), k=40)
    got = next_token_logits(load(tmp_path), ids)
    torch.testing.assert_close(got, all_logits(theirs, ids)[-1], atol=1e-4, rtol=0)


def test_one_set_of_rotary_parameters_is_that_of_the_full_layers():
    """Transformers before 5 has it so, and knows no types in it."""
    hf = transformers.Gemma3TextConfig(num_hidden_layers=3, hidden_size=32, num_attention_heads=4)
    decoder = get_decoders()["gemma3_text"]
    hf.rope_parameters = None
    hf.rope_theta, hf.rope_local_base_freq = 3e5, 3e3
    hf.rope_scaling = {"rope_type": "linear", "factor": 2.0}
    fields = decoder.read_config(hf)
    assert (fields["rope"]["rope_theta"], fields["rope"]["factor"]) == (3e5, 2.0)
    assert fields["local_rope"] == {"rope_type": "default", "rope_theta": 3e3}


WINDOWS = {  # of three layers: the family, overrides, what they mean
    "a pattern": ("Gemma3", {"sliding_window": 8, "sliding_window_pattern": 2}, (8, None, 8)),
    "types": ("Gemma3", {"layer_types": [FULL, SLIDING, FULL]}, (None, 4096, None)),
    "all of it": ("Mistral", {"sliding_window": 9}, (9, 9, 9)),
    "some of it": ("Mistral", {"sliding_window": 9, "layer_types": [FULL, SLIDING, FULL]},
                   (None, 9, None)),
    "none": ("Mistral", {"sliding_window": None}, (None, None, None)),
    "from a layer on": ("Qwen2", {"use_sliding_window": True, "sliding_window": 6,
                                  "max_window_layers": 1}, (None, 6, 6)),
    "off": ("Qwen3", {"use_sliding_window": False, "sliding_window": 6,
                      "layer_types": [SLIDING] * 3}, (None, None, None)),
    "a llama's": ("Llama", {"sliding_window": 7, "layer_types": [SLIDING, FULL, SLIDING]},
                  (7, None, 7)),
    "not a llama's": ("Llama", {"sliding_window": 7}, (None, None, None)),
    "fewer layers": ("Qwen2", {"num_hidden_layers": 2}, (None, None)),
    "the largest": ("Mistral", {"sliding_window": 2**22}, (2**22,) * 3),
}  # fmt: skip


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_of_layers(name, tmp_path):
    """Written into config.json, or given as overrides."""
    family, fields, want = WINDOWS[name]
    make_model(family).save_pretrained(tmp_path)
    write_config(tmp_path, layer_types=None, _sliding_window_pattern=None)
    assert load_config(tmp_path, fields).sliding_windows == want
    (tmp_path / "config.json").write_text(
        json.dumps(json.loads((tmp_path / "config.json").read_text()) | fields)
    )
    assert load_config(tmp_path).sliding_windows == want


WRONG = {  # fields of a config.json of three layers, and what is said
    "no window": ({"sliding_window": 0}, "sliding_window in config.json must be .* 4194304, got 0"),
    "less": ({"sliding_window": -1}, "sliding_window in config.json must be .*, got -1"),
    "huge": ({"sliding_window": 2**22 + 1}, "sliding_window in config.json must be .* 4194305"),
    "half a token": ({"sliding_window": 4.5}, r"must be .* an integer from 1 to 4194304, got 4\.5"),
    "a text": ({"sliding_window": "8"}, "sliding_window in config.json must be .*, got '8'"),
    "yes": ({"sliding_window": True}, "sliding_window in config.json must be .*, got True"),
    "too few": ({"layer_types": [SLIDING, FULL]}, "length of layer_types .* must be 3.* got 2"),
    "too many": ({"layer_types": [FULL] * 4}, "length of layer_types .* must be 3.* got 4"),
    "chunked": ({"layer_types": [FULL, FULL, "chunked_attention"]},
                "item of layer_types .* must be 'full_attention' or .* got 'chunked_attention'"),
    "linear": ({"layer_types": [FULL, FULL, "linear_attention"]},
               "item of layer_types .* no other layers, got 'linear_attention'"),
    "unknown": ({"layer_types": ["attention"] * 3}, "item of layer_types .* got 'attention'"),
    "no name": ({"layer_types": [FULL, FULL, None]}, "item of layer_types .* got None"),
    "a name for all": ({"layer_types": SLIDING}, "layer_types .* must be a list with a type"),
}  # fmt: skip


@pytest.mark.parametrize("family", ["Gemma3", "Mistral", "Qwen2"])
@pytest.mark.parametrize("name", WRONG)
def test_windows_that_cannot_be_are_refused_in_one_sentence(name, family, tmp_path):
    fields, sentence = WRONG[name]
    make_model(family).save_pretrained(tmp_path)
    if family == "Qwen2":
        fields = {"use_sliding_window": True, **fields}
    types = fields.get("layer_types", [SLIDING] * 3)
    with pytest.raises(ValueError, match=sentence) as error:
        load_config(tmp_path, fields | {"layer_types": types})
    assert "\n" not in str(error.value)
    write_config(tmp_path, **fields)
    with pytest.raises(ValueError, match=sentence) as error:
        load_config(tmp_path)
    assert "\n" not in str(error.value)


GEMMA = {  # its own fields
    "no window": ({"sliding_window": None}, "sliding_window .* 'sliding_attention' layers, got No"),
    "pattern": ({"layer_types": None, "sliding_window_pattern": 0}, "sliding_window_pattern .* 0"),
    "scale": ({"query_pre_attn_scalar": 0}, "query_pre_attn_scalar in config.json must be .* 0"),
    "cap": ({"final_logit_softcapping": -1.0}, "final_logit_softcapping .* positive number, got -"),
    "not causal": ({"use_bidirectional_attention": True}, "use_bidirectional_attention .* causal"),
    "rope": ({"rope_parameters": {FULL: {"rope_type": "longrope"}}}, "'longrope' .* not supported"),
    "no rope": ({"rope_parameters": {FULL: 5}}, "full_attention of rope_parameters .* object, got"),
    "base": ({"rope_parameters": {FULL: {"rope_theta": -1}}}, "rope_theta .* a positive .* got -1"),
    "a text": ({"rope_parameters": None, "rope_theta": "x"}, "rope_theta .* a positive .* got 'x'"),
    "local base": (
        {"rope_parameters": None, "rope_local_base_freq": [1]},
        r"rope_local_base_freq in config.json must be a positive number, got \[1\]",
    ),
    "activation": ({"hidden_activation": "mish"}, "hidden_act='mish' .* not supported"),
}


@pytest.mark.parametrize("name", GEMMA)
def test_what_gemma_does_not_have_is_refused(name, tmp_path):
    fields, sentence = GEMMA[name]
    make_model("Gemma3").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=sentence):
        load_model(tmp_path, load_config(tmp_path, fields), torch.float32, CPU)


def test_float16_is_refused_and_never_chosen(tmp_path):
    make_model("Gemma3").to(torch.float16).save_pretrained(tmp_path)
    assert EngineArgs(str(tmp_path)).create_engine_config().model_config.dtype == torch.bfloat16
    with pytest.raises(ValueError, match=r"dtype must be 'bfloat16' or .*, got 'half'"):
        EngineArgs(str(tmp_path), dtype="half").create_engine_config()


# -- beside the tokens ----------------------------------------------------------------------------

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>"
    "{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


def test_a_chat_ends_with_the_turn(tmp_path):
    """generation_config.json has a list of ends, of which config.json knows the first."""
    words = ["<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"]
    words += sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(words[:5])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<bos>", eos_token="<eos>", chat_template=TEMPLATE
    )
    tokenizer.save_pretrained(tmp_path)
    model = make_model("Gemma3", vocab_size=len(words), eos_token_id=1, tie_word_embeddings=False)
    model.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 4]}))
    assert load_config(tmp_path).eos_token_ids == {1, 4}
    llm = LLM(str(tmp_path), num_gpu_blocks_override=20)
    only_ends = SamplingParams(temperature=0, max_tokens=5, allowed_token_ids=[4])
    (output,) = llm.chat([{"role": "user", "content": " Hi "}], only_ends, use_tqdm=False)
    text = tokenizer.decode(output.prompt_token_ids)
    assert text == "<bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n"
    sample = output.outputs[0]
    assert (sample.finish_reason, sample.text, len(sample.token_ids)) == ("stop", "", 1)
    assert sample.stop_reason == 4
