"""Encoders: attention to the whole of a sequence, without a cache; BERT and its kin."""

import json
import logging
from functools import partial

import pytest
import torch
import transformers
from helpers import examples, make_llm
from hypothesis import given
from hypothesis import strategies as st
from paged_batches import TOLERANCE
from pooling_models import (
    ENCODERS,
    FILE,
    MAX_LEN,
    assert_near,
    hidden_states,
    logits,
    make_model,
    make_prompts,
    normalized,
    save,
)
from safetensors.torch import load_file, save_file
from text_pairs import bert_tokenizer

from minivllm import LLM
from minivllm.attention.metadata import AttentionMetadata
from minivllm.attention.selector import make_backend
from minivllm.pooling_params import PoolingParams
from minivllm.trace.records import BlocksAllocated, BlocksShared
from minivllm.worker import worker

CPU = torch.device("cpu")
FOR_A_CPU = ["paged_torch", "paged_numba", "reference"]


def ragged(lengths):
    """Metadata of sequences without blocks."""
    return AttentionMetadata.build(lengths, lengths, [[] for _ in lengths], [], CPU)


# ---- attention -------------------------------------------------------------------------------


@st.composite
def ragged_batches(draw):
    lengths = draw(st.lists(st.integers(1, 130), min_size=1, max_size=5))
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    head_dim = draw(st.sampled_from([8, 32, 48, 64]))
    dtype = draw(st.sampled_from(list(TOLERANCE)))
    rng = torch.Generator().manual_seed(draw(st.integers(0, 100)))
    heads = (kv_heads * group, kv_heads, kv_heads)
    fused = torch.randn(sum(lengths), sum(heads), head_dim, generator=rng).to(dtype)
    return lengths, fused.split_with_sizes(heads, 1)


@pytest.mark.parametrize("name", ["paged_torch", "paged_numba"])
@examples(25)
@given(batch=ragged_batches())
def test_every_row_sees_the_whole_of_its_own_sequence(name, batch):
    """Against dense attention of each sequence, of views of a fused product as models have them."""
    lengths, qkv = batch
    scale = qkv[0].shape[-1] ** -0.5
    found = make_backend(name, CPU).attend_ragged(*qkv, ragged(lengths), scale)
    assert found.dtype == qkv[0].dtype
    torch.testing.assert_close(
        found.double(), dense(lengths, *qkv, scale),
        rtol=TOLERANCE[found.dtype], atol=TOLERANCE[found.dtype],
    )  # fmt: skip


def test_the_reference_sees_the_whole_of_each_sequence():
    qkv = torch.randn(12, 8, 16).split_with_sizes((4, 2, 2), 1)
    found = make_backend("reference", CPU).attend_ragged(*qkv, ragged([7, 1, 4]), 0.25)
    torch.testing.assert_close(found.double(), dense([7, 1, 4], *qkv, 0.25), rtol=1e-5, atol=1e-5)


def dense(lengths, query, key, value, scale):
    """Attention in two products, a sequence after the other, in float64."""
    group = query.shape[1] // key.shape[1]
    outputs = []
    for q, k, v in zip(*(x.double().split(lengths) for x in (query, key, value)), strict=True):
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        weights = (torch.einsum("ihd,jhd->hij", q, k) * scale).softmax(-1)
        outputs.append(torch.einsum("hij,jhd->ihd", weights, v))
    return torch.cat(outputs)


# ---- models ----------------------------------------------------------------------------------

# transformers' RoBERTa does not count padding, whose id no prompt has
PROMPTS = [[max(token, 3) for token in prompt] for prompt in make_prompts()]


def embeddings(llm, prompts=PROMPTS, params=None):
    outputs = llm.embed(prompts, pooling_params=params, use_tqdm=False)
    return [torch.tensor(output.outputs.embedding) for output in outputs]


def probabilities(llm, prompts=PROMPTS, params=None):
    outputs = llm.classify(prompts, pooling_params=params, use_tqdm=False)
    return [torch.tensor(output.outputs.probs) for output in outputs]


@pytest.mark.bits
@pytest.mark.parametrize("backend", FOR_A_CPU)
@pytest.mark.parametrize("family", ENCODERS)
def test_an_encoder_embeds_by_its_first_token(tmp_path, family, backend):
    """50 prompts of 1 to 200 tokens in steps of many; no block is ever taken."""
    model = make_model(family)
    llm = make_llm(save(model, tmp_path), attention_backend=backend, trace=True)
    assert_near(embeddings(llm), [normalized(hidden_states(model, p)[0]) for p in PROMPTS])
    assert llm.trace.num_steps < len(PROMPTS)
    assert not [*llm.trace.of(BlocksAllocated), *llm.trace.of(BlocksShared)]
    assert not llm.llm_engine.vllm_config.cache_config.enable_prefix_caching


def test_the_log_tells_no_room_in_a_kv_cache_that_is_not_there(tmp_path, caplog, monkeypatch):
    """Nor what transformers thinks of a config.json without a dtype."""
    save(make_model("Bert"), tmp_path, dtype=None)
    transformers.utils.logging.warning_once.cache_clear()
    for name in ("minivllm", "transformers"):
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
    with caplog.at_level("INFO", logger=worker.logger.name):
        make_llm(tmp_path, max_num_batched_tokens=300, max_num_seqs=7)
    (line,) = {line for line in caplog.messages if "KV cache" in line}
    assert line.startswith("No KV cache: an encoder computes a text in one step; a step has up to")
    assert line.endswith("300 tokens of up to 7 texts.")
    assert not [line for line in caplog.messages if "blocks" in line or "concurrency" in line]
    assert not [line for line in caplog.messages if "deprecated" in line]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits_are_near(tmp_path, dtype):
    model = make_model("Bert")
    found = embeddings(make_llm(save(model, tmp_path), dtype=dtype))
    for one, prompt in zip(found, PROMPTS, strict=True):
        assert one @ normalized(hidden_states(model, prompt)[0]) > 0.995


@pytest.mark.bits
@pytest.mark.parametrize("num_labels", [1, 3])
@pytest.mark.parametrize("family", ENCODERS)
def test_an_encoder_classifies(tmp_path, family, num_labels):
    """With one label it is a cross-encoder, and its score is between 0 and 1."""
    model = make_model(family, "ForSequenceClassification", num_labels=num_labels)
    activation = torch.sigmoid if num_labels == 1 else partial(torch.softmax, dim=-1)
    wanted = [activation(logits(model, prompt)) for prompt in PROMPTS]
    assert_near(probabilities(make_llm(save(model, tmp_path))), wanted)


@pytest.mark.bits
@pytest.mark.parametrize("pooling_type", ["MEAN", "LAST", "CLS"])
def test_other_rows_can_be_asked_for(tmp_path, pooling_type):
    model = make_model("Bert")
    config = {"seq_pooling_type": pooling_type}
    llm = make_llm(save(model, tmp_path), pooler_config=config)
    of = {"MEAN": lambda x: x.mean(0), "LAST": lambda x: x[-1], "CLS": lambda x: x[0]}
    wanted = [normalized(of[pooling_type](hidden_states(model, p))) for p in PROMPTS]
    assert_near(embeddings(llm), wanted)
    params = PoolingParams(task="token_embed", use_activation=False)
    if pooling_type == "CLS":
        outputs = llm.encode(PROMPTS, params, use_tqdm=False)
        assert_near([o.outputs.data for o in outputs], [hidden_states(model, p) for p in PROMPTS])


@pytest.mark.bits
def test_tokens_of_the_second_text_have_another_type(tmp_path):
    model = make_model("Bert", "ForSequenceClassification", num_labels=1)
    llm = make_llm(save(model, tmp_path))
    prompts, firsts = PROMPTS[:6], [0, 7, 1, len(PROMPTS[3]), 3, 2]
    params = [PoolingParams(extra_kwargs={"compressed_token_type_ids": n}) for n in firsts]
    types = [
        torch.tensor([[0] * n + [1] * (len(p) - n)])[:, : len(p)]
        for p, n in zip(prompts, firsts, strict=True)
    ]
    wanted = [
        model(torch.tensor([p]), token_type_ids=t).logits[0].sigmoid().detach()
        for p, t in zip(prompts, types, strict=True)
    ]
    found = probabilities(llm, prompts, params)
    assert_near(found, wanted)
    assert not torch.equal(found[2], probabilities(llm, prompts)[2])


@pytest.mark.parametrize("family", ENCODERS)
def test_a_cross_encoder_scores_pairs_of_texts(tmp_path, family):
    """The tokenizer says which text a token is of; RoBERTa has types, but was not given any."""
    tokenizer = bert_tokenizer()
    if family != "Bert":
        tokenizer.model_input_names = ["input_ids", "attention_mask"]
    changes = {"num_labels": 1, "pad_token_id": tokenizer.pad_token_id}
    model = make_model(family, "ForSequenceClassification", **changes)
    tokenizer.save_pretrained(save(model, tmp_path))
    outputs = LLM(str(tmp_path), task="score").score("a b c", ["d", "e f e f"], use_tqdm=False)
    for output, document in zip(outputs, ["d", "e f e f"], strict=True):
        pair = tokenizer("a b c", document, return_tensors="pt")
        with torch.no_grad():
            wanted = model(**pair).logits.sigmoid().item()
        assert output.outputs.score == pytest.approx(wanted, abs=1e-5)


@pytest.mark.bits
def test_a_model_without_types_refuses_them(tmp_path):
    model = make_model("XLMRoberta", type_vocab_size=1)
    llm = make_llm(save(model, tmp_path))
    params = PoolingParams(extra_kwargs={"compressed_token_type_ids": 3})
    with pytest.raises(ValueError, match="tokens of this model have no types"):
        llm.embed(PROMPTS[:2], pooling_params=params, use_tqdm=False)
    assert_near(embeddings(llm, PROMPTS[:1]), [normalized(hidden_states(model, PROMPTS[0])[0])])


@pytest.mark.parametrize("first", [-1, "a", True])
def test_an_index_of_the_first_token_of_type_1_is_an_index(first):
    with pytest.raises(ValueError, match="compressed_token_type_ids"):
        PoolingParams(extra_kwargs={"compressed_token_type_ids": first})


# ---- checkpoints -----------------------------------------------------------------------------


@pytest.mark.bits
@pytest.mark.parametrize(("family", "prefix"), [("Bert", "bert."), ("Roberta", "roberta.")])
def test_what_an_embedder_does_not_need_is_left_out(tmp_path, family, prefix):
    """A checkpoint that guesses masked tokens: its prefix, its head, the buffers of old files."""
    model = make_model(family, "ForMaskedLM")
    save(model, tmp_path, architectures=[f"{family}Model"])
    tensors = load_file(tmp_path / FILE)
    assert any(name.startswith(("cls.", "lm_head.")) for name in tensors)
    tensors[f"{prefix}embeddings.position_ids"] = torch.arange(9)[None]
    save_file(tensors, tmp_path / FILE)
    wanted = [normalized(hidden_states(model, p)[0]) for p in PROMPTS]
    assert_near(embeddings(make_llm(tmp_path)), wanted)


@pytest.mark.bits
def test_a_classifier_embeds_when_asked(tmp_path):
    for family in ("Bert", "Roberta"):
        model = make_model(family, "ForSequenceClassification")
        llm = make_llm(save(model, tmp_path / family), task="embed")
        assert_near(embeddings(llm), [normalized(hidden_states(model, p)[0]) for p in PROMPTS])


@pytest.mark.bits
def test_the_first_berts_called_a_norms_tensors_gamma_and_beta(tmp_path):
    model = make_model("Bert")

    older = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    tensors = load_file(save(model, tmp_path) / FILE)
    for new, old in older.items():
        tensors = {name.replace(new, old): tensor for name, tensor in tensors.items()}
    save_file({f"bert.{name}": tensor for name, tensor in tensors.items()}, tmp_path / FILE)
    assert_near(
        embeddings(make_llm(tmp_path)), [normalized(hidden_states(model, p)[0]) for p in PROMPTS]
    )


def test_a_classifier_is_never_made_up(tmp_path):
    save(make_model("Bert"), tmp_path, architectures=["BertForSequenceClassification"])
    with pytest.raises(ValueError, match=r"lacks 2 tensors, the first is 'classifier\.weight'"):
        make_llm(tmp_path)


# ---- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"enable_chunked_prefill": True}, "an encoder reads each prompt whole"),
        ({"enable_prefix_caching": True}, "an encoder reads each prompt whole"),
        ({"max_num_batched_tokens": MAX_LEN - 1}, f"at least max_model_len={MAX_LEN}"),
        ({"task": "generate"}, "it cannot generate"),
        ({"enable_lora": True}, "BertModel"),
    ],
)
def test_an_encoder_refuses(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        make_llm(save(make_model("Bert"), tmp_path), **changes)


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("Roberta", {"pad_token_id": None}, "pad_token_id in config.json must be a token id"),
        ("Bert", {"is_decoder": True}, "is_decoder=True in config.json is not supported"),
        ("Bert", {"position_embedding_type": "relative_key"}, "only 'absolute' is"),
    ],
)
def test_other_kinds_of_encoders_are_refused(tmp_path, family, changes, message):
    with pytest.raises(ValueError, match=message):
        make_llm(save(make_model(family), tmp_path, **changes))


BERT_FILES = [f"sentence_{name}_config.json" for name in (
    "bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")]  # fmt: skip


def limit_of(directory, **words):
    return make_llm(directory, **words).llm_engine.max_model_len


@pytest.mark.parametrize("file", BERT_FILES)
def test_sentence_transformers_say_how_long_a_text_may_be(tmp_path, file):
    save(make_model("Bert"), tmp_path)
    (tmp_path / file).write_text('{"max_seq_length": 8, "do_lower_case": false}')
    assert limit_of(tmp_path) == 8
    assert limit_of(tmp_path, max_model_len=5) == 5
    with pytest.raises(ValueError, match="max_model_len must be at most the 8 tokens that this"):
        make_llm(tmp_path, max_model_len=9)
    with pytest.raises(ValueError, match="9 tokens, but max_model_len is 8"):
        make_llm(tmp_path).embed([[5] * 9], use_tqdm=False)


@pytest.mark.parametrize(
    ("family", "files", "limit"),
    [
        ("Bert", {"tokenizer_config.json": {"model_max_length": 64}}, 64),
        ("Bert", {"tokenizer_config.json": {"model_max_length": 1e30}}, MAX_LEN),
        ("Bert", {"tokenizer_config.json": {"model_max_length": None}}, MAX_LEN),
        # the newer word wins, though it is larger; there are no positions beyond the last
        ("Bert", {"tokenizer_config.json": {"model_max_length": 64},
                  BERT_FILES[0]: {"max_seq_length": 99}}, 99),
        ("Bert", {BERT_FILES[0]: {"max_seq_length": 512}}, MAX_LEN),
        ("Roberta", {BERT_FILES[1]: {"max_seq_length": MAX_LEN}}, MAX_LEN - 2),
        # one that does not name a length says nothing; an empty one leaves it to the next
        ("Bert", {BERT_FILES[0]: {"do_lower_case": True}, BERT_FILES[1]: {"max_seq_length": 7}},
         MAX_LEN),
        ("Bert", {BERT_FILES[0]: {}, BERT_FILES[1]: {"max_seq_length": 7}}, 7),
        ("Bert", {BERT_FILES[0]: {"max_seq_length": None}}, MAX_LEN),
        # positions of a decoder are turned, or its tokenizer does not matter
        ("Qwen2", {"tokenizer_config.json": {"model_max_length": 64}}, MAX_LEN),
        ("GPT2", {"tokenizer_config.json": {"model_max_length": 64}}, MAX_LEN),
        ("Qwen2", {BERT_FILES[0]: {"max_seq_length": 2 * MAX_LEN}}, 2 * MAX_LEN),
        ("GPT2", {BERT_FILES[0]: {"max_seq_length": 2 * MAX_LEN}}, MAX_LEN),
    ],
)  # fmt: skip
def test_which_file_bounds_a_text(tmp_path, family, files, limit):
    save(make_model(family), tmp_path)
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    llm = make_llm(tmp_path)
    assert llm.llm_engine.max_model_len == limit
    prompt = [5] * limit
    assert len(llm.embed([prompt], use_tqdm=False)[0].outputs.embedding) == 32


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            '{"max_seq_length": 0}',
            "max_seq_length in .*sentence_bert_config.json must be from 1 to",
        ),
        ('{"max_seq_length": "8"}', "max_seq_length in .* must be from 1 to"),
        ('{"max_seq_length": 8, "do_lower_case": "yes"}', "do_lower_case in .* must be true or"),
        ("[8]", "sentence_bert_config.json .* must be a JSON object, and is an array"),
        ("{", "sentence_bert_config.json cannot be read"),
    ],
)
def test_a_broken_file_of_a_transformer_is_named(tmp_path, content, message):
    save(make_model("Bert"), tmp_path)
    (tmp_path / BERT_FILES[0]).write_text(content)
    with pytest.raises(ValueError, match=message):
        make_llm(tmp_path)


def test_texts_are_read_in_lower_case_where_the_files_say_so(tmp_path):
    save(make_model("Bert", vocab_size=12), tmp_path)
    bert_tokenizer().save_pretrained(tmp_path)
    unknown, wanted = [2, 1, 1, 3], [2, 4, 5, 3]
    for lower, ids in ((False, unknown), (True, wanted)):
        file = {"max_seq_length": 16, "do_lower_case": lower}
        (tmp_path / BERT_FILES[0]).write_text(json.dumps(file))
        llm = LLM(str(tmp_path), num_gpu_blocks_override=200)
        for more in ({}, {"tokenization_kwargs": {"truncation": True}}):
            (output,) = llm.embed("A B", use_tqdm=False, **more)
            assert output.prompt_token_ids == ids
        (score,) = llm.score("A", "B", use_tqdm=False)
        assert score.prompt_token_ids == ([2, 4, 3, 0, 2, 5, 3] if lower else [2, 1, 3, 0, 2, 1, 3])
        (output,) = llm.embed("A B", use_tqdm=False, tokenization_kwargs={"do_lower_case": True})
        assert output.prompt_token_ids == wanted


@pytest.mark.bits
def test_a_prompt_may_fill_the_positions_and_no_more(tmp_path):
    """RoBERTa has fewer than its config.json says: the first rows are the padding's."""
    model = make_model("Roberta")
    llm = make_llm(save(model, tmp_path))
    prompt = [5] * (MAX_LEN - 2)
    assert_near(embeddings(llm, [prompt]), [normalized(hidden_states(model, prompt)[0])])
    with pytest.raises(ValueError, match=str(MAX_LEN - 1)):
        llm.embed([[*prompt, 5]], use_tqdm=False)
