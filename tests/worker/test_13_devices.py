"""Which device an engine takes, what it computes in there, and how it refuses one."""

import logging
from dataclasses import replace

import pytest
import torch
from cuda_stand_ins import (
    CUDA,
    GIB,
    CallsAgain,
    out_of_memory,
    pretend_gpu,
    pretend_memory,
    pretend_no_gpu,
)
from helpers import make_llm

from minivllm import EngineArgs, SamplingParams
from minivllm.config.parallel import ParallelConfig
from minivllm.engine.device import resolve_device, resolve_dtype
from minivllm.engine.process_client import _take_share
from minivllm.lab.bench.machine import default_device
from minivllm.utils.platforms import pick_device
from minivllm.worker.worker import Worker

GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


@pytest.fixture(autouse=True)
def _nothing_is_said_of_devices(monkeypatch):
    monkeypatch.delenv("MINIVLLM_DEVICE", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def config(**kwargs):
    return EngineArgs(**kwargs).create_engine_config()


# ---- refused cards, one sentence each ----------------------------------------------------------


def refusal():
    with pytest.raises(ValueError, match="device='cuda', but ") as refused:
        pick_device("cuda")
    message = str(refused.value)
    assert message.endswith("; use 'cpu' or 'auto'.")
    assert message.count(". ") == 0
    assert "\n" not in message
    return message


def test_a_torch_without_cuda(monkeypatch):
    pretend_no_gpu(monkeypatch)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert f"this torch ({torch.__version__}) was built without CUDA" in refusal()


@pytest.mark.parametrize("visible", ["", "-1", "7"])
def test_a_hidden_card(monkeypatch, visible):
    pretend_no_gpu(monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert f"torch sees no GPU with CUDA_VISIBLE_DEVICES={visible!r}" in refusal()
    assert pick_device("auto").type == "cpu"


def test_no_card_at_all(monkeypatch):
    pretend_no_gpu(monkeypatch)
    assert "but torch sees no GPU here" in refusal()


@pytest.mark.parametrize("visible", [None, ""])
def test_a_driver_that_is_too_old(monkeypatch, visible):
    """torch's words, without its links."""
    pretend_no_gpu(
        monkeypatch,
        "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU "
        "driver by downloading and installing a new version from the URL: "
        "http://www.nvidia.com/Download/index.aspx Alternatively, go to: https://pytorch.org to "
        "install a PyTorch version that has been compiled with your version of the CUDA driver.",
    )
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    words = "The NVIDIA driver on your system is too old (found version 11040); use"
    assert words in refusal()


@pytest.mark.parametrize("capability", [(6, 1), (5, 2), (3, 7)])
def test_a_card_that_is_too_old(monkeypatch, capability):
    pretend_gpu(monkeypatch, "GeForce GTX 1080", capability, built_for=["sm_50", "sm_60"])
    version = ".".join(map(str, capability))
    assert (
        "minivllm needs compute capability 7.0, and 'GeForce GTX 1080' (with compute capability "
        f"{version}) has less"
    ) in refusal()
    assert pick_device("auto").type == "cpu", "a student's first line works all the same"


def test_a_card_that_is_too_old_for_this_torch(monkeypatch):
    pretend_gpu(monkeypatch, "Tesla V100", (7, 0))
    message = refusal()
    assert f"this torch ({torch.__version__}) needs compute capability 7.5, and" in message
    pretend_gpu(monkeypatch, "Tesla V100", (7, 0), built_for=["sm_70", "sm_90"])
    assert pick_device("cuda") == CUDA


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 9), (9, 0), (10, 0), (12, 0)])
def test_a_card_that_will_do(monkeypatch, capability):
    pretend_gpu(monkeypatch, capability=capability)
    assert pick_device("cuda") == pick_device("auto") == CUDA
    pretend_gpu(monkeypatch, capability=capability, built_for=[])
    assert pick_device("cuda") == CUDA


# ---- MINIVLLM_DEVICE ---------------------------------------------------------------------------


def test_the_environment_says_what_auto_means(monkeypatch):
    pretend_gpu(monkeypatch)
    assert resolve_device("auto").type == default_device().type == "cuda"
    monkeypatch.setenv("MINIVLLM_DEVICE", "cpu")
    assert resolve_device("auto").type == default_device().type == "cpu"
    assert config().device_config.device.type == "cpu"
    assert resolve_device("cuda").type == "cuda", "an argument says it itself"
    monkeypatch.setenv("MINIVLLM_DEVICE", "gpu")
    with pytest.raises(ValueError, match="MINIVLLM_DEVICE must be auto, cpu or cuda, got 'gpu'"):
        config()


def test_a_device_of_the_environment_that_is_not_there(monkeypatch):
    pretend_no_gpu(monkeypatch)
    monkeypatch.setenv("MINIVLLM_DEVICE", "cuda")
    with pytest.raises(ValueError, match="torch sees no GPU here"):
        config()


def test_replicas_on_a_cpu_take_no_gpu(monkeypatch):
    pretend_gpu(monkeypatch, number=4)
    monkeypatch.setattr("torch.set_num_threads", lambda number: None)
    monkeypatch.setenv("MINIVLLM_DEVICE", "cpu")
    args = EngineArgs(tensor_parallel_size=2)
    args.data_parallel_size = 3
    _take_share(args, 0)


# ---- bfloat16 ----------------------------------------------------------------------------------


@pytest.fixture
def log(monkeypatch, caplog):
    monkeypatch.setattr(logging.getLogger("minivllm"), "propagate", True)
    return caplog


def bfloat16_model(tiny_qwen2):
    return {"model": str(tiny_qwen2), "skip_tokenizer_init": True,
            "hf_overrides": {"dtype": "bfloat16"}}  # fmt: skip


def test_auto_is_float16_on_a_card_without_bfloat16(tiny_qwen2, monkeypatch, log):
    pretend_gpu(monkeypatch)
    model = bfloat16_model(tiny_qwen2)
    assert config(**model).model_config.dtype == torch.float16
    assert log.messages == [
        "Your device 'Tesla T4' (with compute capability 7.5) doesn't support torch.bfloat16. "
        "Falling back to torch.float16 for compatibility."
    ]
    assert log.records[0].levelname == "WARNING"
    assert config(**model, device="cpu").model_config.dtype == torch.bfloat16
    pretend_gpu(monkeypatch, "NVIDIA A100", (8, 0))
    assert config(**model).model_config.dtype == torch.bfloat16


def test_bfloat16_is_refused_in_vllms_words(tiny_qwen2, monkeypatch):
    pretend_gpu(monkeypatch)
    with pytest.raises(ValueError, match="Bfloat16 is only") as refused:
        config(**bfloat16_model(tiny_qwen2), dtype="bfloat16")
    assert str(refused.value) == (
        "Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla T4 "
        "GPU has compute capability 7.5. You can use float16 instead by explicitly setting the "
        "`dtype` flag in CLI, for example: --dtype=half."
    )
    for name in ("half", "float16", "float32", "float"):
        assert resolve_dtype(name, torch.bfloat16, CUDA) in (torch.float16, torch.float32)
    assert resolve_dtype("bfloat16", torch.float32, torch.device("cpu")) == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_auto_keeps_what_a_card_has(dtype, monkeypatch, log):
    pretend_gpu(monkeypatch)
    assert resolve_dtype("auto", dtype, CUDA) == dtype
    assert not log.messages


def test_adapters_in_bfloat16_are_refused_likewise(tiny_qwen2, monkeypatch):
    pretend_gpu(monkeypatch)
    model = {"model": str(tiny_qwen2), "skip_tokenizer_init": True, "enable_lora": True}
    with pytest.raises(ValueError, match="Bfloat16 is only supported on GPUs"):
        config(**model, lora_dtype="bfloat16")
    assert config(**model, lora_dtype="float16").lora_config is not None


# ---- two ranks on one card ---------------------------------------------------------------------


def test_only_ranks_that_take_turns_share_a_card(tiny_qwen2, monkeypatch):
    pretend_gpu(monkeypatch)
    model = {"model": str(tiny_qwen2), "skip_tokenizer_init": True, "tensor_parallel_size": 2}
    with pytest.raises(ValueError, match=r"World size \(2\) is larger than .* GPUs \(1\)"):
        config(**model)
    shared = config(**model, distributed_executor_backend="together")
    assert Worker(shared).ranks_here == 2
    pretend_gpu(monkeypatch, number=2)
    assert Worker(shared).ranks_here == 1
    assert Worker(config(**model)).ranks_here == 1


def test_ranks_on_one_card_share_what_is_left(tiny_qwen2, monkeypatch):
    worker = make_llm(tiny_qwen2, num_gpu_blocks_override=20).llm_engine.worker
    left = []
    for ranks in (1, 2):
        pretend_memory(monkeypatch, (9 * GIB, 10 * GIB), (8 * GIB, 10 * GIB))
        monkeypatch.setattr(worker, "ranks_here", ranks)
        worker._look_at_gpu()
        left.append(worker._measure_gpu())
    assert left[1] == left[0] // 2


def test_a_rank_computes_on_its_own_card(tiny_qwen2, monkeypatch):
    """Triton launches on the current device, whatever a tensor's is."""
    current = []
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    worker = make_llm(tiny_qwen2, num_gpu_blocks_override=20).llm_engine.worker
    for device in (CUDA, torch.device("cuda:1")):
        pretend_memory(monkeypatch, (9 * GIB, 10 * GIB))
        monkeypatch.setattr(worker, "device", device)
        worker.init_device()
    assert current == [torch.device("cuda:1")]


def test_ranks_that_take_turns_record_no_graphs(tiny_qwen2, monkeypatch, log):
    llm = make_llm(tiny_qwen2, num_gpu_blocks_override=20)
    worker = llm.llm_engine.worker
    parallel = ParallelConfig(2, distributed_executor_backend="together")
    monkeypatch.setattr(worker, "config", replace(worker.config, parallel_config=parallel))
    monkeypatch.setattr(worker.parallel_state.tp, "size", 2)
    monkeypatch.setattr(worker, "device", CUDA)
    monkeypatch.setattr("minivllm.worker.worker.CUDAGraphRecorder", CallsAgain)
    with log.at_level(logging.INFO, logger="minivllm"):
        worker.compile_or_warm_up_model()
    assert log.messages[-1] == "No CUDA graphs: ranks take turns, which is not recorded."


# ---- memory that does not suffice --------------------------------------------------------------


def one_sentence(error):
    message = str(error.value)
    assert message.count(". ") == 0
    assert "\n" not in message
    return message


def test_a_step_that_does_not_fit_is_one_sentence_and_the_next_works(tiny_qwen2, monkeypatch):
    llm = make_llm(tiny_qwen2, num_gpu_blocks_override=20)
    want = llm.generate([[1, 2, 3]], GREEDY, use_tqdm=False)[0].outputs[0].token_ids
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    with monkeypatch.context() as patch:
        patch.setattr(llm.llm_engine.model_runner.model, "compute_logits", out_of_memory)
        with pytest.raises(RuntimeError, match="a step of 3 tokens") as error:
            llm.generate([[1, 2, 3]], GREEDY, use_tqdm=False)
    assert "a step of 3 tokens does not fit into the memory of cpu; lower" in one_sentence(error)
    assert llm.generate([[1, 2, 3]], GREEDY, use_tqdm=False)[0].outputs[0].token_ids == want


@pytest.mark.parametrize(
    ("call", "broken", "what"),
    [
        ("load_model", "minivllm.worker.worker.load_model", "the weights do not fit"),
        ("_measure_gpu", "minivllm.worker.worker.peak_bytes", "weights and a full step do not fit"),
        ("initialize", "minivllm.worker.kv_cache.KVCache", "weights and the KV cache do not fit"),
        (
            "capture",
            "minivllm.worker.worker.CUDAGraphRecorder",
            "weights, KV cache and CUDA graphs do not fit",
        ),
    ],
)
def test_a_start_that_does_not_fit_is_one_sentence_and_keeps_nothing(
    tiny_qwen2, monkeypatch, call, broken, what
):
    llm = make_llm(tiny_qwen2, num_gpu_blocks_override=20)
    core, worker = llm.llm_engine.engine_core, llm.llm_engine.worker
    pretend_memory(monkeypatch, (9 * GIB, 10 * GIB), (9 * GIB, 10 * GIB))
    worker._look_at_gpu()
    calls = {
        "load_model": worker.load_model,
        "_measure_gpu": worker._measure_gpu,
        "initialize": lambda: worker.initialize_from_config(core.kv_cache_config),
        "capture": worker.compile_or_warm_up_model,
    }
    if call == "capture":
        monkeypatch.setattr(worker, "device", CUDA)
        monkeypatch.setattr(worker.attention, "supports_cuda_graphs", True, raising=False)
    with monkeypatch.context() as patch:
        patch.setattr(broken, out_of_memory)
        with pytest.raises(ValueError, match=what) as error:
            calls[call]()
    assert "of free memory; lower max_num_batched_tokens" in one_sentence(error)
    assert not {"model", "model_runner"} & set(vars(worker))
    again = make_llm(tiny_qwen2, num_gpu_blocks_override=20)
    assert again.generate([[1, 2, 3]], GREEDY, use_tqdm=False)
