"""Checks of single arguments of an engine: each is of its type, and within its range.

(vLLM checks them in the parts of its config: vllm/config/)
"""

from __future__ import annotations

import os
from typing import Any

from minivllm.config import ATTENTION_BACKENDS, DEVICES, DTYPES, KV_CACHE_DTYPES, LOAD_FORMATS
from minivllm.kv.memory_profile import host_memory_gib
from minivllm.quantization import check_quantization
from minivllm.utils.validation import check, check_booleans, is_int, is_number, is_one_of, is_text

_MOST = 2**50  # of tokens, blocks or bytes: no machine has more


def check_values(args: Any) -> None:
    """Check the values of ``EngineArgs`` that need nothing but themselves.

    Raises:
        ValueError: naming the argument, its value and what is allowed.
    """
    for name, what in (("model", "model"), ("tokenizer", "tokenizer's")):
        value = getattr(args, name)
        ok = value is None or is_text(value) or isinstance(value, os.PathLike)
        check(ok, name, value, f"the path of a {what} directory, a hub's name, or None")
    for name in ("revision", "tokenizer_revision", "download_dir"):
        value = getattr(args, name)
        check(value is None or (is_text(value) and value != ""), name, value, "a string")
    ok = args.model is not None or args.revision is None
    check(ok, "revision", args.revision, "None without a model: the embedded one has no other")

    def int_from(name: str, low: int, optional: bool = False) -> None:
        value = getattr(args, name)
        ok = (optional and value is None) or (is_int(value, low) and value <= _MOST)
        allowed = f"an integer of at least {low}" + (", or None" if optional else "")
        allowed += " and at most 2**50" if is_int(value, low) else ""
        check(ok, name, value, allowed)

    check_quantization(args.quantization)
    int_from("max_logprobs", -1)
    if args.block_size is not None:  # the default, as in vLLM
        int_from("block_size", 1)
    int_from("max_model_len", 2, optional=True)
    int_from("kv_cache_memory_bytes", 1, optional=True)
    int_from("num_gpu_blocks_override", 2, optional=True)
    int_from("max_num_batched_tokens", 1, optional=True)
    int_from("max_num_seqs", 1, optional=True)
    int_from("long_prefill_token_threshold", 0)
    int_from("prefix_match_unit", 1, optional=True)
    interval = args.prefix_cache_retention_interval  # which ones fit depends on the model
    ok = interval is None or (is_int(interval) and abs(interval) <= _MOST)
    check(ok, "prefix_cache_retention_interval", interval, "a number of tokens, or None")
    int_from("max_num_encoder_input_tokens", 1, optional=True)
    int_from("encoder_cache_size", 1, optional=True)
    check(is_int(args.seed, 0), "seed", args.seed, "an integer of at least 0")
    share = args.gpu_memory_utilization
    ok = is_number(share) and 0 < share <= 1
    check(ok, "gpu_memory_utilization", share, "a number above 0 and at most 1")
    total = host_memory_gib()
    ok = is_number(args.swap_space) and 0 <= args.swap_space <= total
    allowed = f"a number of GiB from 0 to the {total:.1f} that this machine has"
    check(ok, "swap_space", args.swap_space, allowed)
    ok = args.preemption_mode is None or is_one_of(args.preemption_mode, ("recompute", "swap"))
    check(ok, "preemption_mode", args.preemption_mode, "'recompute', 'swap' or None")
    cls = args.kv_cache_manager_cls
    ok = cls is None or (isinstance(cls, type) and hasattr(cls, "allocate_slots"))
    check(ok, "kv_cache_manager_cls", cls, "a subclass of KVCacheManager, or None")
    for name, known in (("load_format", LOAD_FORMATS), ("dtype", DTYPES), ("device", DEVICES),
                        ("kv_cache_dtype", KV_CACHE_DTYPES),
                        ("attention_backend", ATTENTION_BACKENDS)):  # fmt: skip
        value = getattr(args, name)
        ok = is_one_of(value, known) or (value is None and name == "attention_backend")
        check(ok, name, value, f"one of {', '.join(known)}")
    check_booleans(args)
    overrides = args.hf_overrides
    ok = overrides is None or (isinstance(overrides, dict) and all(map(is_text, overrides)))
    check(ok, "hf_overrides", overrides, "a dict of config.json's fields, or None")
    source = args.generation_config
    check(is_text(source) and source != "", "generation_config", source, "a non-empty string")
    more = args.override_generation_config
    ok = more is None or (isinstance(more, dict) and all(map(is_text, more)))
    check(ok, "override_generation_config", more, "a dict of a generation config's fields")
