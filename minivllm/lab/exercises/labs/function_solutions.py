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


def propose(token_ids, k):
    for n in (3, 2):  # a single token says too little
        # what followed the last time is newer than what followed the first time
        for start in range(len(token_ids) - n - 1, -1, -1):
            if token_ids[start : start + n] == token_ids[-n:]:
                return token_ids[start + n : start + n + k]
    return []


def mask(table, accepting, tokens, stop_token_ids, state):
    def leads_on(token):
        at = state
        for byte in token:
            if byte not in table[at]:
                return False
            at = table[at][byte]
        return True

    allowed = {i for i, token in enumerate(tokens) if token is not None and leads_on(token)}
    return allowed | set(stop_token_ids) if accepting[state] else allowed


def tool_stream(pieces):
    opening, before, closing = "<tool_call>", '{"name": "', "}</tool_call>"
    text, given, name = "", 0, None  # what is not used up; how many of its arguments are out

    def end_of_object(text, at):
        """Where the object that begins here ends, or None."""
        depth, in_string, escaped = 0, False, False
        for i in range(at, len(text)):
            char = text[i]
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = in_string
            elif char == '"':
                in_string = not in_string
            elif not in_string:
                depth += (char == "{") - (char == "}")
                if depth == 0:
                    return i + 1
        return None

    for piece in pieces:
        text, out = text + piece, []
        while True:
            start = text.find(opening)
            if start != 0:
                held = range(len(opening) - 1, 0, -1)
                keep = next((n for n in held if text.endswith(opening[:n])), 0)
                content = text[:start] if start > 0 else text[: len(text) - keep]
                out += [("content", content)] * bool(content)
                text = text[len(content) :]
                if start < 0:
                    break
            quote = text.find('", "arguments": {')
            if quote < 0:
                break
            begin = quote + len('", "arguments": ')
            if name is None:
                name = text[len(opening + before) : quote]
                out.append(("name", name))
            end = end_of_object(text, begin)
            whole = end is not None and text.startswith(closing, end)
            sure = end if whole else len(text) if end is None else end - 1
            if sure > begin + given:
                out.append(("arguments", text[begin + given : sure]))
                given = sure - begin
            if not whole:
                break
            text, given, name = text[end + len(closing) :], 0, None
        yield out
    yield [("content", text)] if text else []
