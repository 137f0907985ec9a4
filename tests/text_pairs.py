"""A tokenizer of words with BERT's special tokens, and small random classifiers that read texts."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from minivllm.embedded import embedded_model_path


def bert_tokenizer():
    """A tokenizer that writes ``[CLS] query [SEP] document [SEP]``, with types 0 and 1."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocab = {word: i for i, word in enumerate([*special, *"abcdefgh"])}
    words = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=words, model_input_names=names, pad_token="[PAD]", cls_token="[CLS]",
        sep_token="[SEP]", unk_token="[UNK]",
    )  # fmt: skip


def save_classifier(directory, num_labels, seed=5):
    """Save a random Qwen2 with a classifier, and the embedded model's tokenizer."""
    from transformers import Qwen2Config, Qwen2ForSequenceClassification

    tokenizer = AutoTokenizer.from_pretrained(embedded_model_path())
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
        num_labels=num_labels, initializer_range=0.4, pad_token_id=0, eos_token_id=0,
        id2label={i: f"kind {i}" for i in range(num_labels)},
    )  # fmt: skip
    Qwen2ForSequenceClassification(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def save_bert_reranker(directory, seed=3):
    """Save a random BERT with one label, and the tokenizer of words."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=12, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=64, num_labels=1, initializer_range=0.4,
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(directory)
    bert_tokenizer().save_pretrained(directory)
    return directory
