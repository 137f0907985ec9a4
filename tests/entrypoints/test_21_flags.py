"""Flags of the server: an argument of the engine is the same from Python, typed, and in a file."""

import json
import re
from dataclasses import fields

import pytest
import yaml

from minivllm import EngineArgs
from minivllm.config.compat import ENGINE_DEFAULTS_ONLY
from minivllm.engine.arg_utils import AsyncEngineArgs
from minivllm.entrypoints.openai.cli_args import engine_args, make_parser, parse_args

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}
OLD = {"speculative_model": "[ngram]", "num_speculative_tokens": 2, "ngram_prompt_lookup_max": 3}

# Each field of EngineArgs with a value, and what it needs beside it; the rest has its default only.
VALUES = {
    "kv_transfer_config": {
        "kv_transfer_config": {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}
    },
    "model": "some/model",
    "revision": {"model": "some/model", "revision": "v1"},
    "tokenizer": "some/tokenizer",
    "tokenizer_revision": "v2",
    "download_dir": "/tmp/models",
    "load_format": "dummy",
    "use_tqdm_on_load": False,
    "skip_tokenizer_init": True,
    "dtype": "float32",
    "device": "cpu",
    "attention_backend": "reference",
    "enforce_eager": True,
    "seed": 7,
    "max_logprobs": -1,
    "block_size": 8,
    "max_model_len": 64,
    "gpu_memory_utilization": 0.5,
    "kv_cache_memory_bytes": 2**26,
    "num_gpu_blocks_override": 40,
    "swap_space": 0.5,
    "enable_prefix_caching": False,
    "prefix_cache_retention_interval": 64,
    "prefix_match_unit": 8,
    "disable_hybrid_kv_cache_manager": True,
    "max_num_batched_tokens": 128,
    "max_num_seqs": 3,
    "enable_chunked_prefill": False,
    "long_prefill_token_threshold": 16,
    "scheduling_policy": "priority",
    "async_scheduling": True,
    "structured_outputs_config": {
        "structured_outputs_config": {"backend": "fsm", "disable_any_whitespace": True}
    },
    "guided_decoding_backend": "guidance",
    "speculative_config": {"speculative_config": NGRAM},
    "spec_method": {"spec_method": "ngram", "spec_tokens": 4},
    "spec_model": {"spec_model": "some/draft", "spec_tokens": 4},
    "spec_tokens": {"spec_tokens": 9, "speculative_config": NGRAM},
    "speculative_model": OLD,
    "num_speculative_tokens": OLD,
    "ngram_prompt_lookup_max": OLD,
    "ngram_prompt_lookup_min": {**OLD, "ngram_prompt_lookup_min": 2},
    "enable_lora": True,
    "max_loras": 2,
    "max_lora_rank": 8,
    "max_cpu_loras": 3,
    "lora_dtype": "float32",
    "lora_target_modules": ["q_proj", "v_proj"],
    "quantization": "int4",
    "kv_cache_dtype": "fp8_e5m2",
    "runner": "pooling",
    "convert": "embed",
    "pooler_config": {"pooler_config": {"seq_pooling_type": "LAST"}},
    "task": "embed",
    "override_pooler_config": {"override_pooler_config": {"pooling_type": "MEAN"}},
    "hf_overrides": {"hf_overrides": {"num_labels": 3}},
    "generation_config": "vllm",
    "override_generation_config": {"override_generation_config": {"temperature": 0.5}},
    "trust_remote_code": True,
    "tensor_parallel_size": 2,
    "data_parallel_size": 2,
    "pipeline_parallel_size": 2,
    "distributed_executor_backend": "together",
    "limit_mm_per_prompt": {"limit_mm_per_prompt": {"image": 2}},
    "mm_processor_kwargs": {"mm_processor_kwargs": {"do_rescale": False}},
    "media_io_kwargs": {"media_io_kwargs": {"image": {"rgba_background_color": [0, 0, 0]}}},
    "mm_processor_cache_gb": 0.5,
    "interleave_mm_strings": True,
    "allowed_local_media_path": "/tmp",
    "allowed_media_domains": ["images.example.org", "localhost"],
    "max_num_encoder_input_tokens": 64,
    "encoder_cache_size": 128,
    "disable_chunked_mm_input": True,
    "preemption_mode": "swap",
    "trace": True,
    "disable_log_stats": True,
    "enable_log_requests": True,
    "engine_process": True,
    **{name: default for name, (default, _) in ENGINE_DEFAULTS_ONLY.items()},
}
CLASSES = {"kv_cache_manager_cls"}


def arguments_of(name):
    value = VALUES[name]
    return value if isinstance(value, dict) else {name: value}


def typed(arguments, dotted=False):
    """Words of a command line: a dict is JSON, or a word for each of its keys."""
    words = []
    for name, value in arguments.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            words.append(flag if value else "--no-" + flag[2:])
        elif isinstance(value, dict) and dotted:
            for key, part in value.items():
                text = part if isinstance(part, str) else json.dumps(part)
                words += [f"{flag}.{key}", text]
        elif isinstance(value, dict):
            words += [flag, json.dumps(value)]
        elif isinstance(value, list):
            words += [flag, *value]
        else:
            words += [flag, str(value)]
    return words


@pytest.mark.parametrize("name", [field.name for field in fields(AsyncEngineArgs)])
def test_an_argument_is_the_same_from_python_typed_and_in_a_file(tmp_path, capsys, name):
    file = tmp_path / "config.yaml"
    if name in CLASSES:
        for words in ([f"--{name}", "my.Class"], ["--config", str(file)]):
            file.write_text(f"{name}: my.Class\n")
            with pytest.raises(SystemExit):
                parse_args(words)
            assert "it takes a class, which only a program can give" in capsys.readouterr().err
        return
    arguments = arguments_of(name)
    wanted = AsyncEngineArgs(**arguments)
    assert name in ENGINE_DEFAULTS_ONLY or wanted != AsyncEngineArgs(), "the value says nothing"
    assert engine_args(parse_args(typed(arguments))) == wanted
    assert engine_args(parse_args(typed(arguments, dotted=True))) == wanted
    for between in "_-":
        keys = {one.replace("_", between): value for one, value in arguments.items()}
        file.write_text(yaml.safe_dump(keys))
        assert engine_args(parse_args(["--config", str(file)])) == wanted


def test_the_help_says_of_which_kind_a_value_is_and_begins_short():
    text = make_parser().format_help()
    assert text.startswith("usage: minivllm serve [MODEL] [--flag VALUE ...]\n")
    assert not re.search(r"--[\w-]+ X\b", text)
    for words in (
        "--max-num-seqs N ", "--gpu-memory-utilization NUMBER", "--dtype TEXT ",
        "--pooler-config JSON", "--lora-target-modules TEXT [TEXT ...]",
    ):  # fmt: skip
        assert words in text


def test_the_speculative_flags_are_vllms():
    wanted = AsyncEngineArgs(speculative_config=NGRAM).speculative_config
    text = json.dumps(NGRAM)
    for words in (
        ["--speculative-config", text],
        ["-sc", text],
        ["--speculative_config=" + text],
        ["-sc.method", "ngram", "-sc.num_speculative_tokens=4", "-sc.prompt_lookup_max", "3"],
        ["--spec-method", "ngram", "--spec-tokens", "4", "-sc.prompt_lookup_max=3"],
        ["--spec_method=ngram", "--spec_tokens", "4", "-sc", '{"prompt_lookup_max": 3}'],
    ):
        assert engine_args(parse_args(words)).speculative_config == wanted


def test_an_engine_config_is_the_same_from_python_and_from_flags():
    words = ["-sc.method=ngram", "-sc.num_speculative_tokens=2",
             "--structured-outputs-config.backend", "fsm"]  # fmt: skip
    typed_config = engine_args(parse_args(words)).create_engine_config()
    config = AsyncEngineArgs(
        speculative_config={"method": "ngram", "num_speculative_tokens": 2},
        structured_outputs_config={"backend": "fsm"},
    ).create_engine_config()
    assert typed_config.speculative_config == config.speculative_config
    assert typed_config.structured_outputs_config == config.structured_outputs_config
    assert typed_config.scheduler_config.num_speculative_tokens == 2


# -- JSON, key by key ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (".a 1", {"a": 1}),
        (".a=1", {"a": 1}),
        (".a x=y", {"a": "x=y"}),
        (".a.b true .a.c null", {"a": {"b": True, "c": None}}),
        ('.a {"b":[1]} .a.c 8k', {"a": {"b": [1], "c": 8000}}),
        (".a+ x .a+=y,z", {"a": ["x", "y", "z"]}),
        (".a [1] .a+ x", {"a": [1, "x"]}),
        (".a 1 .a 2", {"a": 2}),
        (".a 1 .a.b -0.5", {"a": {"b": -0.5}}),
        (".a_b NoJSON .c-d=", {"a_b": "NoJSON", "c-d": ""}),
    ],
)
def test_json_is_typed_key_by_key(words, wanted):
    flag = "--default_chat_template_kwargs"
    words = [flag + word if word[0] == "." else word for word in words.split()]
    args = parse_args([*words, "--seed", "3"])
    assert (args.default_chat_template_kwargs, args.seed) == (wanted, 3)


def test_what_is_typed_key_by_key_is_one_value_which_wins(tmp_path):
    """Keys typed one by one count as one JSON value that was typed last, as in vLLM."""
    file = tmp_path / "config.yaml"
    file.write_text("override-generation-config: {temperature: 0, top_k: 5}\n")
    words = ["--override-generation-config.top_p", "0.5", "--override-generation-config", "{}"]
    assert parse_args(["--config", str(file)]).override_generation_config["top_k"] == 5
    args = parse_args(["--config", str(file), *words])
    assert args.override_generation_config == {"top_p": 0.5}
    file.write_text(
        "speculative_config.method: ngram\nspeculative-config.num_speculative_tokens: 3"
    )
    args = engine_args(parse_args(["--config", str(file)]))
    assert args == AsyncEngineArgs(
        speculative_config={"method": "ngram", "num_speculative_tokens": 3}
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-sc", "ngram"], "argument --speculative-config/-sc: must be JSON, got 'ngram'"),
        (["--hf-overrides", "[" * 100_000], "argument --hf-overrides: must be JSON, got '[[["),
        (["--speculative-config.method"], "--speculative-config.method needs a value"),
        (["-sc.method", "--port", "1"], "-sc.method needs a value"),
        (["--max-num-seqs.a", "1"], "unrecognized arguments: --max-num-seqs.a"),
        (["--max-model-len", "many"], "--max-model-len: an integer, or one like 8k or 8K"),
    ],
)
def test_json_that_is_none_is_named(capsys, words, message):
    with pytest.raises(SystemExit):
        parse_args(words)
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-sc", "[1]"], r"speculative_config must be a dict, got \[1\]"),
        (["-sc.k", "1"], "speculative_config must be one of its keys: .*, got 'k'"),
        (["--hf-overrides", "[1]"], r"hf_overrides must be a dict"),
        (["--structured-outputs-config.a=1"], "structured_outputs_config: .* no argument 'a'"),
        (["--spec-method", "ngram"], r"^spec_method: .*'num_speculative_tokens'\] must be given"),
        (["--spec-tokens", "0", "-sc.method=ngram"], "^spec_tokens: num_.* 1 to 128, got 0"),
        (["--spec-tokens", "4", "--speculative-model=x"], "speculative_model must be None beside"),
    ],
)
def test_a_flag_of_a_wrong_value_is_refused_as_python_refuses_it(words, message):
    with pytest.raises(ValueError, match=message):
        engine_args(parse_args(words))


def test_the_short_names_win_over_the_dict_and_say_so(caplog, monkeypatch):
    from minivllm.config import speculative

    monkeypatch.setattr(speculative.logger, "propagate", True)
    with caplog.at_level("WARNING", logger=speculative.logger.name):
        args = EngineArgs(speculative_config=NGRAM, spec_tokens=9)
    assert args.speculative_config.num_speculative_tokens == 9
    assert args.speculative_config.prompt_lookup_max == 3
    (line,) = caplog.messages
    assert line == "spec_tokens=9 is used, not the 4 of speculative_config."
    assert NGRAM["num_speculative_tokens"] == 4, "the caller's dict stays"
    assert (args.spec_tokens, EngineArgs(**vars(args))) == (None, args)


# -- a file --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no-such-flag: false", "there is no flag --no-such-flag"),
        ("seed: true", "--seed: an integer, or one like 8k or 8K, not 'true'"),
        ("speculative-config: {method: 2024-01-01}", "speculative-config must hold JSON's own"),
        ("speculative-config: &a {b: *a}", "speculative-config must hold JSON's own"),
        ("config: other.yaml", "there is no flag --config for a file"),
        ("a: [", "cannot be read"),
        ("enable-sleep-mode: true", "--enable-sleep-mode is not there"),
    ],
)
def test_a_file_of_flags_is_one_sentence_away_from_right(tmp_path, capsys, text, message):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(SystemExit):
        parse_args(["--config", str(file)])
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_file_that_is_no_text_is_named(tmp_path, capsys):
    file = tmp_path / "config.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SystemExit):
        parse_args(["--config", str(file)])
    assert "cannot be read" in capsys.readouterr().err


def test_values_of_a_file_may_look_like_flags_and_may_be_nothing(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(
        'response-role: "--model"\nmax-model-len: null\nrevision: None\nenable-sleep-mode: false\n'
    )
    args = parse_args(["--config", str(file)])
    assert (args.response_role, args.max_model_len, args.revision) == ("--model", None, None)


@pytest.mark.parametrize(
    ("given", "limits"),
    [
        ("image=2", {"image": 2}),
        ("image=16, video=2", {"image": 16, "video": 2}),
        ('{"image": 2, "audio": 0}', {"image": 2, "audio": 0}),
        ('{"image": {"count": 5, "width": 512}, "video": {}}', {"image": 5, "video": 999}),
        ("{}", None),
    ],
)
def test_a_limit_of_pictures_is_json_or_vllms_old_form(given, limits):
    assert engine_args(parse_args(["--limit-mm-per-prompt", given])).limit_mm_per_prompt == limits
    assert EngineArgs(limit_mm_per_prompt=given).limit_mm_per_prompt == limits


@pytest.mark.parametrize(
    ("argument", "value", "said"),
    [
        ("limit_mm_per_prompt", "images=2", "no argument 'images'; did you mean 'image'"),
        ("limit_mm_per_prompt", "image=two", "must be a dict such as"),
        ("limit_mm_per_prompt", "image", "must be a dict such as"),
        ("limit_mm_per_prompt", "[1]", "must be a dict such as"),
        ("limit_mm_per_prompt", {"image": -1}, "an integer of at least 0, got -1"),
        ("limit_mm_per_prompt", {"image": {"count": True}}, "an integer of at least 0, got True"),
        ("limit_mm_per_prompt", {"image": {"length": 3}}, "no argument 'length'"),
        ("mm_processor_kwargs", [1], "must be a dict"),
        ("media_io_kwargs", {"image": 5}, "must be a dict of options by modality"),
        ("media_io_kwargs", {"image": {"image_mode": "CMYK"}}, "image_mode must be"),
        ("media_io_kwargs", {"image": {"rgba_background_color": [0, 0, 256]}}, "three integers"),
        ("media_io_kwargs", {"audio": {"rate": 1}}, "no argument 'rate'"),
        ("mm_processor_cache_gb", -1, "at least 0, got -1"),
        ("mm_processor_cache_gb", float("nan"), "at least 0, got nan"),
        ("allowed_local_media_path", "/no/such/directory", "an existing directory"),
        ("allowed_local_media_path", __file__, "an existing directory"),
        ("allowed_media_domains", "images.example.org", "a list of names of hosts"),
        ("allowed_media_domains", ["https://images.example.org"], "a list of names of hosts"),
        ("allowed_media_domains", ["a b"], "a list of names of hosts"),
        ("encoder_cache_size", 0, "an integer of at least 1"),
        ("max_num_encoder_input_tokens", 0.5, "an integer of at least 1"),
    ],
)  # fmt: skip
def test_a_wrong_option_of_pictures_is_named(argument, value, said):
    with pytest.raises(ValueError, match=f"^{argument}|^image_mode|^rgba_background") as refused:
        EngineArgs(**{argument: value})
    assert said in str(refused.value)
