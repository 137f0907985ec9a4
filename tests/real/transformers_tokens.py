"""Tokens and log probabilities of a model held to transformers' on the dequantized weights."""

import copy

import torch

from minivllm.sampling.reference import choose

CLEAR = 1e-3  # of two best logits: with less between them either may win
CLOSE = 1e-4  # of log probabilities


class Reference:
    """transformers' logits: a prompt is computed once, the outputs behind it as often as asked."""

    def __init__(self, model):
        self.model, self.prompts = model, {}

    @torch.inference_mode()
    def logits(self, prompt, output):
        """float32 ``[len(output), vocab]``: those that each token of the output is chosen from."""
        if (known := self.prompts.get(tuple(prompt))) is None:
            computed = self.model(torch.tensor([prompt]), use_cache=True, logits_to_keep=1)
            known = computed.logits[0], computed.past_key_values
            self.prompts[tuple(prompt)] = known
        first, cache = known
        if len(output) == 1:
            return first
        ids = torch.tensor([output[:-1]])
        rest = self.model(ids, past_key_values=copy.deepcopy(cache)).logits[0]
        return torch.cat((first, rest))


def hold(outputs, reference, seeds=None):
    """Compare each token, and the log probabilities that came with it."""
    num_clear = 0
    for request in outputs:
        prompt = request.prompt_token_ids
        for sample in request.outputs:
            logits = reference.logits(prompt, list(sample.token_ids))
            logprobs = logits.log_softmax(-1)
            for i, (token, found) in enumerate(zip(sample.token_ids, sample.logprobs, strict=True)):
                for other, logprob in found.items():
                    assert abs(logprob.logprob - logprobs[i, other]) < CLOSE
                if seeds is None:
                    best = logits[i].topk(2)
                    right, margin = best.indices[0], best.values[0] - best.values[1]
                else:
                    params, seed = seeds
                    before = list(sample.token_ids[:i])
                    right, margin = choose(
                        logits[i].tolist(), params, prompt, before, seed + sample.index, None
                    )
                if margin > CLEAR:
                    assert token == right
                    num_clear += 1
    return num_clear
