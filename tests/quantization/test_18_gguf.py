"""GGUF files, written by the reference package: numbers, shapes, tokenizers, and broken ones."""

import json
import random
import re
import struct
import tracemalloc
from dataclasses import replace

import gguf
import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from minivllm import LLM, EngineArgs, SamplingParams
from minivllm.embedded import embedded_model_path
from minivllm.engine.input_processor import load_tokenizer
from minivllm.lab.oracle import next_token_logits
from minivllm.models.loader import load_model
from minivllm.quantization.gguf import GGUFConfig, load_config, weights_iterator
from minivllm.quantization.gguf.reader import GGUFReader
from minivllm.quantization.gguf.types import TYPES

CPU = torch.device("cpu")
SIZES = {
    "vocab_size": 96, "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 64,
    "bos_token_id": None, "eos_token_id": 95, "pad_token_id": None,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e4, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
# types of a real file of Gemma 3 270M, by parts of names
Q4_K_M = {"attn_q": 6, "attn_k": 6, "attn_v": 8, "attn_output": 12, "ffn_down": 14, "ffn": 6,
          "token_embd": 8}  # fmt: skip
GEMMA3 = {"head_dim": 64, "query_pre_attn_scalar": 64, "sliding_window": 9,
          "num_key_value_heads": 1}  # fmt: skip
YARN = LINEAR | {"rope_type": "yarn", "original_max_position_embeddings": 64}


# -- writing -------------------------------------------------------------------------------------


def random_blocks(kind, shape, rng):
    """Valid blocks of a K type: small scales, the rest any bits."""
    blocks = rng.integers(0, 256, (shape[0] * shape[1] // 256, kind.block_bytes), dtype=np.uint8)
    scales = np.float16(rng.uniform(0.5, 1, (len(blocks), 2)) * 2e-4).view(np.uint8)
    if kind.name == "Q6_K":
        blocks[:, 208:] = scales[:, :2]
    else:
        blocks[:, :4] = scales
    return blocks.reshape(shape[0], -1)


def permuted(weight, heads):
    """Rows of q and k in the order that the converter of a llama gives them."""
    shape = (heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return weight.reshape(shape).swapaxes(1, 2).reshape(weight.shape)


def unpermuted(weight, heads):
    shape = (heads, weight.shape[0] // heads // 2, 2, *weight.shape[1:])
    return weight.reshape(shape).swapaxes(1, 2).reshape(weight.shape)


def add_gemma3(writer, config):
    """Metadata that only this architecture has."""
    ropes = config.rope_parameters
    writer.add_rope_freq_base(ropes["full_attention"]["rope_theta"])
    if ropes["full_attention"]["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(ropes["full_attention"]["factor"])
    if ropes["sliding_attention"]["rope_theta"] != 1e4:
        writer.add_float32("gemma3.rope.freq_base_swa", ropes["sliding_attention"]["rope_theta"])
    writer.add_sliding_window(config.sliding_window)
    if config.final_logit_softcapping:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if config.num_hidden_layers < 6:  # by its default only each sixth layer sees all
        kinds = [kind == "sliding_attention" for kind in config.layer_types]
        writer.add_array("gemma3.attention.sliding_window_pattern", kinds)


def write(path, model, types, add_tokenizer=lambda writer: None):
    """Write transformers' model as a GGUF file, and give it the numbers that the file has.

    Args:
        types: the number of all matrices' type, or numbers by parts of names, the first that fits.
    """
    config, rng = model.config, np.random.default_rng(5)
    names = {"gemma3_text": "gemma3", "mistral": "llama"}
    arch, layers = names.get(config.model_type, config.model_type), config.num_hidden_layers
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    if arch == "gemma3":
        add_gemma3(writer, config)
        rope = {"rope_type": "default"}
    else:
        writer.add_rope_freq_base(rope["rope_theta"])
    if config.model_type == "mistral":
        writer.add_sliding_window(config.sliding_window)
    if arch in ("qwen3", "gemma3"):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "llama3":
        scaled = model.model.rotary_emb.inv_freq
        plain = 1 / rope["rope_theta"] ** (torch.arange(0, config.head_dim, 2) / config.head_dim)
        writer.add_tensor("rope_freqs.weight", (plain / scaled).numpy())
    add_tokenizer(writer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch.upper()], layers)
    types = types if isinstance(types, dict) else {"": types}
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        theirs, data = names.get_name(name, (".weight", ".bias")), tensor.numpy()
        sort = heads.get(theirs.split(".")[-2]) if arch == "llama" else None
        data = permuted(data, sort) if sort else data
        if data.ndim == 1:
            is_around_0 = arch == "gemma3" and name.endswith("norm.weight")
            writer.add_tensor(theirs, data + 1 if is_around_0 else data)
            continue
        number = next(number for part, number in types.items() if part in theirs)
        kind, qtype = TYPES[number], gguf.GGMLQuantizationType(number)
        if kind.block_size == 256:
            packed = random_blocks(kind, data.shape, rng)
        else:
            packed = gguf.quantize(data, qtype)
        writer.add_tensor(theirs, packed, raw_dtype=qtype)
        numbers = gguf.dequantize(packed, qtype)
        tensor.copy_(torch.from_numpy(unpermuted(numbers, sort) if sort else numbers))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make_model(family, **changes):
    """A small random model of transformers."""
    text = "Text" if family == "Gemma3" else ""
    config = getattr(transformers, f"{family}{text}Config")(**SIZES | changes)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    generator = torch.Generator().manual_seed(7)
    for name, parameter in model.named_parameters():
        is_norm = parameter.dim() == 1 and name.endswith("weight")
        parameter.data.normal_(1.0 if is_norm else 0.0, 0.1, generator=generator)
    return model.requires_grad_(False)


# -- numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", TYPES, ids=[kind.name for kind in TYPES.values()])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the reference
def test_dequantized_numbers_are_those_of_the_reference(number):
    """To the last bit, for any bytes: infinite scales, too."""
    kind, qtype = TYPES[number], gguf.GGMLQuantizationType(number)
    assert (kind.block_size, kind.block_bytes) == gguf.GGML_QUANT_SIZES[qtype]
    data = np.random.default_rng(1).integers(0, 256, (3000, kind.block_bytes), dtype=np.uint8)
    want = gguf.dequantize(data, qtype).reshape(-1)
    got = kind.dequantize(torch.from_numpy(data).view(-1)).numpy()
    same = (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))
    assert got.dtype == np.float32
    assert same.all()


CASES = {
    **{f"llama-{kind.name}": ("Llama", number, {}) for number, kind in TYPES.items()},
    "llama-tied-biases": ("Llama", 8, {"tie_word_embeddings": True, "attention_bias": True}),
    "llama-llama3": ("Llama", 0, {"rope_parameters": LLAMA3}),
    "llama-linear": ("Llama", 1, {"rope_parameters": LINEAR}),
    "qwen2-Q4_0": ("Qwen2", 2, {"tie_word_embeddings": True}),
    "qwen2-Q6_K": ("Qwen2", 14, {}),
    "qwen2-yarn": ("Qwen2", 7, {"rope_parameters": YARN}),
    "qwen3-Q5_0": ("Qwen3", 6, {"tie_word_embeddings": True, "head_dim": 64}),
    "llama-window": ("Mistral", 8, {"sliding_window": 9}),
    "gemma3-Q4_K_M": ("Gemma3", Q4_K_M, GEMMA3 | {"num_hidden_layers": 7}),
    "gemma3-kinds": (
        "Gemma3",
        1,
        GEMMA3
        | {
            "layer_types": ["full_attention", "sliding_attention"],
            "final_logit_softcapping": 3.0,
            "tie_word_embeddings": False,
            "rope_parameters": {
                "full_attention": LINEAR,
                "sliding_attention": {"rope_type": "default", "rope_theta": 3e3},
            },
        },
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_logits_and_tokens_are_those_of_the_dequantized_model(case, tmp_path):
    family, number, changes = CASES[case]
    theirs, path = make_model(family, **changes), tmp_path / "model.gguf"
    write(path, theirs, number)
    config = replace(load_config(path), quant_config=GGUFConfig.from_file(path))
    weights = weights_iterator(path, config)
    ours = load_model(path, config, torch.float32, CPU, weights=weights)
    ids = random.Random(3).choices(range(95), k=60)
    for length in (1, 23, 60):
        want = theirs(torch.tensor([ids[:length]])).logits[0, -1]
        torch.testing.assert_close(next_token_logits(ours, ids[:length]), want, atol=1e-4, rtol=0)
    llm = LLM(str(path), skip_tokenizer_init=True, num_gpu_blocks_override=40)
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    prompt = {"prompt_token_ids": ids[:9]}
    (output,) = llm.generate([prompt], params, use_tqdm=False)
    want = theirs.generate(
        torch.tensor([ids[:9]]), max_new_tokens=8, do_sample=False, eos_token_id=None
    )
    assert list(output.outputs[0].token_ids) == want[0, 9:].tolist()


# -- tokenizers ----------------------------------------------------------------------------------


def add_tokenizer(writer, kind, tokenizer, pre, size):
    """Tokens with their types as llama.cpp's converter has them; ids without a token are unused."""
    added = tokenizer.added_tokens_decoder
    tokens = {i: token for token, i in tokenizer.get_vocab().items()}
    types = [
        5 if i not in tokens else 1 if i not in added else 3 if added[i].special else 4
        for i in range(size)
    ]
    tokens = [tokens.get(i, f"[PAD{i}]") for i in range(size)]
    types = [6 if token.startswith("<0x") else t for token, t in zip(tokens, types, strict=True)]
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    state = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    if kind == "gpt2":
        writer.add_token_merges([" ".join(merge) for merge in state])
    else:  # a score for each token: the place of its first merge
        first = {}
        for place, (left, right) in enumerate(state):
            first.setdefault(left + right, place)
        writer.add_token_scores([-float(first.get(token, 1e6)) for token in tokens])
    for name, i in (("bos", tokenizer.bos_token_id), ("eos", tokenizer.eos_token_id),
                    ("pad", tokenizer.pad_token_id), ("unk", tokenizer.unk_token_id)):  # fmt: skip
        if i is not None:
            getattr(writer, f"add_{name}_token_id")(i)
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)


@pytest.fixture(scope="module")
def embedded_gguf(tmp_path_factory):
    """The embedded model in float16, with its tokenizer."""
    directory = embedded_model_path()
    path = tmp_path_factory.mktemp("gguf") / "embedded.gguf"
    model = transformers.AutoModelForCausalLM.from_pretrained(directory).requires_grad_(False)
    tokenizer = load_tokenizer(directory)
    size = model.config.vocab_size
    write(path, model, 1, lambda writer: add_tokenizer(writer, "gpt2", tokenizer, "qwen2", size))
    return path


TEXTS = ["The capital of Peru? ", "| a | b |\n| 10 | 455 |\n", "  two\n\n spaces\t", 'x = {"y": 1}',
         "e\u0301 \u00e9 \u2581 \U0001f600 \u4e2d\u6587", "<|im_start|>user\nHi.<|im_end|>\n", "",
         "don't I'VE 3.1415"]  # fmt: skip


def test_the_embedded_tokenizer_comes_back(embedded_gguf):
    ours, want = load_tokenizer(embedded_gguf), load_tokenizer(embedded_model_path())
    for text in TEXTS:
        ids = want.encode(text)
        assert ours.encode(text) == ids
        for skip in (False, True):
            assert ours.decode(ids, skip_special_tokens=skip) == want.decode(
                ids, skip_special_tokens=skip
            )
    assert ours.get_vocab() == want.get_vocab()
    for name in ("bos_token", "eos_token", "unk_token", "pad_token", "chat_template"):
        assert getattr(ours, name) == getattr(want, name)


def test_chat_with_a_file_alone_or_with_a_tokenizer_from_elsewhere(embedded_gguf):
    params = SamplingParams(temperature=0, max_tokens=12)
    messages = [{"role": "user", "content": "What is the capital of Peru?"}]
    (want,) = LLM().chat(messages, params, use_tqdm=False)
    for tokenizer in (None, str(embedded_model_path())):
        llm = LLM(str(embedded_gguf), tokenizer=tokenizer, load_format="gguf")
        (output,) = llm.chat(messages, params, use_tqdm=False)
        assert output.prompt_token_ids == want.prompt_token_ids
        assert output.outputs[0].text == want.outputs[0].text
        assert llm.llm_engine.vllm_config.model_config.dtype == torch.float32


WORDS = {  # of "I'VE 1234 a", cut before merging
    "gpt-2": ["I", "'", "VE", " 1234", " a"],
    "smollm": ["I", "'", "VE", " ", "1", "2", "3", "4", " a"],
    "qwen2": ["I", "'VE", " ", "1", "2", "3", "4", " a"],
    "llama-bpe": ["I", "'VE", " ", "123", "4", " a"],
}


@pytest.mark.parametrize("pre", WORDS)
def test_a_name_says_how_words_are_cut(pre, tmp_path):
    """Merges make a token of each word; llama-bpe's texts begin with bos, unless told."""
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<s>"]
    merges = []
    for word in sorted({word.replace(" ", "\u0120") for word in WORDS[pre]}):
        for cut in range(1, len(word)):
            merges.append((word[:cut], word[cut]))
            tokens.append(word[: cut + 1])
    tokens = list(dict.fromkeys(tokens))
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    want = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>")
    for told in (None, False, True):
        writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
        add_tokenizer(writer, "gpt2", want, pre, len(tokens))
        if told is not None:
            writer.add_add_bos_token(told)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        ids = load_tokenizer(tmp_path / "x.gguf").encode("I'VE 1234 a")
        bos = ["<s>"] if told or (told is None and pre == "llama-bpe") else []
        found = [tokens[i].replace("\u0120", " ") for i in ids]
        assert found == bos + WORDS[pre]


@pytest.mark.parametrize("prefix", [True, False])
def test_a_sentencepiece_tokenizer_comes_back(prefix, tmp_path):
    backend = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    normalizer = [normalizers.Prepend("▁")] * prefix + [normalizers.Replace(" ", "▁")]
    backend.normalizer = normalizers.Sequence(normalizer)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(steps + [decoders.Strip(" ", 1, 0)] * prefix)
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    text = "the cat sat on the mat and the rat ate a hat, so that was that.\nthen they sat there"
    backend.train_from_iterator(
        [text] * 9, trainers.BpeTrainer(vocab_size=340, special_tokens=special)
    )
    state = json.loads(backend.to_str())
    state["added_tokens"] = state["added_tokens"][:3]  # bytes are none
    want = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(state)),
        unk_token="<unk>", bos_token="<s>", eos_token="</s>",
    )  # fmt: skip
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    add_tokenizer(writer, "llama", want, "default", len(want.get_vocab()))
    writer.add_add_space_prefix(prefix)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    ours = load_tokenizer(tmp_path / "x.gguf")
    for text in (*TEXTS, "that rat", " then  the hat</s>", "<s>a"):
        ids = want.encode(text)
        assert ours.encode(text) == [want.bos_token_id, *ids]
        assert ours.decode(ids) == want.decode(ids)


# -- broken files --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The bytes of a small good file, tokenizer included."""
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 300}
    vocabulary = {token: i for i, token in enumerate([*map(chr, range(256, 553)), "\u0100\u0101"])}
    backend = Tokenizer(models.BPE(vocabulary, [("\u0100", "\u0101")]))
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", chat_template="{{ 1 }}"
    )
    model = make_model("Llama", **sizes)
    write(path, model, 8, lambda writer: add_tokenizer(writer, "gpt2", tokenizer, "qwen2", 300))
    return path.read_bytes()


def string(text):
    return struct.pack("<Q", len(text)) + text.encode()


def header(num_tensors, *values):
    """A file's begin; values are bytes, after their keys."""
    return struct.pack("<4sIQQ", b"GGUF", 3, num_tensors, len(values)) + b"".join(values)


def tensor(name="t", dims=(32,), kind=8, offset=0, num_dims=None):
    dims_bytes = struct.pack(f"<{len(dims)}Q", *dims)
    count = len(dims) if num_dims is None else num_dims
    return string(name) + struct.pack("<I", count) + dims_bytes + struct.pack("<IQ", kind, offset)


KEY = string("k") + struct.pack("<IB", 0, 1)
NESTED = string("k") + struct.pack("<IIQ", 9, 9, 1) + struct.pack("<IQ", 0, 0)
BROKEN = {
    "empty": (b"", "first four bytes"),
    "magic": (b"GGML" + b"\0" * 60, "first four bytes must be 'GGUF'"),
    "version": (struct.pack("<4sIQQ", b"GGUF", 9, 0, 0), "version must be 2 or 3, got 9"),
    "count of tensors": (header(2**63), f"number of tensors must be at most .* got {2**63}"),
    "count of key-values": (struct.pack("<4sIQQ", b"GGUF", 3, 0, 2**40), "number of key-values"),
    "long string": (header(0, struct.pack("<Q", 2**62) + b"k" * 20), "length of a key must be"),
    "no text": (header(0, struct.pack("<Q", 1) + b"\xff" + b"\0" * 9), "text in UTF-8"),
    "type of a value": (header(0, string("k") + struct.pack("<IQ", 77, 0)), "'k' must .* got 77"),
    "nested array": (header(0, NESTED), "items of 'k' must be one of .* got 9"),
    "long array": (header(0, string("k") + struct.pack("<IIQ", 9, 5, 2**61)), "length of 'k'"),
    "key twice": (header(0, KEY, KEY), "a key must be there only once, got 'k'"),
    "name twice": (header(2) + tensor() * 2, "name must be there only once, got 't'"),
    "type of a tensor": (header(1) + tensor(kind=16), r"type of 't' .* 2 \(Q4_0\).* got 16"),
    "no dimensions": (header(1) + tensor(dims=(), num_dims=0) + b"\0" * 9, "dimensions of 't'"),
    "many dimensions": (header(1) + tensor(num_dims=2**31), "dimensions of 't' must be from 1"),
    "zero": (header(1) + tensor(dims=(32, 0)), "shape of 't' must be without a zero"),
    "row length": (header(1) + tensor(dims=(33,)), "row length of 't' must be a multiple of 32"),
    "offset": (header(1) + tensor(offset=2**40), "place of 't' must be inside the file"),
    "odd offset": (header(1) + tensor(offset=3) + b"\0" * 99, "offset of 't' must be a multiple"),
    "size": (header(1) + tensor(dims=(2**62, 2**62)), "place of 't' must be inside the file"),
    "split": (header(0, string("split.count") + struct.pack("<IH", 2, 2)), "split.count must be 1"),
    "alignment": (
        header(0, string("general.alignment") + struct.pack("<II", 4, 0)), "multiple of 8, got 0",
    ),
    "architecture": (
        header(0, string("general.architecture") + struct.pack("<I", 8) + string("bert")),
        "general.architecture must be one of llama, qwen2, qwen3, gemma3, got 'bert'",
    ),
    "no architecture": (header(0, KEY), "general.architecture must be in the file's metadata"),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_file_is_refused_with_its_field(what, tmp_path):
    path = tmp_path / "x.gguf"
    data, message = BROKEN[what]
    path.write_bytes(data)
    with pytest.raises(ValueError, match=rf"^{path}: .*{message}"):
        load_config(path)


CHANGED = {  # in the small file: a key, the new value's bytes, and the message
    "llama.block_count": (struct.pack("<I", 2**31), "llama.block_count must be from 1 to 12"),
    "llama.context_length": (struct.pack("<I", 2**31), "context_length must be from 1 to"),
    "llama.embedding_length": (struct.pack("<I", 64), r"'token_embd.weight' must be \(300, 64\)"),
    "llama.feed_forward_length": (struct.pack("<I", 64), "by the metadata, got"),
    "llama.attention.head_count": (struct.pack("<I", 6), "head_count_kv must be a divisor of"),
    "llama.rope.freq_base": (struct.pack("<f", float("nan")), "must be a positive number, got nan"),
}


@pytest.mark.parametrize("key", CHANGED)
def test_metadata_that_do_not_fit_are_refused(key, small, tmp_path):
    value, message = CHANGED[key]
    at = small.index(string(key)) + len(string(key)) + 4
    path = tmp_path / "x.gguf"
    path.write_bytes(small[:at] + value + small[at + 4 :])
    with pytest.raises(ValueError, match=rf"^{path}: .*{message}"):
        load_config(path)


UNKNOWN = {  # key: a family, a value, what is said
    "llama.rope.scaling.attn_factor": (
        "Llama", 7, "a key must be one of llama.rope.scaling.{type, factor, orig",
    ),
    "qwen2.attention.sliding_window": (
        "Qwen2", 7, "qwen2.attention.sliding_window must be at least the context",
    ),
    "llama.attention.sliding_window": (
        "Llama", 2**23, "llama.attention.sliding_window must be from 0 to 4194304, got 8388608",
    ),
}  # fmt: skip


@pytest.mark.parametrize("key", UNKNOWN)
def test_metadata_of_what_we_do_not_compute_are_refused(key, tmp_path):
    family, value, message = UNKNOWN[key]
    path = tmp_path / "x.gguf"
    write(path, make_model(family), 8, lambda writer: writer.add_uint32(key, value))
    with pytest.raises(ValueError, match=re.escape(message)):
        load_config(path)


def test_metadata_of_gemma3_that_do_not_fit_are_refused(tmp_path):
    model, path = make_model("Gemma3", **GEMMA3, num_hidden_layers=6), tmp_path / "x.gguf"
    pattern = "gemma3.attention.sliding_window_pattern"
    for add, message in (
        (lambda writer: writer.add_array(pattern, [True] * 5), f"length of {pattern} must be 6"),
        (lambda writer: writer.add_uint32(pattern, 0), f"{pattern} must be from 1 to .* got 0"),
        (lambda writer: writer.add_string(pattern, "x"), f"{pattern} must be an integer, got 'x'"),
        (lambda writer: writer.add_float32("gemma3.rope.freq_base_swa", -1.0), "positive number"),
        (lambda writer: writer.add_final_logit_softcapping(-1.0), "final_logit_softcapping"),
    ):
        write(path, model, 8, add)
        with pytest.raises(ValueError, match=message):
            load_config(path)


def test_the_end_of_a_turn_is_known_by_its_text(tmp_path):
    """Files of Gemma leave it to the reader to know; one that names another is believed."""
    tokens = [*map(chr, range(256, 349)), "<end_of_turn>", "<eos>", "<eot>"]
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, []))
    backend.add_special_tokens(["<end_of_turn>", "<eos>", "<eot>"])
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")
    model, path = make_model("Gemma3", **GEMMA3), tmp_path / "x.gguf"
    for eot, ends in ((None, {93, 94}), (95, {94, 95})):

        def add(writer, eot=eot):
            add_tokenizer(writer, "llama", tokenizer, "default", 96)
            if eot is not None:
                writer.add_eot_token_id(eot)

        write(path, model, 8, add)
        assert load_config(path).eos_token_ids == ends


def test_a_token_of_thousands_of_letters_is_refused(tmp_path):
    """Cutting it everywhere would take for ever."""
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["a" * 5000])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ValueError, match="length of a token must be at most 4096, got 5000"):
        load_tokenizer(tmp_path / "x.gguf")


def test_a_tensor_too_few_or_too_many_is_refused(small, tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(small.replace(b"blk.0.ffn_up.", b"blk.0.ffn_ab."))
    with pytest.raises(ValueError, match=r"shape of 'blk.0.ffn_up.weight' must be .* got None"):
        load_config(path)
    path.write_bytes(small.replace(string("output.weight"), string("outpux.weight")))  # tied now
    with pytest.raises(ValueError, match=r"each tensor must be one that .* got 'outpux.weight'"):
        load_config(path)


def test_damage_anywhere_is_a_value_error_and_asks_for_no_memory(small, tmp_path):
    """Truncations and flipped bytes, most of them before the data."""
    path, rng = tmp_path / "x.gguf", random.Random(11)
    path.write_bytes(small)
    begin = min(info.begin for info in GGUFReader(path).tensors.values())
    outcomes = set()
    for i in range(240):
        data = bytearray(small)
        if i % 4 == 0:
            del data[rng.randrange(len(data)) :]
        for _ in range(rng.choice((1, 1, 3)) if i % 4 else 0):
            data[rng.randrange(begin)] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        tracemalloc.start()
        try:
            config = load_config(path)
            load_tokenizer(path)
            for _ in weights_iterator(path, config):
                pass
            outcomes.add("loaded")
        except ValueError:
            outcomes.add("refused")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 30 * 2**20
    assert outcomes == {"loaded", "refused"}


def test_a_file_has_its_own_load_format(small, tmp_path):
    path = tmp_path / "x.gguf"
    with pytest.raises(FileNotFoundError, match=r"x.gguf' is not a directory; give .* GGUF"):
        LLM(str(path))
    path.write_bytes(small)
    with pytest.raises(ValueError, match="load_format must be one of auto, gguf, dummy for a GGUF"):
        LLM(str(path), load_format="safetensors")
    with pytest.raises(ValueError, match="quantization must be None or 'gguf', got 'gptq'"):
        LLM(str(path), quantization="gptq")
    config = EngineArgs(str(path), quantization="gguf").create_engine_config()
    assert config.load_config.model_directory == path
