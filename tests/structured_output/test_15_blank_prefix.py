"""Grammars where the tokenizer puts a blank before every text, as those of SentencePiece do."""

import json
import re

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from minivllm import LLM, SamplingParams
from minivllm.sampling_params import StructuredOutputsParams
from minivllm.structured_output.vocabulary import Vocabulary

TEXT = 'the cat said {"name": "Ada", "age": 36} and {"sum": [1, 2.5, null], "ok": true}\n'
SPECIAL = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def bpe(normalizer=None, pre_tokenizer=None, strip=True):
    """A tokenizer of bytes and merges that spells a blank as "▁"."""
    backend = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if normalizer is not None:
        backend.normalizer = normalizers.Sequence(normalizer)
    if pre_tokenizer is not None:
        backend.pre_tokenizer = pre_tokenizer
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(steps + [decoders.Strip(" ", 1, 0)] * strip)
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=SPECIAL + BYTES)
    backend.train_from_iterator([TEXT] * 9, trainer)
    state = json.loads(backend.to_str())
    state["added_tokens"] = state["added_tokens"][:3]  # bytes are none
    return Tokenizer.from_str(json.dumps(state))


def unigram(normalizer=()):
    """A tokenizer as T5's, without bytes: what is in no token is unknown."""
    backend = Tokenizer(models.Unigram())
    backend.normalizer = normalizers.Sequence(list(normalizer))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.decoder = decoders.Metaspace(prepend_scheme="always")
    alphabet = [chr(c) for c in range(33, 127)]
    trainer = trainers.UnigramTrainer(
        vocab_size=180, special_tokens=SPECIAL, unk_token="<unk>", initial_alphabet=alphabet
    )
    backend.train_from_iterator([TEXT] * 9, trainer)
    return backend


def byte_level():
    """A tokenizer as GPT-2's, but with the blank before the text that RoBERTa's may have."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.ByteLevel(add_prefix_space=True)]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    backend.train_from_iterator([TEXT] * 9, trainer)
    return backend


LLAMA2 = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
KINDS = {
    "Llama 2": lambda: bpe(LLAMA2),
    "no blank": lambda: bpe(LLAMA2[1:], strip=False),
    "Metaspace, first": lambda: bpe(
        pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    ),
    "Metaspace, always": lambda: bpe(pre_tokenizer=pre_tokenizers.Metaspace()),
    "T5": unigram,
    "T5, one blank for many": lambda: unigram([normalizers.Strip(), normalizers.Lowercase()]),
    "bytes": byte_level,
}


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request):
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=KINDS[request.param](), unk_token="<unk>", bos_token="<s>",
        eos_token="</s>", clean_up_tokenization_spaces=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def llm(tokenizer, tmp_path_factory):
    directory = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=1,
        num_attention_heads=4, max_position_embeddings=256, bos_token_id=1, eos_token_id=2,
        initializer_range=0.4,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return LLM(str(directory), num_gpu_blocks_override=200, enforce_eager=True)


NAMES = {
    "type": "object", "required": ["name", "age"], "additionalProperties": False,
    "properties": {"name": {"enum": ["Ada", "the cat"]}, "age": {"type": "integer", "maximum": 99,
                   "minimum": 0}},
}  # fmt: skip
FORMS = [
    ({"json": NAMES}, lambda t: json.loads(t).keys() == {"name", "age"}),
    ({"json": NAMES, "whitespace_pattern": r"[ ]{0,2}"}, lambda t: json.loads(t)["name"]),
    ({"json": {"const": " the"}}, lambda t: json.loads(t) == " the"),
    ({"grammar": 'start: "the cat said " ("36" | "Ada")'}, lambda t: t.startswith("the cat said ")),
    ({"grammar": 'root ::= "  said" " "? "the"'}, lambda t: re.fullmatch("  said ?the", t)),
    ({"regex": r"(the|Ada) said: [0-9]{2}"}, lambda t: re.fullmatch(r"(the|Ada) said: \d\d", t)),
    ({"choice": ["the cat", " the cat", "Ada"]}, lambda t: t.strip() in ("the cat", "Ada")),
]


def test_every_form_is_kept(llm):
    params = [
        SamplingParams(
            temperature=1,
            seed=seed,
            max_tokens=100,
            structured_outputs=StructuredOutputsParams(**form),
        )
        for form, _ in FORMS
        for seed in range(3)
    ]
    outputs = llm.generate(["the cat said"] * len(params), params, use_tqdm=False)
    for (form, is_right), output in zip([f for f in FORMS for _ in range(3)], outputs, strict=True):
        (completion,) = output.outputs
        assert completion.finish_reason == "stop", form
        assert is_right(completion.text), (form, completion.text)


def test_an_object_goes_on_as_long_as_it_may(llm):
    params = SamplingParams(
        temperature=1,
        seed=0,
        max_tokens=60,
        structured_outputs=StructuredOutputsParams(json_object=True),
    )
    for output in llm.generate(["the cat said"] * 4, params, use_tqdm=False):
        assert output.outputs[0].finish_reason in ("stop", "length")
        assert output.outputs[0].text.startswith("{")


TEXTS = [
    "the cat",
    " the cat",
    "",
    " ",
    "  said",
    '{"name": "Ada"}',
    "a</s>b",
    "Ünï",
    "x\ny",
    "Ada  is",
]


def test_a_text_is_encoded_as_its_own_bytes(tokenizer):
    """No blank before it, no special token in it, though its text is there."""
    vocabulary = Vocabulary.from_tokenizer(tokenizer, len(tokenizer), frozenset([2]))
    letters = {chr(byte) for token in vocabulary.tokens if token for byte in token}
    for text in TEXTS:
        tokens = [vocabulary.tokens[i] for i in vocabulary.encode(text)]
        if letters >= {chr(byte) for byte in text.encode()}:
            assert b"".join(tokens) == text.encode(), text
