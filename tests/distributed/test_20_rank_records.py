"""Records of ranks: what each one did for a plan, in a trace and only there."""

from collections import Counter, defaultdict

import pytest
from helpers import workers_of

from minivllm import LLM, SamplingParams
from minivllm.trace.records import Communicated, RankRecord, RankWorked, StepStarted
from minivllm.worker.traced_worker import TracedWorker

PROMPTS = [{"prompt_token_ids": list(range(3, 3 + n))} for n in (5, 12, 20)]


def run(backend, tp, pp, **settings):
    llm = LLM(tensor_parallel_size=tp, pipeline_parallel_size=pp, max_model_len=100,
              distributed_executor_backend=backend, num_gpu_blocks_override=60,
              dtype="float32", **settings)  # fmt: skip
    llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=4), use_tqdm=False)
    core = llm.llm_engine.engine_core
    llm.shutdown()
    return core


@pytest.mark.parametrize(
    ("backend", "tp", "pp"), [("together", 2, 1), ("together", 4, 1), ("together", 2, 2),
                              ("together", 1, 3), ("mp", 2, 2)],
)  # fmt: skip
def test_operations_and_bytes_are_as_the_formula_says(backend, tp, pp):
    """2 all-reduces a layer and one of the embedding; an all-gather; a send between stages."""
    core = run(backend, tp, pp, trace=True, max_num_seqs=2)
    trace, model = core.trace, core.config.model_config
    tokens, rows = defaultdict(int), defaultdict(int)  # by plan
    for record in trace.records:
        if type(record).__name__ == "Scheduled":
            tokens[record.step] += record.num_tokens
            rows[record.step] += record.samples
    done = defaultdict(list)  # by plan and rank
    for record in trace.of(Communicated):
        done[record.plan, record.rank].append((record.group, record.op, record.num_bytes))
    assert {plan for plan, _ in done} == set(tokens)  # an empty plan needs none
    assert {r.plan for r in trace.of(RankWorked)} >= set(tokens)
    partition = [model.stage(p, pp).num_layers for p in range(pp)]
    for plan, num_tokens in tokens.items():
        row = num_tokens * model.hidden_size * 4  # float32
        share = -(-model.vocab_size // 64) * 64 // tp * 4
        for rank in range(tp * pp):
            stage = rank // tp
            want = Counter()
            if tp > 1:
                want["tp", "all_reduce", row] = 2 * partition[stage] + (stage == 0)
                if stage == pp - 1:
                    want["tp", "all_gather", rows[plan] * share] = 1
            if stage > 0:
                want["pp", "recv", 2 * row] = 1
            if stage < pp - 1:
                want["pp", "send", 2 * row] = 1
            assert Counter(done[plan, rank]) == want


@pytest.mark.parametrize("backend", ["together", "mp"])
def test_work_is_within_its_step_and_holds_its_operations(backend):
    """Times are the trace's, also those that another process has noted."""
    trace = run(backend, 2, 1, trace=True).trace
    begun = {r.step: r.time for r in trace.of(StepStarted)}
    work = {(r.plan, r.rank): r for r in trace.of(RankWorked)}
    slack = 0.01  # seconds: one clock is the wall's, which is set now and then
    for record in trace.of(RankRecord):
        whole = work[record.plan, record.rank]
        assert record.step == record.plan
        assert begun[record.plan] - slack < whole.start <= whole.end
        assert whole.start - slack < record.start <= record.end < whole.end + slack
    assert set(trace.state_at(trace.step).running) == set()


def test_one_rank_or_no_trace_leaves_no_record():
    assert not list(run("uni", 1, 1, trace=True).trace.of(RankRecord))
    llm = LLM(tensor_parallel_size=2, distributed_executor_backend="together")
    assert not any(isinstance(worker, TracedWorker) for worker in workers_of(llm))
