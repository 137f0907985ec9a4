"""Two engines and a folder: one computes prompts, the other continues them."""

from helpers import make_llm

from minivllm import SamplingParams
from minivllm.trace.records import Preempted, Scheduled

LIMITS = {"block_size": 4, "max_model_len": 64, "num_gpu_blocks_override": 60}


def transfer_config(folder, role, policy="fail", **extra):
    return {
        "kv_connector": "ExampleConnector",
        "kv_role": role,
        "kv_load_failure_policy": policy,
        "kv_connector_extra_config": {"shared_storage_path": str(folder), **extra},
    }


def engine(directory, folder, role, policy="fail", extra=None, **kwargs):
    config = transfer_config(folder, role, policy, **extra or {})
    return make_llm(directory, kv_transfer_config=config, **LIMITS | kwargs)


def asking(params, asked):
    """Parameters of a request that also asks something of the connector."""
    values = {name: getattr(params, name) for name in ("temperature", "max_tokens", "seed", "n")}
    extra = {"kv_transfer_params": asked}
    return SamplingParams(**values, ignore_eos=params.ignore_eos, extra_args=extra)


def prefill(llm, prompts, **kwargs):
    """Compute prompts and send them; returns what the other engine must be given."""
    one = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    params = asking(one, {"do_remote_decode": True})
    inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
    outputs = llm.generate(inputs, params, use_tqdm=False, **kwargs)
    return [output.kv_transfer_params for output in outputs]


def ids_of(outputs):
    return [[c.token_ids for c in output.outputs] for output in outputs]


def greedy(max_tokens=6, **kwargs):
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **kwargs)


def go_on(llm, prompts, params, asked, **kwargs):
    """Continue what another engine has computed."""
    inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
    params = [asking(p, a) for p, a in zip(params, asked, strict=True)]
    return llm.generate(inputs, params, use_tqdm=False, **kwargs)


def prompt_tokens_computed(llm):
    """By request, of those that were not preempted: tokens in the step that admitted it."""
    trace = llm.llm_engine.trace
    preempted = {record.seq_id for record in trace.of(Preempted)}
    first = {r.seq_id: r.num_tokens for r in trace.of(Scheduled) if r.kind == "new"}
    return {name: number for name, number in first.items() if name not in preempted}
