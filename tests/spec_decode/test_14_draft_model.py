"""A draft model: it reads along, its drafts change no text, and drawn ones no distribution."""

import itertools
import random
from unittest.mock import Mock

import pytest
import torch
from helpers import Disturbed, examples, fail_once, make_llm, run_and_compare
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_draws import CRITICAL, LOGITS, VOCAB, anything, chi_square
from test_14_speculative_decoding import mixture, run, some_requests, tokens

from minivllm import LLM, BeamSearchParams, EngineArgs, SamplingParams
from minivllm.embedded import embedded_model_path
from minivllm.lab import oracle
from minivllm.sampling.interface import SamplingState
from minivllm.sampling.metadata import SamplingMetadata
from minivllm.sampling.random import Purpose, stream_keys, uniform
from minivllm.sampling.reference import filter_logits, process_logits
from minivllm.sampling.rejection_sampler import DrawnDraft
from minivllm.sampling.sampler import Sampler, sample_from_cdf
from minivllm.sampling_params import StructuredOutputsParams
from minivllm.spec_decode.ngram import propose
from minivllm.trace.records import Verified

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def tiny_draft(tmp_path_factory):
    """Another random Qwen2 with the vocabulary of ``tiny_qwen2``, and other heads."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(5)
    config = Qwen2Config(
        vocab_size=97, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=256,
        tie_word_embeddings=True, eos_token_id=96, bos_token_id=None, initializer_range=0.4,
    )  # fmt: skip
    directory = tmp_path_factory.mktemp("tiny_draft")
    Qwen2ForCausalLM(config).save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def short_draft(tmp_path_factory):
    """A random OPT of the same vocabulary that knows 24 positions."""
    from transformers import OPTConfig, OPTForCausalLM

    torch.manual_seed(6)
    config = OPTConfig(
        vocab_size=97, hidden_size=16, ffn_dim=24, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=24, word_embed_proj_dim=16, eos_token_id=96, bos_token_id=None,
        init_std=0.4,
    )  # fmt: skip
    directory = tmp_path_factory.mktemp("short_draft")
    OPTForCausalLM(config).save_pretrained(directory)
    return directory


NGRAMS = {"prompt_lookup_min": 1, "prompt_lookup_max": 3}  # looked up before the model guesses


def drafting(draft, k=3, **kwargs):
    """Settings of an engine with this draft model, or with n-grams if it has that name."""
    config = {"method": "draft_model", "model": str(draft), "num_speculative_tokens": k}
    return {"speculative_config": config | kwargs, "trace": True}


def small_llm(directory, **kwargs):
    settings = {"max_model_len": 48, "num_gpu_blocks_override": 64, "swap_space": 0.001}
    return make_llm(directory, **{**settings, **kwargs})


def verified(llm):
    return list(llm.llm_engine.trace.of(Verified))


# -- the same text -----------------------------------------------------------------------------


@pytest.mark.parametrize("ngrams", [{}, NGRAMS], ids=["model", "ngrams first"])
@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("caching", [True, False])
def test_drafts_equal_the_oracle_with_every_parameter(
    tiny_qwen2, tiny_draft, mode, caching, ngrams
):
    llm = small_llm(
        tiny_qwen2, block_size=4, max_model_len=40, num_gpu_blocks_override=15,
        max_num_batched_tokens=13, preemption_mode=mode, enable_prefix_caching=caching,
        **drafting(tiny_draft, **ngrams),
    )  # fmt: skip
    rng = random.Random(mode)
    few = [rng.randrange(90) for _ in range(3)]
    prompts = [[rng.choice(few) for _ in range(rng.randint(1, 16))] for _ in range(12)]
    compared, exempted = run_and_compare(llm, prompts, [anything(rng, 97) for _ in prompts])
    assert llm.llm_engine.scheduler.num_preemptions > 0
    assert exempted < compared / 10
    assert verified(llm)


@examples(12)  # in the nightly profile some 500 requests, beside 800 with guesses of its own
@given(
    seed=st.integers(0, 10**6),
    k=st.sampled_from([1, 2, 5]),
    which=st.sampled_from(["other", "same", "short", "ngram"]),
    ngrams=st.sampled_from([{}, NGRAMS]),
    settings=mixture(48, 64, 200),
)
def test_no_draft_changes_a_token(
    tiny_qwen2, tiny_draft, short_draft, seed, k, which, ngrams, settings
):
    rng = random.Random(seed)
    settings = {**settings, "max_model_len": 44, "max_num_seqs": 8, "swap_space": 0.001}
    if settings["block_size"] == 1:
        settings["num_gpu_blocks_override"] *= 4
    requests = some_requests(rng)
    plain = run(small_llm(tiny_qwen2, **settings), requests)
    draft = {"other": tiny_draft, "same": tiny_qwen2, "short": short_draft, "ngram": "ngram"}[which]
    llm = small_llm(tiny_qwen2, **settings, **drafting(draft, k, method=None, **ngrams))
    assert tokens(run(llm, requests, rng)) == tokens(plain)
    assert all(len(record.draft_token_ids) <= k for record in verified(llm))


@pytest.mark.combinations(2)
@pytest.mark.parametrize("ngrams", [{}, NGRAMS], ids=["model", "ngrams first"])
@pytest.mark.parametrize("what", ["_forward", "sampler", "draft_model._forward"])
@pytest.mark.parametrize("call", range(1, 9))
@pytest.mark.parametrize("how", ["greedy", "probabilistic"])
def test_a_failed_step_takes_drafts_back(
    tiny_qwen2, tiny_draft, monkeypatch, what, call, ngrams, how
):
    """The next token is then drawn without a draft; only a draft that was drawn moves the draw."""
    params = SamplingParams(n=2, temperature=1.0, seed=3, max_tokens=24, ignore_eos=True)
    settings = {"block_size": 4, "max_model_len": 40, "max_num_batched_tokens": 6}
    settings |= drafting(tiny_draft, draft_sample_method=how, **ngrams)
    outputs, kept = [], []
    for fails in (False, True):
        engine, num_failed = small_llm(tiny_qwen2, **settings).llm_engine, 0
        if fails:
            *inner, name = what.split(".")
            owner = engine.model_runner.draft_model if inner else engine.model_runner
            fail_once(monkeypatch, owner, name, call)
        engine.add_request("a", {"prompt_token_ids": [5, 6, 5, 6]}, params)
        while engine.has_unfinished_requests():
            try:
                outputs += [o for o in engine.step() if o.finished]
            except Disturbed:
                num_failed += 1
                kept = [seq.output_token_ids for seq in engine.scheduler.requests["a"].seqs]
            engine.check_integrity()
        assert num_failed == fails
    one, other = ([c.token_ids for c in output.outputs] for output in outputs)
    assert one == other or how == "probabilistic"
    for tokens_before, *whole in zip(kept, one, other, strict=False):
        assert [text[: len(tokens_before)] for text in whole] == [tokens_before] * 2


# -- a draft that is the target ------------------------------------------------------------------


@pytest.mark.parametrize("how", ["greedy", "probabilistic"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"block_size": 4, "max_num_batched_tokens": 7},
        {"block_size": 4, "enable_prefix_caching": False, "attention_backend": "reference"},
    ],
    ids=repr,
)
def test_a_draft_that_is_the_target_is_always_accepted(tiny_qwen2, how, settings):
    """k + 1 tokens in every step but the last, whatever is copied, found or forked before."""
    temperature = 0.0 if how == "greedy" else 1.0
    llm = small_llm(
        tiny_qwen2, **settings, **drafting(tiny_qwen2, k=4, draft_sample_method=how)
    )  # fmt: skip
    prompts = [[5, 6], [1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]]
    n = 1 if how == "greedy" else 3
    params = SamplingParams(temperature=temperature, n=n, seed=3, max_tokens=31, ignore_eos=True)
    for _ in range(2):  # the second time from the cache, if there is one
        run(llm, [(str(i), prompt, params) for i, prompt in enumerate(prompts)])
    found = verified(llm)
    assert len(found) >= 2 * n * len(prompts) * 6
    assert all(r.num_accepted == len(r.draft_token_ids) for r in found)
    if not settings:
        assert sum(len(r.draft_token_ids) == 4 for r in found) >= len(found) * 3 / 4
    stats = llm.llm_engine.metrics.spec_decoding
    assert stats.acceptance_rate == 1.0


def test_blocks_from_the_host_hold_the_drafts_past_too(tiny_qwen2):
    llm = small_llm(
        tiny_qwen2, block_size=4, num_gpu_blocks_override=16, preemption_mode="swap",
        **drafting(tiny_qwen2, k=2),
    )  # fmt: skip
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    run(llm, [(str(i), [i, 6, 7, 8, 9], params) for i in range(4)])
    assert llm.llm_engine.scheduler.num_preemptions > 0
    assert all(r.num_accepted == len(r.draft_token_ids) for r in verified(llm))


def test_a_text_beyond_the_drafts_positions_goes_on_without(tiny_qwen2, short_draft):
    llm = small_llm(tiny_qwen2, **drafting(short_draft))
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    plain = run(small_llm(tiny_qwen2), [("a", [1, 2, 3], params)])
    assert tokens(run(llm, [("a", [1, 2, 3], params)])) == tokens(plain)
    assert 0 < len(verified(llm)) <= 24 - 3


# -- the distribution ------------------------------------------------------------------------------


DRAFTS = {
    "like the target": [1.5, 1.2, 0.5, 0.1, -0.4, -1.0, -1.0, 0.9, -0.3, 1.0, 0.3, -1.9],
    "of another mind": [-2.0, -1.0, -0.5, 0.0, 2.5, 1.0, 2.2, -0.9, 0.1, -1.4, -0.2, 2.0],
    "sure of one": [-40.0, 9.0, *[-40.0] * 10],
}
NUM_DRAWS = 20_000


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.0},
        {"top_k": 3},
        {"top_p": 0.8},
        {"min_p": 0.2},
        {"temperature": 1.5, "min_p": 0.1, "top_k": 7, "top_p": 0.9},
        {"presence_penalty": 0.8, "repetition_penalty": 1.4, "allowed_token_ids": [0, 1, 5, 6, 9]},
        {"logit_bias": {5: 2.5, 0: -1.0}},
    ],
    ids=lambda params: "+".join(params) or "plain",
)
def test_drawn_drafts_leave_the_distribution_as_it_is(params, draft):
    """20,000 rows, each with a draft of its own: accepted p / q, else from what p has more."""
    params, cpu = SamplingParams(**params), torch.device("cpu")
    exact, _ = filter_logits(process_logits(LOGITS, params, [2, 3], [0]), params)
    logits = torch.tensor([DRAFTS[draft]]).double() / params.temperature
    q = logits.softmax(-1).float().expand(NUM_DRAWS, -1)
    numbers = uniform(stream_keys(range(NUM_DRAWS), Purpose.DRAFT), [3] * NUM_DRAWS)
    drafts, rows = sample_from_cdf(q.double(), torch.from_numpy(numbers)), []
    for seed, (draft_id, probs) in enumerate(zip(drafts.tolist(), q, strict=True)):
        rows.append(SamplingState(params, seed, [2, 3, 0], 2))
        rows[-1].drawn_draft = DrawnDraft(draft_id, probs)
    metadata = SamplingMetadata(rows, VOCAB, cpu)
    chosen = Sampler()(torch.tensor([LOGITS] * NUM_DRAWS), metadata).token_ids
    counts = torch.bincount(chosen, minlength=VOCAB)
    assert all(counts[i] == 0 for i in range(VOCAB) if i not in exact)
    if len(exact) > 1:
        assert chi_square(counts, exact) < CRITICAL[len(exact) - 2]
    # and a draft is kept as often as can be
    best = sum(min(p, float(q[0, i])) for i, p in exact.items())
    kept = int((chosen == drafts).sum()) / NUM_DRAWS
    assert abs(kept - best) < 4 * (best * (1 - best) / NUM_DRAWS) ** 0.5 + 1e-3


@pytest.fixture(scope="module")
def few_tokens(tmp_path_factory):
    """Two random models with a vocabulary of 6: a target and a draft."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    directories = []
    for seed, layers in ((7, 2), (8, 1)):
        torch.manual_seed(seed)
        config = Qwen2Config(
            vocab_size=6, hidden_size=16, intermediate_size=24, num_hidden_layers=layers,
            num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64,
            tie_word_embeddings=True, eos_token_id=None, bos_token_id=None, initializer_range=0.5,
        )  # fmt: skip
        directories.append(tmp_path_factory.mktemp(f"few_tokens_{seed}"))
        Qwen2ForCausalLM(config).save_pretrained(directories[-1])
    return directories


@pytest.mark.parametrize("ngrams", [{}, NGRAMS], ids=["model", "ngrams first"])
@pytest.mark.parametrize("params", [{}, {"top_k": 3, "temperature": 1.5}], ids=repr)
def test_drawn_drafts_leave_the_joint_distribution_as_it_is(few_tokens, params, ngrams):
    """Three tokens of an engine with drafts, beside the target's own probabilities of all 216."""
    target, draft = few_tokens
    num_draws = 3 * NUM_DRAWS if settings.default.max_examples > 100 else NUM_DRAWS // 5
    llm = make_llm(
        target, max_model_len=16, block_size=4, num_gpu_blocks_override=3000, max_num_seqs=500,
        **drafting(draft, 2, draft_sample_method="probabilistic", **ngrams),
    )  # fmt: skip
    params = SamplingParams(**params, n=100, max_tokens=4, ignore_eos=True)
    counts = torch.zeros(6, 6, 6)
    for seed in range(num_draws // 100):
        params.seed = 1000 * seed
        (output,) = llm.generate([[1, 2, 3]], params, use_tqdm=False)
        for c in output.outputs:
            counts[tuple(c.token_ids[:3])] += 1
    drafted = verified(llm)
    assert 0 < sum(r.num_accepted for r in drafted) < sum(len(r.draft_token_ids) for r in drafted)
    exact, model = torch.zeros(6, 6, 6), llm.llm_engine.model_runner.model
    for first, second in itertools.product(range(6), repeat=2):
        share = 1.0
        for known, token in (([], first), ([first], second), ([first, second], None)):
            logits = oracle.next_token_logits(model, [1, 2, 3, *known]).tolist()
            probs, _ = filter_logits(process_logits(logits, params, [1, 2, 3], known), params)
            if token is not None:
                share *= probs.get(token, 0.0)
        for third, prob in probs.items():
            exact[first, second, third] = share * prob
    enough = exact * num_draws >= 8
    rest = (counts[~enough].sum() - exact[~enough].sum() * num_draws) ** 2
    found = ((counts - num_draws * exact) ** 2 / (num_draws * exact))[enough].sum() + rest / max(
        1.0, float(exact[~enough].sum()) * num_draws
    )
    degrees = int(enough.sum())
    assert found < degrees + 3.5 * (2 * degrees) ** 0.5  # once in a thousand tries


def test_the_same_seed_draws_the_same_text(tiny_qwen2, tiny_draft):
    """Beside others, too: every number is a request's own."""
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=20, ignore_eos=True)
    other = SamplingParams(temperature=1.0, seed=4, max_tokens=20, ignore_eos=True)
    found = []
    for requests in ([("a", [1, 2, 3], params)], [("a", [1, 2, 3], params), ("b", [4], other)]):
        llm = small_llm(tiny_qwen2, **drafting(tiny_draft, draft_sample_method="probabilistic"))
        found.append(tokens(run(llm, requests))["a"])
    assert found[0] == found[1]


@pytest.mark.parametrize("how", ["greedy", "probabilistic"])
def test_a_draft_model_that_computes_nonsense_harms_nobody(tiny_qwen2, tiny_draft, how):
    llm = small_llm(tiny_qwen2, **drafting(tiny_draft, draft_sample_method=how))
    with torch.no_grad():
        llm.llm_engine.worker.draft_model.lm_head.weight.fill_(torch.nan)
    params = SamplingParams(temperature=1e-3, seed=3, max_tokens=20, ignore_eos=True)
    plain = run(small_llm(tiny_qwen2), [("a", [1, 2, 3], params)])
    assert tokens(run(llm, [("a", [1, 2, 3], params)])) == tokens(plain)
    assert not any(record.num_accepted > 1 for record in verified(llm))


def test_what_a_grammar_cuts_is_never_drawn():
    """It would be cut because of what was drawn, and the distribution would not be p."""
    settings = {"max_model_len": 128, "num_gpu_blocks_override": 40, "swap_space": 0.001}
    llm = LLM(
        **settings,
        **drafting(embedded_model_path(), draft_sample_method="probabilistic"),
    )  # fmt: skip
    choice = StructuredOutputsParams(regex="(yes|no|maybe)( again){1,6}")
    engine = llm.llm_engine
    for request_id, structured in (("a", choice), ("b", None)):
        params = SamplingParams(seed=1, max_tokens=30, structured_outputs=structured)
        engine.add_request(request_id, "Is it so?", params)
    drawn = {"a": set(), "b": set()}
    while engine.has_unfinished_requests():
        engine.step()
        for request_id, state in engine.model_runner.input_batch.states.items():
            drawn[request_id].add(state.drawn_drafts is not None)
    assert drawn["a"] == {False}
    assert True in drawn["b"]


# -- n-grams first --------------------------------------------------------------------------------


def test_the_model_guesses_only_where_no_ngram_is_found(tiny_qwen2, tiny_draft, monkeypatch):
    """Each draft is the rule's own, or, where that has none, the one of the model alone."""
    params = SamplingParams(temperature=0, max_tokens=36, ignore_eos=True)
    request, found, passes = [("a", [5, 6, 7], params)], {}, {}
    for name, ngrams in (("model", {}), ("both", NGRAMS)):
        llm = small_llm(tiny_qwen2, **drafting(tiny_draft, k=3, **ngrams))
        proposer = llm.llm_engine.model_runner.draft_model
        forward = Mock(wraps=proposer._forward)
        monkeypatch.setattr(proposer, "_forward", forward)
        (output,) = run(llm, request).values()
        text = [5, 6, 7, *output.outputs[0].token_ids]
        num_known, found[name] = 4, {}
        for record in verified(llm):
            drafts = list(record.draft_token_ids)
            found[name][num_known] = drafts
            num_known += record.num_accepted + 1
        passes[name] = forward.call_count
    asked = 0
    for num_known, drafts in found["both"].items():
        copied = propose(text[:num_known], 1, 3, len(drafts), 48)
        if copied:
            assert drafts == copied
        else:
            asked += 1
            assert drafts == found["model"].get(num_known, drafts)
    num_steps = len(found["both"])
    assert 0 < asked < num_steps
    assert set(found["both"]) & set(found["model"])
    assert passes["both"] <= num_steps + 2 + 2 * asked  # it reads along, and goes on where it must


def test_ngrams_that_were_taken_back_are_not_found(tiny_qwen2, tiny_draft, monkeypatch):
    """A step that fails behind its look-up leaves nothing of its tokens in the index."""
    llm = small_llm(tiny_qwen2, **drafting(tiny_draft, **NGRAMS))
    engine = llm.llm_engine
    proposer = engine.model_runner.draft_model
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    engine.add_request("a", {"prompt_token_ids": [5, 6, 7]}, params)
    fail_once(monkeypatch, proposer, "_read_along", 3)
    num_failed = 0
    while engine.has_unfinished_requests():
        try:
            engine.step()
        except Disturbed:
            num_failed += 1
        for state, index in proposer.ngrams._indices.items():
            assert index.num_tokens <= len(state.token_ids)
    assert num_failed == 1


# -- arguments ---------------------------------------------------------------------------------


def test_the_names_of_vllm_now_and_then(tiny_draft):
    new = EngineArgs(speculative_config={"model": str(tiny_draft), "num_speculative_tokens": 3})
    old = EngineArgs(speculative_model=str(tiny_draft), num_speculative_tokens=3)
    assert new.speculative_config == old.speculative_config
    assert new.speculative_config.method == "draft_model"
    assert EngineArgs(**vars(new)).speculative_config == new.speculative_config


def test_a_draft_with_another_vocabulary_is_refused_by_name(tiny_qwen2, tiny_llama):
    message = "speculative model's vocabulary must be the model's own, 97 tokens, got '89 tokens'"
    with pytest.raises(ValueError, match=message):
        small_llm(tiny_qwen2, **drafting(tiny_llama))


@pytest.mark.parametrize(
    ("changes", "settings", "message"),
    [
        ({"model": "no/such/draft"}, {}, "speculative model 'no/such/draft' is not a directory"),
        ({"model": ""}, {}, "the speculative model must be"),
        ({"method": "custom_class"}, {}, "must be 'draft_model' with this model"),
        ({"prompt_lookup_max": 0}, {}, "prompt_lookup_max must be an integer of at least 1"),
        (
            {"prompt_lookup_max": 2, "prompt_lookup_min": 3},
            {},
            "prompt_lookup_min must be at most prompt_lookup_max=2, got 3",
        ),
        ({"draft_sample_method": "best"}, {}, "draft_sample_method must be one of greedy, prob"),
        ({"num_speculative_tokens": 48}, {}, "must be at most 47"),
        ({}, {"max_num_batched_tokens": 1}, "max_num_batched_tokens must be at least 2"),
        (
            {},
            {"num_gpu_blocks_override": 4, "max_model_len": 49},
            "holds 48 tokens",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(tiny_qwen2, tiny_draft, changes, settings, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        small_llm(tiny_qwen2, **settings, **drafting(**{"draft": tiny_draft, **changes}))


def test_nothing_is_looked_up_beside_a_model_unless_it_is_said(tiny_draft):
    for said, meant in (({}, (None, None)), ({"prompt_lookup_max": 4}, (4, 4)), (NGRAMS, (1, 3))):
        args = EngineArgs(speculative_config=drafting(tiny_draft, **said)["speculative_config"])
        config = args.speculative_config
        assert (config.prompt_lookup_min, config.prompt_lookup_max) == meant
        assert EngineArgs(**vars(args)).speculative_config == config


def test_drafts_are_drawn_by_a_draft_model_only():
    with pytest.raises(ValueError, match="must be 'greedy' without a draft model"):
        EngineArgs(
            speculative_config={
                "method": "ngram",
                "num_speculative_tokens": 2,
                "draft_sample_method": "probabilistic",
            }
        )


def test_beams_fit_two_tokens_each(tiny_qwen2, tiny_draft):
    llm = small_llm(tiny_qwen2, max_num_batched_tokens=9, **drafting(tiny_draft))
    with pytest.raises(ValueError, match=r"beam_width is 5, .* room for 4"):
        llm.beam_search([{"prompt_token_ids": [1]}], BeamSearchParams(beam_width=5, max_tokens=4))
    params = BeamSearchParams(beam_width=4, max_tokens=6, ignore_eos=True)
    plain = run(small_llm(tiny_qwen2), [("b", [1, 2], params)])
    assert tokens(run(llm, [("b", [1, 2], params)])) == tokens(plain)
