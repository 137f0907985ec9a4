"""Text on its way out: what comes in pieces is what decoding all at once gives."""

import pytest
from helpers import examples
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from minivllm import LLM, EngineArgs, LLMEngine, SamplingParams
from minivllm.embedded import embedded_model_path
from minivllm.engine.detokenizer import Detokenizer, FastStream, SlowStream
from minivllm.engine.logprobs import token_text
from minivllm.sampling_params import RequestOutputKind

BROKEN = "\N{REPLACEMENT CHARACTER}"
CUMULATIVE, DELTA, FINAL_ONLY = RequestOutputKind


def wordy(tokens, decoder, special=()) -> PreTrainedTokenizerFast:
    """A fast tokenizer with these tokens, in this order, and no merges."""
    tokenizer = Tokenizer(models.WordLevel({t: i for i, t in enumerate(tokens)}, tokens[0]))
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in special])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)


@pytest.fixture(scope="module")
def byte_level(tiny_chat):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_chat)


@pytest.fixture(scope="module")
def embedded():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(embedded_model_path())


@pytest.fixture(scope="module")
def sentencepiece_like():
    """Words bring their space along, which is dropped at the start; other words are bytes."""
    tokens = ["▁the", "▁cat", "s", "▁", *(f"<0x{byte:02X}>" for byte in range(256))]
    decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1),
        ]
    )
    return wordy(tokens, decoder, special=["<s>", "</s>"])


def pieces_of(stream, ids):
    return [*(stream.push(i) for i in ids), stream.rest()]


# -- streams of pieces -------------------------------------------------------------------------


@examples(40)
@given(st.lists(st.integers(0, 255), max_size=25), st.booleans())
def test_bytes_in_any_order_join_to_what_decoding_gives(byte_level, ids, with_end):
    if with_end:
        ids = [*ids, byte_level.eos_token_id]
    for kind in (FastStream, SlowStream):
        joined = "".join(pieces_of(kind(byte_level, [], SamplingParams()), ids))
        assert joined == byte_level.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("text", ["naïve 🌍🇫🇷 👩‍👩‍👧 한국어", "x = {'a': 1}\n\n", " leading"])
@pytest.mark.parametrize("kind", [FastStream, SlowStream])
def test_text_of_a_real_tokenizer_comes_out_whole(embedded, kind, text):
    ids = embedded.encode(text)
    pieces = pieces_of(kind(embedded, [], SamplingParams()), ids)
    assert "".join(pieces) == text
    assert not any(BROKEN in piece for piece in pieces)
    assert pieces[-1] == ""


def texts_of(tokenizer, ids):
    """The text of each token, as logprobs name it."""
    return [token_text(tokenizer.decode, ids[:i], token) for i, token in enumerate(ids)]


@examples(40)
@given(st.text("ré sumüx世🙂n", max_size=20))
def test_texts_of_tokens_join_to_the_text(embedded, text):
    assert "".join(texts_of(embedded, embedded.encode(text))) == text


def test_what_a_token_begins_with_goes_to_the_one_that_ends_its_character(embedded):
    ids = embedded.encode("x résumé")
    whole, inside = embedded.decode(ids[:-1]), embedded.decode(ids[2:3])
    assert inside == f"r{BROKEN}", "a token of a letter and a half"
    texts = texts_of(embedded, ids)
    assert texts[:4] == ["x", " ", "", "ré"]
    assert "".join(texts[:-1]) == whole


@pytest.mark.parametrize("kind", [FastStream, SlowStream])
def test_a_space_at_the_start_belongs_to_what_comes_before(sentencepiece_like, kind):
    the, cat, s = 0, 1, 2
    pieces = pieces_of(kind(sentencepiece_like, [the], SamplingParams()), [cat, s, the])
    assert pieces == [" cat", "s", " the", ""]
    assert (
        "".join(pieces_of(kind(sentencepiece_like, [], SamplingParams()), [the, cat])) == "the cat"
    )


@pytest.mark.parametrize("kind", [FastStream, SlowStream])
def test_bytes_of_a_fallback_wait_for_their_character(sentencepiece_like, kind):
    the, earth = 0, [4 + byte for byte in "🌍".encode()]
    stream = kind(sentencepiece_like, [the], SamplingParams())
    assert pieces_of(stream, earth) == ["", "", "", "🌍", ""]
    stream = kind(sentencepiece_like, [the], SamplingParams())
    assert pieces_of(stream, earth[:2])[:2] == ["", ""]
    assert set(stream.rest()) == {BROKEN}


@pytest.mark.parametrize("kind", [FastStream, SlowStream])
def test_ids_beyond_the_vocabulary_are_no_text(embedded, kind):
    """Models often have more rows of logits than their tokenizer has tokens."""
    ids = [*embedded.encode("ab"), len(embedded) + 3, *embedded.encode("cd")]
    if kind is SlowStream:
        ids = [i for i in ids if i < len(embedded)]
    assert "".join(pieces_of(kind(embedded, [], SamplingParams()), ids)) == "abcd"


def test_special_tokens_are_left_out_or_stand_side_by_side(sentencepiece_like):
    start, end = sentencepiece_like.convert_tokens_to_ids(["<s>", "</s>"])
    ids = [0, end, start, end, 1]

    def text(**params):
        return "".join(pieces_of(FastStream(sentencepiece_like, [], SamplingParams(**params)), ids))

    assert text() == "the cat"
    assert text(skip_special_tokens=False) == "the</s><s></s> cat"
    spacing = wordy(["a", "b"], decoders.WordPiece(cleanup=False), special=["<s>", "</s>"])
    ids = [0, 2, 3, 2, 1]
    for spaces, want in ((True, "a <s> </s> <s> b"), (False, "a <s></s><s> b")):
        params = SamplingParams(skip_special_tokens=False, spaces_between_special_tokens=spaces)
        assert "".join(pieces_of(FastStream(spacing, [], params), ids)) == want


def test_a_token_that_changes_what_was_shown_does_not_end_the_stream():
    """The library refuses such a token; here the text goes on behind what was shown."""
    tokenizer = wordy(
        ["a", "b", "c"], decoders.Sequence([decoders.Fuse(), decoders.Replace("ab", "X")])
    )
    stream = FastStream(tokenizer, [], SamplingParams())
    pieces = pieces_of(stream, [0, 1, 2, 2])
    assert pieces[0] == "a"
    assert "".join(pieces).endswith("cc")


# -- stop strings ------------------------------------------------------------------------------


def feed(tokenizer, text, **params):
    detokenizer = Detokenizer(tokenizer, [], SamplingParams(**params))
    for token_id in tokenizer.encode(text):
        found = detokenizer.append(token_id)
        if found is not None:
            return detokenizer.text, found
    detokenizer.finish()
    return detokenizer.text, None


few_letters = st.text("abc ", min_size=1, max_size=3)


@examples(40)
@given(st.text("abc ", max_size=20), st.lists(few_letters, max_size=3))
def test_where_a_stop_string_is_found_does_not_depend_on_the_tokens(
    byte_level, embedded, text, stop
):
    assert feed(byte_level, text, stop=stop) == feed(embedded, text, stop=stop)


def test_the_stop_string_that_ends_first_counts():
    tokenizer = wordy(["over ", "the ", "fence"], decoders.Fuse())
    detokenizer = Detokenizer(tokenizer, [], SamplingParams(stop=["he", " t", "the"]))
    assert [detokenizer.append(i) for i in (0, 1)] == [None, " t"]
    assert detokenizer.text == "over"


# -- in the engine -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llm(tiny_chat):
    return LLM(str(tiny_chat), num_gpu_blocks_override=200)


def joined(outputs, n):
    """Per sample what a stream of news adds up to: text, tokens, how many logprobs."""
    text, ids, logprobs = [""] * n, [[] for _ in range(n)], [0] * n
    for output in outputs:
        for c in output.outputs:
            text[c.index] += c.text
            ids[c.index] += c.token_ids
            logprobs[c.index] += len(c.logprobs)
    return text, ids, logprobs


@pytest.mark.parametrize("stop", [None, ["q", "ab", "\n\n\n"]])
def test_three_kinds_of_stream_say_the_same(llm, stop):
    params = {"n": 2, "temperature": 1.5, "seed": 3, "max_tokens": 24, "stop": stop, "logprobs": 1}
    params["prompt_logprobs"] = 1
    streams = {
        kind: list(llm.stream("hello", SamplingParams(**params, output_kind=kind)))
        for kind in RequestOutputKind
    }
    (final,) = streams[FINAL_ONLY]
    assert final.finished
    whole = [c.text for c in final.outputs], [c.token_ids for c in final.outputs]
    text, ids, num_logprobs = joined(streams[DELTA], 2)
    assert (text, ids) == whole
    assert num_logprobs == [len(i) for i in ids]
    assert [o.prompt_logprobs is not None for o in streams[DELTA]] == [
        i == 0 for i in range(len(streams[DELTA]))
    ]
    last = streams[CUMULATIVE][-1]
    assert last.outputs == final.outputs
    assert last.prompt_logprobs == final.prompt_logprobs == streams[DELTA][0].prompt_logprobs
    ends = [c.finish_reason for o in streams[DELTA] for c in o.outputs if c.finish_reason]
    assert len(ends) == 2
    assert [o.finished for o in streams[DELTA]][-2:] == [False, True]
    generated = llm.generate("hello", SamplingParams(**params, output_kind=DELTA), use_tqdm=False)
    assert generated[0].outputs == final.outputs


def test_an_aborted_stream_hands_out_what_it_held_back(tiny_chat):
    engine = LLMEngine(EngineArgs(str(tiny_chat), num_gpu_blocks_override=200))
    held = SamplingParams(
        temperature=0, max_tokens=20, stop="never to be seen", output_kind=DELTA, ignore_eos=True
    )
    engine.add_request("a", "hello", held)
    outputs = [output for _ in range(5) for output in engine.step()]
    assert "".join(o.outputs[0].text for o in outputs) == ""
    (last,) = engine.abort_request("a")
    assert (last.outputs[0].text != "", last.outputs[0].token_ids) == (True, [])
    assert last.outputs[0].finish_reason == "abort"
    assert engine.output_processor.request_states == {}


def test_streams_side_by_side_each_get_their_own(llm):
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, output_kind=DELTA)
    first = llm.stream("one", params)
    ids = next(first).outputs[0].token_ids
    whole = llm.generate(["one", "two"], params, use_tqdm=False)
    assert ids + [i for output in first for i in output.outputs[0].token_ids] == (
        whole[0].outputs[0].token_ids
    )
    assert not llm.llm_engine.has_unfinished_requests()


def test_a_stream_whose_requests_are_aborted_ends(llm):
    stream = llm.stream(["a", "b"], SamplingParams(max_tokens=50, ignore_eos=True))
    request_id = next(stream).request_id
    llm.llm_engine.abort_request([request_id, str(int(request_id) + 1)])
    assert len(list(stream)) == 1  # the other one's first output was there already


def test_who_stops_listening_ends_the_request(llm):
    stream = llm.stream(["a", "b"], SamplingParams(max_tokens=50, ignore_eos=True))
    next(stream)
    assert llm.llm_engine.get_num_unfinished_requests() == 2
    stream.close()
    assert not llm.llm_engine.has_unfinished_requests()
    llm.llm_engine.check_integrity()
    with pytest.raises(ValueError, match="prompt 1 of 2: the prompt is empty"):
        llm.stream(["a", ""])


def test_a_stop_string_comes_before_the_length(llm):
    whole = llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=3))
    token_ids, text = whole[0].outputs[0].token_ids, whole[0].outputs[0].text
    params = SamplingParams(temperature=0, max_tokens=3, stop=text[-1])
    out = llm.generate("The capital of France is", params)[0].outputs[0]
    assert (out.token_ids, out.finish_reason, out.stop_reason) == (token_ids, "stop", text[-1])
