"""A peer's process: load another engine, and answer requests, timed.

Run by ``peers.py`` with the Python that has the engine, where minivllm need not be. Questions come
on stdin, a line of JSON each: first the options (``threads``, and arguments of vLLM's ``LLM``), and
then rounds of ``[token ids, tokens of the answer]``. Each answer is a line of JSON after the word
``PEER``. Greedy; the end-of-sequence token is ignored.
"""

import json
import os
import sys
import time

del sys.path[0]  # this folder: its modules have names that an engine may look for


def load_vllm(options):
    """Load vLLM in this process, as it is by default."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    from vllm import LLM, SamplingParams

    threads = options.pop("threads")
    llm = LLM(**options, skip_tokenizer_init=True)
    import torch

    torch.set_num_threads(threads)

    def answer(requests):
        params = [
            SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
            for _, count in requests
        ]
        prompts = [{"prompt_token_ids": ids} for ids, _ in requests]
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return [len(output.outputs[0].token_ids) for output in outputs]

    return answer, lambda rounds: llm.reset_prefix_cache()


def load_openvino(options):
    """Load OpenVINO GenAI's pipeline of batches, on a model that optimum-intel has converted.

    Its cache of prefixes cannot be emptied, so it is off: each prompt is computed.
    """
    import numpy as np
    import openvino
    import openvino_genai as genai

    precision = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}[options["dtype"]]
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 1
    scheduler.max_num_batched_tokens = options["max_num_batched_tokens"]
    scheduler.max_num_seqs = options["max_num_seqs"]
    properties = {
        "INFERENCE_NUM_THREADS": options["threads"],
        "INFERENCE_PRECISION_HINT": precision,
        "KV_CACHE_PRECISION": precision,
        "ENABLE_CPU_PINNING": False,
    }
    model = options["model"]
    pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties=properties)

    def config(count):
        made = genai.GenerationConfig()
        made.max_new_tokens = count
        made.ignore_eos = True
        made.do_sample = False
        made.apply_chat_template = False
        return made

    def answer(requests):
        prompts = [openvino.Tensor(np.array([ids], dtype=np.int64)) for ids, _ in requests]
        results = pipeline.generate(prompts, [config(count) for _, count in requests])
        return [len(result.m_generation_ids[0]) for result in results]

    return answer, lambda rounds: None


def load_llama(options):
    """Load llama.cpp by its C functions, on a GGUF file: prompts first, then a token a step.

    It shares no prefix by itself: each prompt is computed.
    """
    import ctypes

    import llama_cpp
    import numpy as np

    most = options["max_num_batched_tokens"]
    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_default_params()
    model = llama_cpp.llama_model_load_from_file(options["model"].encode(), params)
    if not model:
        raise ValueError(f"llama.cpp cannot read {options['model']}")
    vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    batch = llama_cpp.llama_batch_init(most, 0, 1)
    context = None

    def prepare(rounds):
        """Make a context as large as the largest round."""
        nonlocal context
        if context is not None:
            llama_cpp.llama_free(context)
        longest = max(len(ids) + count for requests in rounds for ids, count in requests)
        settings = llama_cpp.llama_context_default_params()
        settings.n_seq_max = max(map(len, rounds))
        settings.n_ctx = settings.n_seq_max * -(-longest // 256) * 256
        settings.n_batch = most
        settings.n_threads = settings.n_threads_batch = options["threads"]
        kind = 0 if options["dtype"] == "float32" else 1  # of K and V: float32, float16
        settings.type_k = settings.type_v = kind
        context = llama_cpp.llama_init_from_model(model, settings)

    def decode(rows):
        """Compute rows of (sequence, position, token, is last): the next token by sequence."""
        found = {}
        for begin in range(0, len(rows), most):
            some = rows[begin : begin + most]
            batch.n_tokens = len(some)
            for i, (sequence, position, token, is_last) in enumerate(some):
                batch.token[i] = token
                batch.pos[i] = position
                batch.n_seq_id[i] = 1
                batch.seq_id[i][0] = sequence
                batch.logits[i] = is_last
            if status := llama_cpp.llama_decode(context, batch):
                raise RuntimeError(f"llama_decode returned {status}")
            asked = [sequence for sequence, _, _, is_last in some if is_last]
            if asked:
                logits = llama_cpp.llama_get_logits(context)
                table = np.ctypeslib.as_array(
                    ctypes.cast(logits, ctypes.POINTER(ctypes.c_float)), (len(asked), vocab)
                )
                found |= dict(zip(asked, table.argmax(1).tolist(), strict=True))
        return found

    def answer(requests):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), False)
        counts = [0] * len(requests)
        rows = [
            (s, place, token, place == len(ids) - 1)
            for s, (ids, _) in enumerate(requests)
            for place, token in enumerate(ids)
        ]
        while rows:
            rows_after = []
            for s, token in decode(rows).items():
                ids, most_tokens = requests[s]
                counts[s] += 1
                if counts[s] < most_tokens:
                    rows_after.append((s, len(ids) + counts[s] - 1, token, True))
            rows = rows_after
        return counts

    return answer, prepare


LOADERS = {"vllm": load_vllm, "openvino": load_openvino, "llama": load_llama}


def tell(answer):
    """Print an answer."""
    print("PEER " + json.dumps(answer), flush=True)


def main():
    """Load, then answer until stdin ends."""
    try:
        answer, prepare = LOADERS[sys.argv[1]](json.loads(sys.stdin.readline()))
        tell({"loaded": True})
        for line in sys.stdin:
            rounds = json.loads(line)
            prepare(rounds)
            begin = time.perf_counter()
            num_tokens = [count for requests in rounds for count in answer(requests)]
            tell({"seconds": time.perf_counter() - begin, "num_tokens": num_tokens})
    except Exception as error:  # whatever an engine raises is one line there
        tell({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
