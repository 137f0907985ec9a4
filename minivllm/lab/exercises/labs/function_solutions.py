"""Right answers to the labs that are functions. The Triton one is in ``kernel_harness.py``."""

from __future__ import annotations


def schedule(running, waiting, token_budget, max_num_seqs, num_free_blocks, block_size):
    def num_blocks(num_tokens):
        return -(-num_tokens // block_size)

    plan = {}
    for name, (num_tokens, num_computed) in running.items():
        num_new = min(num_tokens - num_computed, token_budget)
        if num_new > 0:
            plan[name] = num_new
            token_budget -= num_new
            num_free_blocks -= num_blocks(num_computed + num_new) - num_blocks(num_computed)
    num_running = len(running)
    for name, num_tokens in waiting.items():
        fits = num_blocks(num_tokens) <= num_free_blocks
        if token_budget == 0 or num_running == max_num_seqs or not fits:
            break
        plan[name] = min(num_tokens, token_budget)
        token_budget -= plan[name]
        num_free_blocks -= num_blocks(plan[name])
        num_running += 1
    return plan


def cap(num_new, token_budget, long_prefill_token_threshold, num_requests):
    if 0 < long_prefill_token_threshold < num_new and num_requests > 1:
        num_new = long_prefill_token_threshold
    return min(num_new, token_budget)


def merge(results, lse):
    weights = (lse - lse.max()).exp()
    return weights / weights.sum() @ results


def top_p(logits, top_p):
    order = logits.argsort(descending=True, stable=True)
    probs = logits.softmax(-1)[order]
    better = probs.cumsum(-1) - probs  # what likelier ones have together
    out = logits.clone()
    out[order[better >= top_p]] = float("-inf")
    return out


def join(pending, output, delta):
    joins = delta and isinstance(pending, dict) and isinstance(output, dict)
    if not joins:
        return output
    return {
        "text": pending["text"] + output["text"],
        "token_ids": [*pending["token_ids"], *output["token_ids"]],
        "finish_reason": output["finish_reason"],
    }


def quantile(buckets, q):
    total = buckets["+Inf"]
    if total == 0:
        return float("nan")
    low, below = 0.0, 0
    for bound, count in buckets.items():
        if bound == "+Inf":
            return low
        if count >= q * total:
            return low + (float(bound) - low) * (q * total - below) / (count - below)
        low, below = float(bound), count
