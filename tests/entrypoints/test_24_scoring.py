"""Scores of pairs: which prompts are made of them, and what a model's outputs say."""

import math
import random
import shutil
from types import SimpleNamespace

import pytest
import torch
from text_pairs import bert_tokenizer, save_bert_reranker, save_classifier

from minivllm import LLM
from minivllm.entrypoints.scorer import ScoringParams, check_pairs
from minivllm.entrypoints.scoring import make_scorer
from minivllm.entrypoints.truncation import TruncationParams, encode_texts
from minivllm.outputs import PoolingOutput, PoolingRequestOutput
from minivllm.pooling_params import PoolingParams
from minivllm.sampling_params import SamplingParams

QUERIES = ["What is the capital of France?", "Which animal says meow?"]
DOCUMENTS = ["Paris is the capital of France.", "A cat."]


def config(task, num_labels=1, num_types=2, **hf_config):
    return SimpleNamespace(
        pooler_config=SimpleNamespace(task=task),
        num_labels=num_labels,
        type_vocab_size=num_types,
        hf_config=SimpleNamespace(**hf_config),
    )


# -- prompts ---------------------------------------------------------------------------------------


def test_a_text_is_cut_as_transformers_cuts_it():
    tokenizer, rng = bert_tokenizer(), random.Random(0)
    for _ in range(300):
        texts = [" ".join(rng.choices("abcdefgh", k=rng.randint(1, 12))) for _ in range(2)]
        keep = rng.choice([None, *range(4, 20)])
        for some in (texts[:1], texts):
            want = tokenizer(*some, truncation=keep is not None, max_length=keep)
            tokenizer.backend_tokenizer.no_truncation()
            found = encode_texts(tokenizer, some, TruncationParams(keep), 99)
            assert found == (want["input_ids"], want["token_type_ids"])


@pytest.mark.parametrize(
    ("truncation", "want"),
    [
        (TruncationParams(), [2, 4, 5, 6, 3, 7, 8, 3]),
        (TruncationParams(-1), [2, 4, 5, 3, 7, 3]),  # what the model takes, here 6
        (TruncationParams(6, "right"), [2, 4, 5, 6, 3, 7]),
        (TruncationParams(6, "left"), [5, 6, 3, 7, 8, 3]),
        (TruncationParams(0), []),
        (TruncationParams(1), [2]),
        (TruncationParams(max_tokens_per_query=2), [2, 4, 5, 3, 7, 8, 3]),
        (TruncationParams(max_tokens_per_doc=1), [2, 4, 5, 6, 3, 7, 3]),
    ],
)
def test_what_is_kept_of_a_pair(truncation, want):
    ids, types = encode_texts(bert_tokenizer(), ["a b c", "d e"], truncation, 6)
    assert ids == want
    assert len(types) == len(ids)


@pytest.mark.parametrize(
    ("given", "ids"),
    [
        (None, [2, 4, 5, 6, 7, 3]),
        ({}, [2, 4, 5, 6, 7, 3]),
        ({"truncation": True, "max_length": 4}, [2, 4, 5, 3]),
        ({"truncation": "longest_first", "max_length": 4}, [2, 4, 5, 3]),
        ({"truncation": True}, [2, 4, 5, 6, 7, 3]),  # to the model's 8
        ({"max_length": 4}, [2, 4, 5, 6, 7, 3]),  # which alone cuts nothing
        ({"truncation": False, "max_length": 4}, [2, 4, 5, 6, 7, 3]),
        ({"truncation": "do_not_truncate", "truncate_prompt_tokens": 4}, [2, 4, 5, 6, 7, 3]),
        ({"truncate_prompt_tokens": 4}, [2, 4, 5, 3]),
        ({"truncate_prompt_tokens": 4, "truncation_side": "left"}, [5, 6, 7, 3][-4:]),
        ({"truncate_prompt_tokens": 4, "truncation_side": "right"}, [2, 4, 5, 6]),
        ({"truncate_prompt_tokens": -1}, [2, 4, 5, 6, 7, 3]),
        ({"add_special_tokens": False}, [4, 5, 6, 7]),
        ({"add_special_tokens": False, "truncation": True, "max_length": 2}, [4, 5]),
        ({"padding": False, "pad_prompt_tokens": None, "needs_detokenization": True},
         [2, 4, 5, 6, 7, 3]),
        ({"padding": True, "return_tensors": "pt", "stride": 2}, [2, 4, 5, 6, 7, 3]),  # ignored
    ],
)  # fmt: skip
def test_options_of_the_tokenizer_are_vllms(caplog, given, ids):
    how = TruncationParams().with_kwargs(given, 8)
    assert encode_texts(bert_tokenizer(), ["a b c d"], how, 8)[0] == ids
    assert ("are ignored, as in vLLM" in caplog.text) == ("stride" in (given or {}))


def test_a_tokenizer_that_cuts_at_the_left_does():
    tokenizer = bert_tokenizer()
    tokenizer.truncation_side = "left"
    how = TruncationParams().with_kwargs({"truncation": True, "max_length": 4}, 8)
    assert encode_texts(tokenizer, ["a b c d"], how, 8)[0] == [2, 6, 7, 3]
    assert how.cut([1, 2, 3, 4, 5], 8, tokenizer) == [2, 3, 4, 5]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"padding": "max_length"}, "tokenization_kwargs must be None: a pad would be read"),
        ({"pad_prompt_tokens": 5}, "tokenization_kwargs must be None: a pad would be read"),
        ({"truncate_prompt_tokens": 9}, "truncate_prompt_tokens must be None, or from -1 to"),
        ({"truncation": True, "max_length": 9}, "truncate_prompt_tokens must be None, or from"),
        ({"truncation": True, "max_length": 0}, "max_length must be an integer of at least 1"),
        ({"max_length": "4"}, "max_length must be an integer"),
        ({"truncation_side": "middle"}, "truncation_side must be 'left', 'right' or None"),
        ({"add_special_tokens": 1}, "add_special_tokens must be True or False"),
        ([1], "tokenization_kwargs must be a dict of options for the tokenizer, or None"),
        ({5: 1}, "tokenization_kwargs must be a dict"),
    ],
)
def test_options_that_cannot_be_are_refused(given, says):
    with pytest.raises(ValueError, match=says):
        TruncationParams().with_kwargs(given, 8)


def test_each_call_takes_options_of_the_tokenizer(tmp_path):
    llm = LLM(str(save_bert_reranker(tmp_path)))
    cut = {"use_tqdm": False, "tokenization_kwargs": {"truncation": True, "max_length": 4}}
    (output,) = llm.classify("a b c d", **cut)
    assert output.prompt_token_ids == [2, 4, 5, 3]
    first, second = llm.encode([{"prompt": "a b c d"}, [2, 4, 5, 6, 7, 3]], **cut)
    assert (first.prompt_token_ids, second.prompt_token_ids) == ([2, 4, 5, 3], [2, 4, 5, 6])
    (output,) = llm.score("a b c", "d", use_tqdm=False, tokenization_kwargs={
        "truncation": True, "max_length": 6})  # fmt: skip
    assert output.prompt_token_ids == [2, 4, 5, 3, 7, 3]
    with pytest.raises(ValueError, match="None, or from -1 to max_model_len=64, got 65"):
        llm.score("a", "b", use_tqdm=False, tokenization_kwargs={"truncate_prompt_tokens": 65})
    with pytest.raises(ValueError, match="a prompt must be a string"):
        llm.classify([{"text": "a"}], **cut)


def test_generation_takes_options_of_the_tokenizer(tiny_chat):
    llm = LLM(str(tiny_chat), num_gpu_blocks_override=200)
    params, tokenizer = SamplingParams(max_tokens=1), llm.get_tokenizer()
    whole = tokenizer.encode("hello hello hello")
    cut = {"use_tqdm": False, "tokenization_kwargs": {"truncate_prompt_tokens": 2}}
    (output,) = llm.generate("hello hello hello", params, **cut)
    assert output.prompt_token_ids == whole[:2]
    talk = [{"role": "user", "content": "hello"}]
    (plain,) = llm.chat(talk, params, False)
    (same,) = llm.chat(talk, params, False, tokenization_kwargs={})
    assert same.prompt_token_ids == plain.prompt_token_ids
    (output,) = llm.chat(talk, params, **cut)
    assert output.prompt_token_ids == plain.prompt_token_ids[:2]


def test_a_chat_is_read_in_lower_case_where_the_files_say_so(tiny_chat, tmp_path):
    directory = shutil.copytree(tiny_chat, tmp_path / "model")
    file = directory / "sentence_bert_config.json"
    file.write_text('{"max_seq_length": 64, "do_lower_case": true}')
    llm, params = LLM(str(directory), num_gpu_blocks_override=200), SamplingParams(max_tokens=1)
    template = "{{ messages[0].content }}"
    talk = [{"role": "user", "content": "ABC"}]
    (chat,) = llm.chat(talk, params, False, chat_template=template)
    (text,) = llm.generate("ABC", params, False)
    wanted = llm.get_tokenizer().encode("abc", add_special_tokens=False)
    assert chat.prompt_token_ids == text.prompt_token_ids == wanted


def test_files_of_sentence_transformers_do_not_pad_or_cut():
    tokenizer = bert_tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(3)
    tokenizer.backend_tokenizer.enable_padding(length=9)
    assert encode_texts(tokenizer, ["a b c"], TruncationParams(), 99)[0] == [2, 4, 5, 6, 3]


@pytest.mark.parametrize(
    ("data_1", "data_2", "says"),
    [
        (["a", "b"], "c", "1:1, 1:N or N:N"),
        (["a", "b"], ["c"] * 3, "1:1, 1:N or N:N"),
        (["a", "b"], [], "1:1, 1:N or N:N"),
        ([], "a", "one text element"),
        ("a", [], "one text_pair element"),
        (5, "a", "data_1 must be a text"),
        ("a", [None], "data_2 must be a text"),
        ("\ud800", "a", "data_1 must be a text"),
    ],
)
def test_lists_that_cannot_be_paired(data_1, data_2, says):
    with pytest.raises(ValueError, match=says):
        check_pairs(data_1, data_2)


def test_a_cross_encoder_says_where_the_document_begins():
    scorer = make_scorer(bert_tokenizer(), config("classify"), 99)
    given = PoolingParams(use_activation=False)
    (first, params), (second, more) = scorer.prompts(["a b"], ["c", "d e"], given)
    assert first["prompt_token_ids"] == [2, 4, 5, 3, 6, 3]
    assert second["prompt_token_ids"] == [2, 4, 5, 3, 7, 8, 3]
    assert params.extra_kwargs == more.extra_kwargs == {"compressed_token_type_ids": 4}
    assert (params.task, params.use_activation) == ("classify", False)
    assert given == PoolingParams(use_activation=False)  # the caller's


def test_a_model_without_types_gets_none_from_its_tokenizer():
    scorer = make_scorer(bert_tokenizer(), config("classify", num_types=1), 99)
    ((prompt, params),) = scorer.prompts(["a b"], ["c"])
    assert prompt["prompt_token_ids"] == [2, 4, 5, 3, 6, 3]
    assert params.extra_kwargs is None


def test_a_cross_encoder_reads_a_template_or_two_texts_in_one():
    template = "{{ instruction }}{% for m in messages %} {{ m.content }}{% endfor %}"
    how = ScoringParams(TruncationParams(max_tokens_per_doc=1), template, {"instruction": "a"})
    scorer = make_scorer(bert_tokenizer(), config("classify"), 99)
    ((prompt, params),) = scorer.prompts(["b"], ["c d"], params=how)
    assert prompt == {"prompt": "a b c", "prompt_token_ids": [2, 4, 5, 6, 3]}
    assert params.extra_kwargs is None  # one text: all types are 0
    scorer = make_scorer(bert_tokenizer(), config("classify", use_sep_token=False), 99)
    ((prompt, _),) = scorer.prompts(["b "], ["c d"])
    assert prompt["prompt_token_ids"] == [2, 5, 6, 7, 3]


def test_models_that_give_no_scores():
    with pytest.raises(ValueError, match="has 3; use classify"):
        make_scorer(bert_tokenizer(), config("classify", num_labels=3), 99)
    with pytest.raises(ValueError, match="'token_classify' gives no scores"):
        make_scorer(bert_tokenizer(), config("token_classify"), 99)
    with pytest.raises(ValueError, match="need a tokenizer"):
        make_scorer(None, config("embed"), 99)


# -- scores ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def embedder():
    return LLM(task="embed", max_model_len=128)


def test_a_bi_encoder_embeds_each_text_once(embedder):
    outputs = embedder.score(QUERIES[0], DOCUMENTS, use_tqdm=False)
    query, *documents = embedder.embed([QUERIES[0], *DOCUMENTS], use_tqdm=False)
    for output, document in zip(outputs, documents, strict=True):
        want = torch.tensor(query.outputs.embedding) @ torch.tensor(document.outputs.embedding)
        assert output.outputs.score == pytest.approx(float(want), abs=1e-5)
    first, second = (output.request_id.split("_") for output in outputs)
    assert first[0] == second[0]  # the query has one request
    assert len({*first, *second}) == 3
    pad = embedder.get_tokenizer().pad_token_id
    ids = query.prompt_token_ids, documents[0].prompt_token_ids
    assert outputs[0].prompt_token_ids == [*ids[0], pad, *ids[1]]


def test_lists_of_the_same_length_are_paired_in_order(embedder):
    both = embedder.score(QUERIES, DOCUMENTS, use_tqdm=False)
    alone = [
        embedder.score(q, d, use_tqdm=False)[0] for q, d in zip(QUERIES, DOCUMENTS, strict=True)
    ]
    for one, other in zip(both, alone, strict=True):
        assert one.outputs.score == pytest.approx(other.outputs.score, abs=1e-5)


def test_a_score_that_is_no_number_is_an_error():
    scorer = make_scorer(bert_tokenizer(), config("token_embed"), 64)
    output = PoolingRequestOutput("0", PoolingOutput(torch.full((2, 4), 1e30)), [1, 2], 0, True)
    with pytest.raises(ValueError, match="holds a NaN or an infinity"):
        scorer.scores([output, output], 1)


def test_late_interaction_sums_the_best_products():
    llm = LLM(task="embed", pooler_config={"task": "token_embed"}, max_model_len=128)
    (output,) = llm.score(QUERIES[0], DOCUMENTS[0], use_tqdm=False)
    query, document = (
        one.outputs.data for one in llm.encode([QUERIES[0], DOCUMENTS[0]], use_tqdm=False)
    )
    want = sum(max(float(q @ d) for d in document) for q in query)
    assert output.outputs.score == pytest.approx(want, rel=1e-5)


def pair_scores(directory, queries, documents):
    """Scores that transformers gives to pairs, and the pairs' token ids."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(directory).eval()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    for query, document in zip(queries, documents, strict=True):
        pair = tokenizer(query, document, return_tensors="pt")
        with torch.no_grad():
            yield model(**pair).logits.sigmoid().item(), pair["input_ids"][0].tolist()


@pytest.mark.parametrize(
    ("save", "queries", "documents"),
    [
        (lambda directory: save_classifier(directory, num_labels=1), QUERIES, DOCUMENTS),
        (save_bert_reranker, ["a b c", "d"], ["e f", "g h a b"]),  # with token types
    ],
)
def test_a_cross_encoder_is_the_classifier_of_transformers(tmp_path, save, queries, documents):
    save(tmp_path)
    llm = LLM(str(tmp_path), max_model_len=64)
    outputs = llm.score(queries, documents, use_tqdm=False)
    wants = pair_scores(tmp_path, queries, documents)
    for output, (score, ids) in zip(outputs, wants, strict=True):
        assert output.outputs.score == pytest.approx(score, abs=1e-5)
        assert output.prompt_token_ids == ids


def test_texts_of_a_cross_encoder_are_cut(tmp_path):
    llm = LLM(str(save_bert_reranker(tmp_path)))
    raw = PoolingParams(use_activation=False, extra_kwargs={"max_tokens_per_doc": 2})
    (logit,) = llm.score("a b c", "d e f", pooling_params=raw, use_tqdm=False)
    assert logit.prompt_token_ids == [2, 4, 5, 6, 3, 7, 8, 3]
    (score,) = llm.score("a b c", "d e", use_tqdm=False)
    assert score.outputs.score == pytest.approx(1 / (1 + math.exp(-logit.outputs.score)), abs=1e-5)
    (cut,) = llm.score("a b c", "d e f", truncate_prompt_tokens=5, use_tqdm=False)
    assert cut.prompt_token_ids == [2, 4, 3, 7, 3]


def test_scores_that_are_refused(embedder):
    for arguments, says in (
        ({"pooling_params": PoolingParams(task="token_embed")}, "task must be 'embed'"),
        ({"pooling_params": PoolingParams(dimensions=2)}, "Matryoshka"),
        ({"pooling_params": 5}, "pooling_params must be a PoolingParams"),
        ({"truncate_prompt_tokens": 129}, "truncate_prompt_tokens must be None, or from -1 to 128"),
        ({"truncate_prompt_tokens": 0}, "the prompt is empty"),
        ({"pooling_params": PoolingParams(extra_kwargs={"max_tokens_per_doc": -1})},
         "max_tokens_per_doc must be from 0"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=says):
            embedder.score("a", "b", use_tqdm=False, **arguments)
    with pytest.raises(ValueError, match=r"LLM.score\(\) is for pooling"):
        LLM(max_model_len=64).score("a", "b")
