"""One engine that sends, one that gets, and all that can go wrong at once.

No block is lost, no half file is read, and each request says what it says undisturbed; one whose K
and V do not come is computed or ends with an error, as the policy says.
"""

import random
import shutil

import pytest
from faults import COMPUTING, PLANNING, UPDATING, Fault, fault_at
from helpers import examples, make_llm
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from two_engines import LIMITS, asking, engine, greedy

TRANSFERRING = (
    "scheduler.remote_kvs.consider",
    "scheduler.remote_kvs.update",
    "scheduler.remote_kvs.connector.get_num_new_matched_tokens",
    "scheduler.remote_kvs.connector.update_state_after_alloc",
    "scheduler.remote_kvs.connector.request_finished",
    "scheduler.remote_kvs.connector.build_connector_meta",
    "worker.kv_transfer.connector.start_load_kv",
    "worker.kv_transfer.connector._files.load",
    "worker.kv_transfer.connector._files.save",
    "worker.kv_transfer.connector._files.take_ended",
    "worker.kv_transfer.connector.get_finished",
)
NOT_HERE = ("swap", "scheduler.fork", "kv_manager.fork", "input_batch.fork", "_move_blocks")
POINTS = [
    path
    for path in (*PLANNING, *COMPUTING, *UPDATING, *TRANSFERRING)
    if not any(name in path for name in NOT_HERE)
]
PROMPTS = [[5] * 13, [6, 7] * 8, [5] * 9 + [3], [9], [1, 2, 3, 4], [8] * 21]
NUM_TOKENS = [6, 9, 3, 5, 7, 8]  # of each one's answer
POOLS = {"num_gpu_blocks_override": 18, "max_num_batched_tokens": 16}


class Both:
    """A sender, a receiver and a folder between them, for any number of runs.

    Args:
        directory: of the model.
        folder: for files.
    """

    def __init__(self, directory, folder):
        self.folder = folder
        extra = {"load_timeout": 0.05}
        self.sender = engine(directory, folder, "kv_producer", **POOLS).llm_engine
        consumer = engine(directory, folder, "kv_consumer", extra=extra, **POOLS)
        self.receiver = consumer.llm_engine
        alone = make_llm(directory, **LIMITS)
        self.want = []
        for prompt, number in zip(PROMPTS, NUM_TOKENS, strict=True):
            given = {"prompt_token_ids": prompt}
            (output,) = alone.generate([given], greedy(number), use_tqdm=False)
            self.want.append(output.outputs[0].token_ids)
        self._num_requests = 0
        self.begin(recomputes=False)

    def begin(self, recomputes):
        """Forget an earlier run."""
        self.recomputes = recomputes
        self.receiver.scheduler.remote_kvs.recomputes = recomputes
        for path in self.folder.iterdir():
            shutil.rmtree(path)
        for side in (self.sender, self.receiver):
            side.abort_request(list(side.scheduler.requests))
            side.end_transfers()
            side.reset_prefix_cache()
        self.which = {}  # prompt of each request, by id
        self.asked = []  # prompts that were sent, and what the receiver must be given
        self.spoilt = set()  # prompts whose files were touched
        self.errors = []  # requests that ended with one

    def add(self, side, index, params=None, sent=False):
        """Ask a side for a prompt: as it is, to be sent, or with what came back."""
        self._num_requests += 1
        name = str(self._num_requests)
        number = 1 if sent else NUM_TOKENS[index]
        params = {"do_remote_decode": True} if sent else params
        side.add_request(name, {"prompt_token_ids": PROMPTS[index]}, asking(greedy(number), params))
        self.which[name] = index
        return name

    def go_on(self, index, params):
        """Continue a prompt; one whose files are gone is refused."""
        if not self.is_there(params):
            assert index in self.spoilt
            with pytest.raises(ValueError, match="are gone"):
                self.add(self.receiver, index, params)
            return
        if not any((self.folder / params["remote_name"]).glob("rank_*")):
            self.spoilt.add(index)  # the sender may come too late
        self.add(self.receiver, index, params)

    def is_there(self, params):
        """True while a promise is kept, or may be."""
        return (self.folder / params["remote_name"]).is_dir()

    def step(self, side):
        """One step, after which nothing may be lost."""
        try:
            outputs = side.step()
        finally:
            side.check_integrity()
        for output in outputs:
            if output.finished:
                self._check(output, self.which.pop(output.request_id))

    def _check(self, output, index):
        (completion,) = output.outputs
        if completion.finish_reason == "error":
            assert not self.recomputes
            assert index in self.spoilt, "only what was touched may fail"
            assert completion.token_ids == []
            self.errors.append(output.request_id)
            return
        want = self.want[index]
        assert completion.token_ids == want[: len(completion.token_ids)]
        assert len(completion.token_ids) in (1, len(want))
        if output.kv_transfer_params is not None:
            self.asked.append((index, output.kv_transfer_params))

    def fail(self, side, path, call=0, after=False):
        """Let a step fail at a point, if it comes there. Returns True if it did."""
        with fault_at(side, path, call, after):
            try:
                self.step(side)
            except Fault:
                if side is self.sender:  # what is not written by now may be lost with its blocks
                    names = {i: self.folder / params["remote_name"] for i, params in self.asked}
                    self.spoilt |= {i for i, path in names.items() if not any(path.glob("rank_*"))}
                return True
        return False

    def spoil(self, how, rng):
        """Touch files of some prompt."""
        folders = sorted(self.folder.iterdir())
        if not folders:
            return
        self.spoilt.update(range(len(PROMPTS)))
        chosen = rng.choice(folders)
        files = sorted(chosen.glob("rank_0/*.safetensors"))
        if how == "delete all" or not files:
            shutil.rmtree(chosen, ignore_errors=True)
        elif how == "delete":
            rng.choice(files).unlink()
        elif how == "truncate":
            file = rng.choice(files)
            data = file.read_bytes()
            file.write_bytes(data[: rng.randrange(len(data))])
        else:  # the sender has vanished before it was done
            shutil.rmtree(chosen / "rank_0", ignore_errors=True)

    def end(self):
        """Let all go on to its end: nothing is left."""
        for side in (self.sender, self.receiver):
            for _ in range(2000):
                if not side.has_unfinished_requests():
                    break
                self.step(side)
            pool = side.scheduler.kv_manager.block_pool
            assert pool.num_free_blocks == pool.num_usable_blocks
            assert not side.has_unfinished_requests()
        assert not self.which


@pytest.fixture(scope="module")
def both(tiny_qwen2, tmp_path_factory):
    return Both(tiny_qwen2, tmp_path_factory.mktemp("shared"))


def a_run(both, recomputes, send, get):
    """Send all prompts, and get them beside requests of the receiver's own.

    Args:
        send, get: called in the place of some steps of the sender, and of the receiver.
    """
    both.begin(recomputes)
    for index in range(len(PROMPTS)):
        both.add(both.sender, index, sent=True)
        send(both.sender) if index % 2 else both.step(both.sender)
    while both.sender.has_unfinished_requests():
        both.step(both.sender)
    both.add(both.receiver, 0)
    for number, (index, params) in enumerate(list(both.asked)):
        both.go_on(index, params)
        get(both.receiver) if number % 2 else both.step(both.receiver)
    get(both.receiver)
    both.end()
    assert len(both.asked) == len(PROMPTS)
    assert both.spoilt or not both.errors


def test_undisturbed_all_are_fetched(both):
    a_run(both, recomputes=False, send=both.step, get=both.step)
    assert not both.spoilt


@pytest.mark.slow
@pytest.mark.combinations(1)
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("path", POINTS)
def test_a_step_that_fails_at_any_point_loses_nothing(both, path, after):
    reached = 0

    def fail(side):
        nonlocal reached
        reached += both.fail(side, path, reached % 2, after)

    for recomputes in (False, True):
        a_run(both, recomputes, send=both.step, get=fail)
        assert not both.spoilt
        a_run(both, recomputes, send=fail, get=both.step)
    assert reached or path not in TRANSFERRING, "no step comes there"


class Disturbances(RuleBasedStateMachine):
    """Anything in any order: requests, aborts, failing steps, files that vanish or are cut off."""

    both = None

    def __init__(self):
        super().__init__()
        self.rng = random.Random(0)
        self.both.begin(recomputes=False)

    @rule(recomputes=st.booleans())
    def choose(self, recomputes):
        self.both.recomputes = recomputes
        self.both.receiver.scheduler.remote_kvs.recomputes = recomputes
        if recomputes:
            while self.both.receiver.has_unfinished_requests():
                self.both.step(self.both.receiver)

    @rule(index=st.integers(0, len(PROMPTS) - 1))
    def send(self, index):
        self.both.add(self.both.sender, index, sent=True)

    @rule(index=st.integers(0, len(PROMPTS) - 1), on_sender=st.booleans())
    def compute(self, index, on_sender):
        self.both.add(self.side(on_sender), index)

    @rule(which=st.integers(0, 99))
    def go_on(self, which):
        if self.both.asked:
            self.both.go_on(*self.both.asked[which % len(self.both.asked)])

    @rule(on_sender=st.booleans(), times=st.integers(1, 6))
    def step(self, on_sender, times):
        for _ in range(times):
            self.both.step(self.side(on_sender))

    @rule(
        on_sender=st.booleans(),
        path=st.sampled_from(POINTS),
        call=st.integers(0, 1),
        after=st.booleans(),
    )
    def fail(self, on_sender, path, call, after):
        self.both.fail(self.side(on_sender), path, call, after)

    @rule(how=st.sampled_from(["delete all", "delete", "truncate", "never whole"]))
    def spoil(self, how):
        self.both.spoil(how, self.rng)

    @rule(on_sender=st.booleans(), which=st.integers(0, 99))
    def abort(self, on_sender, which):
        side = self.side(on_sender)
        names = sorted(side.scheduler.requests)
        if names:
            name = names[which % len(names)]
            side.abort_request(name)
            del self.both.which[name]

    def side(self, on_sender):
        return self.both.sender if on_sender else self.both.receiver

    @invariant()
    def is_whole(self):
        for side in (self.both.sender, self.both.receiver):
            side.check_integrity()

    def teardown(self):
        self.both.end()


def test_any_disturbances_cost_only_what_they_touch(both):
    Disturbances.both = both
    run_state_machine_as_test(Disturbances, settings=examples(6, steps=40))
