"""Beam search: the same beams as transformers, the same scores as vLLM, by forks and frees."""

import random
from dataclasses import replace

import pytest
import torch
from helpers import assert_same_free_queue, make_llm

from minivllm import LLM, BeamSearchParams, SamplingParams, embedded_model_path
from minivllm.course.ch04b.figures.beam_model import read_beam_tree
from minivllm.lab.oracle import next_token_logits
from minivllm.trace.records import BlockCopied, Finished, Forked, Scheduled
from minivllm.viz import beam_tree

PROMPTS = ["Hello, my name is", "The future of AI is", "The capital of France"]


@pytest.fixture(scope="module")
def embedded():
    return LLM(max_model_len=256, num_gpu_blocks_override=200, block_size=4, trace=True)


@pytest.fixture(scope="module")
def in_transformers():
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(embedded_model_path(), dtype=torch.float32)


def reference(model, prompt, params, eos_token_ids, max_model_len):
    """vLLM's search, recomputing everything: (tokens, cumulative logprob, score), best first."""

    def score(beam):
        tokens, total = beam
        complete = tokens[-1] in eos_token_ids and not params.ignore_eos
        return total / (len(tokens) - complete) ** params.length_penalty

    beams, complete = [(list(prompt), 0.0)], []
    for _ in range(min(params.max_tokens, max_model_len - len(prompt))):
        candidates = []
        for tokens, total in beams:
            logprobs = next_token_logits(model, tokens).log_softmax(-1)
            best, ids = logprobs.topk(2 * params.beam_width)
            for logprob, token in zip(best.tolist(), ids.tolist(), strict=True):
                new = ([*tokens, token], total + logprob)
                ends = token in eos_token_ids and not params.ignore_eos
                (complete if ends else candidates).append(new)
        beams = sorted(candidates, key=score, reverse=True)[: params.beam_width]
    found = sorted(complete + beams, key=score, reverse=True)[: params.beam_width]
    return [(tokens, total, score((tokens, total))) for tokens, total in found]


def run(llm, requests):
    """Step by hand, checking after each step; last outputs by id."""
    engine, outputs = llm.llm_engine, {}
    for request_id, prompt, params in requests:
        engine.add_request(request_id, {"prompt_token_ids": prompt}, params)
    while engine.has_unfinished_requests():
        for output in engine.step():
            outputs[output.request_id] = output
        engine.check_integrity()
    assert engine.scheduler.kv_manager.usage == 0
    assert not engine.scheduler.next_output.beam_moves
    return outputs


def results(output):
    return [(c.token_ids, round(c.cumulative_logprob, 3), c.finish_reason) for c in output.outputs]


@pytest.mark.slow
@pytest.mark.parametrize("skip", [True, False])
def test_special_tokens_are_left_out_of_a_beams_text(embedded, skip):
    params = BeamSearchParams(beam_width=3, max_tokens=6, skip_special_tokens=skip)
    (output,) = embedded.beam_search("The capital of Indonesia is", params)
    ended = [beam for beam in output.sequences if beam.finish_reason == "stop"]
    assert ended
    assert all(beam.text.endswith("<|endoftext|>") is not skip for beam in ended)


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 2, 3, 5, 8])
def test_beams_equal_those_of_transformers(embedded, in_transformers, width):
    params = BeamSearchParams(beam_width=width, max_tokens=16, ignore_eos=True)
    found = embedded.beam_search(PROMPTS, params)
    for prompt, output in zip(PROMPTS, found, strict=True):
        ids = torch.tensor([embedded.get_tokenizer().encode(prompt)])
        theirs = in_transformers.generate(
            ids, attention_mask=torch.ones_like(ids), num_beams=width, num_return_sequences=width,
            max_new_tokens=16, do_sample=False, eos_token_id=None, pad_token_id=0,
            return_dict_in_generate=True, output_scores=True,
            **({"length_penalty": 0.0} if width > 1 else {}),
        )  # fmt: skip
        assert [found.tokens for found in output.sequences] == theirs.sequences.tolist()
        if width > 1:
            summed = [found.cum_logprob for found in output.sequences]
            assert summed == pytest.approx(theirs.sequences_scores.tolist(), abs=1e-3)
        assert output.sequences[0].text.startswith(prompt)


@pytest.mark.slow
@pytest.mark.parametrize("length_penalty", [0.0, 0.7, 1.0, 2.0, -1.0])
@pytest.mark.parametrize("width", [1, 3, 4])
def test_beams_that_end_equal_a_search_that_recomputes_everything(
    tiny_qwen2, width, length_penalty
):
    rng = random.Random(width)
    llm = make_llm(tiny_qwen2, num_gpu_blocks_override=65, block_size=4)
    model = llm.llm_engine.model_runner.model
    # half the vocabulary ends the text, so that it often does
    eos = frozenset(range(0, 97, 2))
    processor = llm.llm_engine.input_processor
    processor.model_config = replace(processor.model_config, eos_token_ids=eos)
    num_complete = 0
    for _ in range(3):
        prompt = [rng.randrange(97) for _ in range(rng.randint(1, 9))]
        params = BeamSearchParams(width, max_tokens=7, length_penalty=length_penalty)
        ours = run(llm, [("a", prompt, params)])["a"].outputs
        theirs = reference(model, prompt, params, eos, 256)
        assert [prompt + c.token_ids for c in ours] == [tokens for tokens, _, _ in theirs]
        summed = [total for _, total, _ in theirs]
        assert [c.cumulative_logprob for c in ours] == pytest.approx(summed, abs=1e-3)
        for c in ours:
            assert c.finish_reason == ("stop" if c.token_ids[-1] in eos else "length")
            num_complete += c.finish_reason == "stop"
    assert num_complete


def test_a_search_stops_as_soon_as_nothing_better_can_come(embedded):
    prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    embedded.trace.clear()
    params = BeamSearchParams(beam_width=2, max_tokens=200, length_penalty=0.0)
    best = embedded.generate(prompt, params, use_tqdm=False)[0].outputs
    assert "Paris" in best[0].text
    assert best[0].finish_reason == "stop"
    assert "<|im_end|>" not in best[0].text
    assert embedded.trace.num_steps < 100
    params = BeamSearchParams(2, 200, length_penalty=0.0, include_stop_str_in_output=True)
    again = embedded.generate(prompt, params, use_tqdm=False)[0].outputs
    assert again[0].text == best[0].text + "<|im_end|>"


@pytest.mark.slow
@pytest.mark.parametrize("mode", [None, "recompute", "swap"])
@pytest.mark.parametrize("caching", [False, True])
def test_beams_find_the_same_in_a_tight_pool(tiny_qwen2, mode, caching):
    rng = random.Random(3)
    requests = []
    for i in range(8):
        prompt = [rng.randrange(97) for _ in range(rng.randint(1, 14))]
        params = BeamSearchParams(rng.randint(2, 3), rng.randint(6, 14), ignore_eos=i % 2 == 0)
        if i % 3 == 2:
            params = SamplingParams(max_tokens=14, temperature=0, ignore_eos=True)
        requests.append((str(i), prompt, params))
    common = {"block_size": 4, "max_num_seqs": 8, "max_model_len": 40}
    common["enable_prefix_caching"] = caching
    easy = run(make_llm(tiny_qwen2, num_gpu_blocks_override=200, **common), requests)
    tight = make_llm(
        tiny_qwen2,
        num_gpu_blocks_override=23,
        preemption_mode=mode,
        trace=True,
        **common,
    )
    hard = run(tight, requests)
    for request_id, _, params in requests:
        same = [c.token_ids for c in hard[request_id].outputs]
        assert same == [c.token_ids for c in easy[request_id].outputs]
        if isinstance(params, BeamSearchParams):
            assert results(hard[request_id]) == results(easy[request_id])
    assert tight.llm_engine.scheduler.num_preemptions > 0
    assert not tight.llm_engine.scheduler.kv_manager.swap_space.tables


def test_beams_advance_in_the_same_step_and_copy_what_they_share(embedded):
    embedded.trace.clear()
    embedded.beam_search(PROMPTS[0], BeamSearchParams(3, max_tokens=10, ignore_eos=True))
    trace = embedded.trace
    prompt_steps = [r for r in trace.of(Scheduled) if r.kind == "new"]
    assert len(prompt_steps) == 1, "the prompt is computed once"
    for step in range(1, trace.num_steps):
        records = trace.at(step)
        assert len([r for r in records if isinstance(r, Scheduled)]) == 3
        forks = [r for r in records if isinstance(r, Forked)]
        dropped = [r for r in records if isinstance(r, Finished) and r.reason == "dropped"]
        assert len(forks) == len(dropped)
    assert list(trace.of(BlockCopied))
    engine = embedded.llm_engine
    last = trace.state_at(trace.num_steps - 1)
    assert not last.ref_counts
    assert not last.running
    assert engine.scheduler.kv_manager.usage == 0


def test_the_trace_follows_the_beams(tiny_qwen2):
    llm = make_llm(tiny_qwen2, num_gpu_blocks_override=65, block_size=4, trace=True)
    engine, scheduler = llm.llm_engine, llm.llm_engine.scheduler
    engine.add_request("a", {"prompt_token_ids": [5, 6, 7]}, BeamSearchParams(4, 12))
    while engine.has_unfinished_requests():
        engine.step()
        engine.check_integrity()
        state = llm.trace.state_at(llm.trace.num_steps - 1)
        assert state.running == [seq.seq_id for seq in scheduler.running]
        assert_same_free_queue(state, scheduler.kv_manager)
        for seq in scheduler.running:
            assert state.sequences[seq.seq_id].token_ids == seq.token_ids
            assert state.sequences[seq.seq_id].block_ids == scheduler.kv_manager.get_block_ids(
                seq.seq_id
            )


def test_an_aborted_search_leaves_nothing(tiny_qwen2):
    llm = make_llm(tiny_qwen2, num_gpu_blocks_override=65, block_size=4)
    engine = llm.llm_engine
    for steps in range(5):
        engine.add_request("a", {"prompt_token_ids": [5, 6, 7]}, BeamSearchParams(4, 12))
        for _ in range(steps):
            engine.step()
        (output,) = engine.abort_request("a")
        assert output.finished
        engine.check_integrity()
        assert engine.scheduler.kv_manager.usage == 0
        others = run(llm, [("a", [5, 6, 7], BeamSearchParams(2, 5))])
        assert len(others["a"].outputs) == 2


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"beam_width": 0}, "beam_width must be an integer of at least 1, got 0"),
        ({"max_tokens": -1}, "max_tokens must be an integer of at least 1, got -1"),
        ({"n": 2}, "BeamSearchParams has no argument 'n'"),
        ({"temperature": 0.7}, "temperature must be 0 for beams, since nothing is drawn, got 0.7"),
        ({"length_penalty": "long"}, "length_penalty must be a number from -10 to 10, got 'long'"),
        ({"ignore_eos": 1}, "ignore_eos must be True or False, got 1"),
    ],
)
def test_bad_parameters_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        BeamSearchParams(**{"beam_width": 2, "max_tokens": 4} | kwargs)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (BeamSearchParams(49, 4), "beam_width must be at most 48, half the vocabulary, got 49"),
        (BeamSearchParams(7, 4), "beam_width is 7, but max_num_seqs is 6"),
        (BeamSearchParams(6, 4), "beam_width is 6, but max_num_batched_tokens is 5"),
        (BeamSearchParams(4, 30), "can grow to 4 x 33 tokens, which takes 32 blocks"),
    ],
)
def test_a_search_that_could_never_run_is_refused(tiny_qwen2, params, message):
    llm = make_llm(
        tiny_qwen2,
        num_gpu_blocks_override=20,
        block_size=4,
        max_num_seqs=6,
        max_num_batched_tokens=5,
        max_model_len=60,
    )
    with pytest.raises(ValueError, match=message):
        llm.beam_search({"prompt_token_ids": [1, 2, 3]}, params)
    with pytest.raises(ValueError, match="params must be a BeamSearchParams, got SamplingParams"):
        llm.beam_search({"prompt_token_ids": [1, 2, 3]}, SamplingParams())
    assert not llm.llm_engine.has_unfinished_requests()


def test_the_tree_has_every_beam_that_was_kept(tiny_qwen2):
    llm = make_llm(tiny_qwen2, num_gpu_blocks_override=65, block_size=4, trace=True)
    engine, trace = llm.llm_engine, llm.trace
    engine.add_request("a", {"prompt_token_ids": [5, 6, 7]}, BeamSearchParams(4, 9))
    outputs, kept = [], []
    while engine.has_unfinished_requests():
        outputs += engine.step()
        state = trace.state_at(trace.num_steps - 1)
        kept += [(trace.num_steps - 1, state.sequences[s].token_ids[3:]) for s in state.running]
    tree = read_beam_tree(trace, None)
    returned = sorted(completion.token_ids for completion in outputs[-1].outputs)
    drawn = sorted((beam.step, list(beam.tokens)) for beam in tree.beams if not beam.is_final)
    assert drawn == sorted((step, tokens) for step, tokens in kept if len(tokens) < 9)
    assert sorted(list(beam.tokens) for beam in tree.beams if beam.is_final) == returned
    for beam in tree.beams:
        later = [*returned, *(tokens for _, tokens in kept)]
        goes_on = any(tuple(tokens[:-1]) == beam.tokens for tokens in later)
        assert beam.is_dropped == (not goes_on and len(beam.tokens) < 9)
    figure = beam_tree(trace)
    num_dropped = sum(beam.is_dropped for beam in tree.beams)
    assert num_dropped > 0
    assert figure.svg.count("line-through") == num_dropped == figure.text.count("×") - 1
    assert f"{num_dropped} dropped, 4 kept to the end; at most 4 beams at a time" in figure.alt
    with pytest.raises(ValueError, match="request_id must be one with several beams"):
        beam_tree(trace, "b")
