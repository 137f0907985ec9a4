"""Grammars in the engine: mixed batches, samples, preemptions; the oracle, and parsers."""

import json
import math
import random
import re

import pytest
from hypothesis import settings

from minivllm import LLM, SamplingParams
from minivllm.lab import oracle
from minivllm.sampling_params import BeamSearchParams, GuidedDecodingParams, StructuredOutputsParams
from minivllm.scheduling import stop

NUM_REQUESTS = max(200, 2 * settings.default.max_examples)  # 2,000 in the nightly profile
CLEAR = 1e-4
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
CHOICES = ["Rome", "Paris", "Par", "世界 🙂", ""]
BRACKETS = 'start: pair+\npair: "(" start? ")"'


def is_person(text):
    value = json.loads(text)
    assert value.keys() - {"tags"} == {"name", "age"}
    assert isinstance(value["name"], str)
    assert 0 <= value["age"] <= 150
    assert set(value.get("tags", ())) <= {"a", "b"}
    assert not re.search(r"[:,]\s\s|\n", re.sub(r'"([^"\\]|\\.)*"', '""', text))


def is_balanced(text):
    assert text
    while "()" in text:
        text = text.replace("()", "")
    assert text == ""


KINDS = [
    ({"regex": r"\d{3}-\d{4}"}, lambda t: re.fullmatch(r"\d{3}-\d{4}", t)),
    ({"regex": r"(é|[a-c]{2}|世){1,6}!?"}, lambda t: re.fullmatch(r"(é|[a-c]{2}|世){1,6}!?", t)),
    ({"choice": CHOICES}, lambda t: t in CHOICES),
    ({"json": PERSON}, lambda t: is_person(t) is None),
    ({"json_object": True}, lambda t: isinstance(json.loads(t), dict)),
    ({"grammar": BRACKETS}, lambda t: is_balanced(t) is None),
]


def make_llm(directory, **kwargs):
    return LLM(str(directory), **{"num_gpu_blocks_override": 200, **kwargs})


def constrained(**params):
    kind = {name: params.pop(name) for name in list(params) if name in
            ("regex", "choice", "json", "json_object", "grammar")}  # fmt: skip
    return SamplingParams(structured_outputs=StructuredOutputsParams(**kind), **params)


def one(llm, params, prompt="Hi"):
    return llm.generate(prompt, params, use_tqdm=False)[0].outputs[0]


@pytest.fixture(scope="module")
def llm(tiny_chat):
    return make_llm(tiny_chat, max_logprobs=-1)


# -- all in all --------------------------------------------------------------------------------


NGRAM = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 1,
         "prompt_lookup_max": 3}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [{}, {"speculative_config": NGRAM}, {"async_scheduling": True}],
    ids=["plain", "drafts", "overlapped"],
)
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_every_text_is_what_was_asked_for(tiny_chat, mode, how):
    llm = make_llm(
        tiny_chat, block_size=4, max_model_len=96, num_gpu_blocks_override=58, max_num_seqs=12,
        max_num_batched_tokens=48, preemption_mode=mode, **how,
    )  # fmt: skip
    engine, rng = llm.llm_engine, random.Random(f"{mode} {how.get('speculative_config')}")
    asked, whole = {}, 0
    for i in range(NUM_REQUESTS // 4):
        kind, fits = rng.choice([*KINDS, (None, None)])
        temperature = rng.choice([0, 1.5])
        params = {
            "temperature": temperature,
            "max_tokens": rng.choice([6, 60]),
            "seed": i,
            "n": rng.choice([1, 1, 3]) if temperature else 1,
        }
        if kind is not None:
            params["structured_outputs"] = StructuredOutputsParams(**kind)
        text = "".join(rng.choice("abc ") for _ in range(rng.randint(1, 30)))
        engine.add_request(str(i), "shared prefix " * rng.randint(0, 1) + text,
                           SamplingParams(**params))  # fmt: skip
        asked[str(i)] = fits
    while engine.has_unfinished_requests():
        for output in engine.step():
            if not output.finished or asked[output.request_id] is None:
                continue
            for completion in output.outputs:
                assert completion.finish_reason in ("stop", "length")
                if completion.finish_reason == "stop":
                    assert asked[output.request_id](completion.text), completion
                    whole += 1
        engine.check_integrity()
    assert engine.scheduler.num_preemptions > 0
    assert whole > NUM_REQUESTS / 8


@pytest.mark.parametrize("chunk", [8, 256])
def test_the_oracle_says_the_same(tiny_chat, chunk):
    """Every token of every sample, where the choice is clear; with other parameters beside."""
    llm = make_llm(
        tiny_chat, block_size=4, max_model_len=80, num_gpu_blocks_override=48,
        max_num_batched_tokens=chunk, max_num_seqs=8,
    )  # fmt: skip
    engine, rng, requests = llm.llm_engine, random.Random(chunk), []
    kinds = [kind for kind, _ in KINDS] * 2
    for i, kind in enumerate(kinds):
        params = constrained(
            **kind, temperature=rng.choice([0, 1.0]), max_tokens=rng.randint(3, 14), seed=i,
            top_k=rng.choice([0, 7]), presence_penalty=rng.choice([0.0, 1.5]),
        )  # fmt: skip
        prompt = "".join(rng.choice("abc ") for _ in range(rng.randint(1, 20)))
        request = engine.input_processor.make_request(str(i), prompt, params)
        requests.append(request)
        engine.submit(request)
    while engine.has_unfinished_requests():
        engine.step()
        engine.check_integrity()
    compared = 0
    for request in requests:
        params = request.sampling_params
        grammar = engine.structured_output_manager.compile_grammar(
            params.structured_outputs, params.all_stop_token_ids
        )
        want = oracle.run(engine.model_runner.model, request, 80, grammar=grammar)
        got = request.seqs[0].output_token_ids
        for i, (token, margin) in enumerate(zip(want.token_ids, want.margins, strict=True)):
            if margin < CLEAR:
                break
            assert got[i] == token
            compared += 1
    assert compared > 60


def test_neighbours_are_left_alone(llm):
    free = SamplingParams(temperature=0.9, seed=3, max_tokens=12)
    alone = one(llm, free).token_ids
    params = [free, constrained(regex="[ab]{9}", temperature=0.9, seed=3), free]
    outputs = llm.generate(["Hi", "Hi", "Hi"], params, use_tqdm=False)
    assert [o.outputs[0].token_ids for o in outputs][::2] == [alone, alone]
    assert re.fullmatch("[ab]{9}", outputs[1].outputs[0].text)


def test_samples_follow_their_own_ways(llm):
    params = constrained(choice=["aa", "ab", "ba", "bb"], temperature=3.0, n=8, seed=1)
    outputs = llm.generate("Hi", params, use_tqdm=False)[0].outputs
    assert len({o.text for o in outputs}) > 1
    assert {o.text for o in outputs} <= {"aa", "ab", "ba", "bb"}
    for i in range(8):
        alone = constrained(choice=["aa", "ab", "ba", "bb"], temperature=3.0, seed=1 + i)
        assert one(llm, alone).token_ids == outputs[i].token_ids


# -- where a text ends -------------------------------------------------------------------------


def test_the_end_comes_only_where_it_may(llm):
    whole = one(llm, constrained(regex="x{5}", temperature=0, max_tokens=20))
    assert (whole.text, whole.finish_reason) == ("xxxxx", "stop")
    cut = one(llm, constrained(regex="x{5}", temperature=0, max_tokens=3))
    assert (cut.text, cut.finish_reason) == ("xxx", "length")
    empty = one(llm, constrained(choice=[""], temperature=0))
    assert (empty.text, empty.finish_reason, len(empty.token_ids)) == ("", "stop", 1)


def test_stop_strings_and_stop_tokens_beside_a_grammar(llm):
    params = constrained(regex=r"ab\ncd", temperature=0, stop=["\n"])
    assert (one(llm, params).text, one(llm, params).stop_reason) == ("ab", "\n")
    bang = llm.get_tokenizer().encode("!", add_special_tokens=False)[0]
    params = constrained(regex="a{3}", temperature=0, stop_token_ids=[bang],
                         logit_bias={bang: 100})  # fmt: skip
    output = one(llm, params)
    assert (output.text, output.stop_reason) == ("aaa", bang)


def test_behind_an_ignored_end_anything_goes(llm):
    params = constrained(choice=["ab"], temperature=0, ignore_eos=True, max_tokens=8)
    output = one(llm, params)
    assert output.text.startswith("ab")
    assert (len(output.token_ids), output.finish_reason) == (8, "length")


def test_where_nothing_is_left_only_that_request_ends(llm):
    a = llm.get_tokenizer().encode("a", add_special_tokens=False)[0]
    params = [
        constrained(regex="b+", temperature=0, allowed_token_ids=[a]),
        constrained(choice=["a"], temperature=0, min_tokens=5, max_tokens=9),
        constrained(choice=["a"], temperature=0.7),
    ]
    outputs = [o.outputs[0] for o in llm.generate(["Hi"] * 3, params, use_tqdm=False)]
    assert [o.finish_reason for o in outputs] == ["error", "error", "stop"]
    assert [o.text for o in outputs] == ["", "a", "a"]
    llm.llm_engine.check_integrity()


def test_logprobs_are_those_under_the_grammar(llm):
    params = constrained(choice=["a", "b"], temperature=0, logprobs=3, max_tokens=1)
    first = one(llm, params).logprobs[0]
    possible = {i: found.logprob for i, found in first.items() if found.logprob > -math.inf}
    assert len(possible) == 2
    assert sum(math.exp(logprob) for logprob in possible.values()) == pytest.approx(1)


def test_a_step_that_fails_leaves_the_grammar_where_it_was(llm, monkeypatch):
    engine, calls = llm.llm_engine, []
    params = constrained(regex="[a-f]{8}", temperature=2.0, seed=4, n=2)
    wanted = [o.text for o in llm.generate("Hi", params, use_tqdm=False)[0].outputs]
    honest = stop.check_stop

    def fails_now_and_then(*arguments):
        calls.append(arguments)
        if len(calls) in (2, 6, 9):
            raise RuntimeError("no luck")
        return honest(*arguments)

    monkeypatch.setattr(stop, "check_stop", fails_now_and_then)
    engine.add_request("r", "Hi", params)
    failed, outputs = 0, []
    while engine.has_unfinished_requests():
        try:
            outputs = engine.step() or outputs
        except RuntimeError:
            failed += 1
        engine.check_integrity()
    assert failed == 3
    assert [o.text for o in outputs[-1].outputs] == wanted


# -- errors come before anything has changed ---------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ({"regex": "("}, "regex must be a regular expression"),
        ({"regex": "(.{1,300}){1,300}"}, "at most 20,000 states"),
        ({"json": {"type": "integer", "minimum": 3, "maximum": 2}}, "Unsatisfiable"),
        ({"grammar": "start: nobody"}, "unknown name"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_added(llm, kind, words):
    engine = llm.llm_engine
    engine.add_request("good", "Hi", constrained(regex="ab", temperature=0))
    with pytest.raises(ValueError, match=words):
        engine.add_request("bad", "Hi", constrained(**kind))
    engine.check_integrity()
    while engine.has_unfinished_requests():
        outputs = engine.step()
    assert outputs[0].outputs[0].text == "ab"


def test_a_tokenizer_is_needed(tiny_qwen2):
    llm = make_llm(tiny_qwen2, skip_tokenizer_init=True)
    with pytest.raises(ValueError, match="skip_tokenizer_init=True leaves no tokenizer"):
        one(llm, constrained(regex="a"), [1, 2])


def test_beams_have_no_grammar():
    with pytest.raises(ValueError, match="BeamSearchParams has no argument 'structured_outputs'"):
        BeamSearchParams(2, 5, structured_outputs=StructuredOutputsParams(regex="a"))


def test_the_engine_chooses_the_backend(tiny_chat):
    for arguments in (
        {"structured_outputs_config": {"backend": "guidance", "disable_any_whitespace": True}},
        {"guided_decoding_backend": "guidance"},
    ):
        llm = make_llm(tiny_chat, **arguments)
        assert llm.llm_engine.structured_output_manager.config.backend == "guidance"
        output = one(llm, SamplingParams(guided_decoding=GuidedDecodingParams(regex="ab")))
        assert output.text == "ab"
    for bad, words in [
        ({"structured_outputs_config": {"backend": "x"}}, "backend must be one of auto, fsm"),
        ({"structured_outputs_config": {"bakend": "fsm"}}, "did you mean 'backend'"),
        ({"structured_outputs_config": "fsm"}, "structured_outputs_config must be a dict"),
        ({"guided_decoding_backend": "x"}, "guided_decoding_backend must be one of"),
        (
            {"guided_decoding_backend": "fsm", "structured_outputs_config": {"backend": "fsm"}},
            "guided_decoding_backend must be None beside structured_outputs_config, got 'fsm'",
        ),
    ]:
        with pytest.raises(ValueError, match=words):
            make_llm(tiny_chat, **bad)
