"""EncoderRunner and MultiModalRunner, driven by plans that are written here."""

from dataclasses import replace

import multimodal_models as small
import pytest
import torch
from cuda_stand_ins import CallsAgain
from helpers import make_llm, workers_of

from minivllm import SamplingParams
from minivllm.lab.oracle import encode as oracle_encode
from minivllm.lab.oracle import next_token_logits
from minivllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from minivllm.scheduling.output import NewRequestData, SchedulerOutput
from minivllm.worker.profiling import largest_items

CPU = torch.device("cpu")
BLOCK_SIZE = 4


@pytest.fixture(scope="module", params=["clip-llama", "siglip-gpt2"])
def llm(request, tmp_path_factory):
    tower, decoder = request.param.split("-")
    directory = tmp_path_factory.mktemp(request.param)
    small.save(small.make_llava(tower, decoder), directory)
    return make_llm(directory, block_size=BLOCK_SIZE, max_model_len=128)


@pytest.fixture
def runner(llm):
    runner = llm.llm_engine.model_runner
    runner.execute_model(SchedulerOutput(reset=True))
    runner.encoder_runner.num_encoded = 0
    return runner


class Plans:
    """Plans for a runner: sequences get blocks of their own, as many as they may ever need."""

    def __init__(self, runner):
        self.runner = runner
        self.known = {}
        self.hidden = {}

    def new(self, seq_id, parts):
        """Make a sequence known; the next step sends it."""
        token_ids, features = small.with_pictures(parts)
        self.known[seq_id] = (token_ids, features)
        return token_ids, features

    def step(self, chunks, encode=None, free=(), preempted=()):
        """Run a step: by sequence, where a chunk begins and how many tokens it has.

        Returns the greedy tokens of those whose prompt ends.
        """
        states = self.runner.input_batch.states
        new = [name for name in chunks if name not in states]
        blocks = {}
        for name in new:
            number = list(self.known).index(name)
            ids = list(range(1 + 32 * number, 1 + 32 * (number + 1)))
            blocks[name] = (ids,)
        params = SamplingParams(temperature=0, max_tokens=9)
        plan = SchedulerOutput(
            num_scheduled_tokens={name: n for name, (_, n) in chunks.items()},
            num_computed_tokens={name: start for name, (start, _) in chunks.items()},
            new_block_ids=blocks,
            scheduled_new_reqs=[
                NewRequestData(
                    name,
                    list(self.known[name][0]),
                    len(self.known[name][0]),
                    params,
                    seed=0,
                    mm_features=self.known[name][1],
                )
                for name in new
            ],
            scheduled_encoder_inputs=encode or {},
            free_encoder_mm_hashes=list(free),
        )
        return self.runner.execute_model(plan).sampled_token_ids


def best(runner, token_ids, features):
    """The oracle's greedy token behind a prompt."""
    model, encoder = runner.model, runner.encoder_runner.encoder
    given = oracle_encode(encoder, features, CPU)
    return [int(next_token_logits(model, token_ids, given).argmax())]


@pytest.mark.parametrize("size", [1, 5, 16, 21, 100])
def test_a_prompt_in_chunks_says_what_it_says_whole(size, runner):
    """Pieces of a picture are gathered from an output that was made once."""
    plans = Plans(runner)
    token_ids, features = plans.new("a", [3, 4, "sun", 5, "sun", "moon", 6])
    sampled = {}
    for start in range(0, len(token_ids), size):
        stop = min(start + size, len(token_ids))
        due = [
            index
            for index, feature in enumerate(features)
            if start <= feature.mm_position.offset < stop and index != 1
        ]
        sampled = plans.step({"a": (start, stop - start)}, {"a": due} if due else {})
    assert sampled == {"a": best(runner, token_ids, features)}
    assert runner.encoder_runner.num_encoded == 2  # the sun is one picture, seen twice


def test_a_mixed_batch_has_each_row_where_it_belongs(runner):
    """A decode, a text, a chunk that ends in a picture, and one that begins in one."""
    plans = Plans(runner)
    first, first_items = plans.new("first", ["sun", 7])
    text, _ = plans.new("text", [9, 8, 7])
    late, late_items = plans.new("late", [5, "moon", 4])
    sampled = plans.step(
        {"first": (0, 17), "late": (0, 9)}, {"first": [0], "late": [0]}
    )  # fmt: skip
    assert sampled == {"first": best(runner, first, first_items)}
    token = sampled["first"]
    sampled = plans.step({"first": (17, 1), "text": (0, 3), "late": (9, 9)})
    assert sampled == {
        "first": best(runner, first + token, first_items),
        "text": best(runner, text, []),
        "late": best(runner, late, late_items),
    }
    assert runner.encoder_runner.num_encoded == 2


def test_outputs_are_forgotten_as_the_plan_says_and_all_after_a_failed_step(runner):
    plans = Plans(runner)
    plans.new("a", ["sun", "moon", 7])
    plans.step({"a": (0, 32)}, {"a": [0, 1]})
    cache = runner.encoder_runner.encoder_cache
    assert list(cache) == ["sun", "moon"]
    # forgotten first, then encoded anew: one may be both in a plan
    plans.step({"a": (16, 17)}, {"a": [1]}, free=["sun", "moon", "never seen"])
    assert list(cache) == ["moon"]
    assert runner.encoder_runner.num_encoded == 3
    runner.execute_model(SchedulerOutput(reset=True))
    assert not cache


def test_an_output_that_is_not_there_fails_the_step_and_names_it(runner):
    plans = Plans(runner)
    plans.new("a", ["sun", 7])
    with pytest.raises(RuntimeError, match="encoder cache miss: 'sun' of 'a'"):
        plans.step({"a": (0, 17)})


def test_an_output_of_another_length_names_both_numbers(runner):
    plans = Plans(runner)
    token_ids, (feature,) = plans.new("a", ["sun", 7])
    place = PlaceholderRange(offset=0, length=15)
    plans.known["a"] = token_ids, [MultiModalFeatureSpec(feature.data, "image", "sun", place)]
    with pytest.raises(RuntimeError, match="has 16 embeddings, but 15 placeholders"):
        plans.step({"a": (0, 17)}, {"a": [0]})


def test_rows_between_embeddings_keep_those_of_their_tokens(runner):
    """Breaks between a picture's rows do: ``is_embed`` says which have one."""
    plans = Plans(runner)
    _, (feature,) = small.with_pictures(["sun"])
    is_embed = (True,) * 5 + (False,) + (True,) * 11 + (False,)
    token_ids = [3, *([small.PLACEHOLDER] * 5), 60, *([small.PLACEHOLDER] * 11), 61, 7]
    place = PlaceholderRange(offset=1, length=18, is_embed=is_embed)
    features = [MultiModalFeatureSpec(feature.data, "image", "sun", place)]
    plans.known["a"] = token_ids, features
    plans.step({"a": (0, 4)}, {"a": [0]})
    plans.step({"a": (4, 3)})
    sampled = plans.step({"a": (7, 13)})
    assert sampled == {"a": best(runner, token_ids, features)}


def test_kept_outputs_are_never_written_to(runner):
    """The layers write into what they read: it is made anew in each step."""
    plans = Plans(runner)
    plans.new("a", ["sun", 7])
    plans.step({"a": (0, 10)}, {"a": [0]})
    before = runner.encoder_runner.encoder_cache["sun"].clone()
    embeddings = runner.model.model.embed_tokens.weight.clone()
    plans.step({"a": (10, 7)})
    assert torch.equal(runner.encoder_runner.encoder_cache["sun"], before)
    assert torch.equal(runner.model.model.embed_tokens.weight, embeddings)


def test_a_graph_is_replayed_only_without_placeholders(runner):
    """A chunk of one row looks like a decode."""
    recorder = CallsAgain()
    runner.capture_decodes([1, 2], 128, recorder)
    replayed = []
    replay = runner.cuda_graph_runner.replay
    runner.cuda_graph_runner.replay = lambda *args: replayed.append(len(args[0])) or replay(*args)
    try:
        plans = Plans(runner)
        token_ids, features = plans.new("a", [3, "sun", 7])
        plans.step({"a": (0, 1)}, {"a": [0]})
        for start in range(1, 17):
            plans.step({"a": (start, 1)})
        assert replayed == [1]
        sampled = plans.step({"a": (17, 1)})
        assert replayed == [1, 1]
        assert sampled == {"a": best(runner, token_ids, features)}
    finally:
        runner.cuda_graph_runner = None


def test_the_memory_profile_has_a_step_with_the_largest_items(llm):
    (worker,) = workers_of(llm)
    limits = replace(worker.config.scheduler_config, max_num_encoder_input_tokens=50)
    features = largest_items(worker.encoder, limits)
    assert [(f.mm_position.offset, f.mm_position.length) for f in features] == [
        (0, 16), (16, 16), (32, 16),
    ]  # fmt: skip
    assert len(largest_items(worker.encoder, replace(limits, max_num_encoder_input_tokens=3))) == 1
    whole = worker._activations()
    encoder = worker.encoder
    worker.encoder = None
    try:
        assert worker._activations() < whole
    finally:
        worker.encoder = encoder
    towers = sum(p.nbytes for p in encoder.parameters())
    assert worker._weight_bytes() - towers == sum(p.nbytes for p in worker.model.parameters())
