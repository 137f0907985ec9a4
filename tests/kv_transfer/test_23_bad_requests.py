"""Requests that ask a connector for what cannot be: refused alone, and no file is named by them."""

import pytest
from helpers import make_llm
from two_engines import LIMITS, asking, engine, greedy, ids_of, prefill

NAME = "ab" * 32
DEEP: list = []
for _ in range(2000):
    DEEP = [DEEP]


def test_no_parameter_names_a_file_or_disturbs_another(tiny_qwen2, tmp_path):
    """Wrong types, huge values and paths: a short sentence each, and all others go on."""
    shared = tmp_path / "shared"
    llm = engine(tiny_qwen2, shared, "kv_both")
    (tmp_path / "secret").mkdir()
    prompt = {"prompt_token_ids": [1, 2, 3]}
    llm.llm_engine.add_request("other", {"prompt_token_ids": [6] * 9}, greedy(8))
    llm.llm_engine.step()
    names = ["../secret", str(tmp_path / "secret"), ".", "..", "", "a" * 10**6, "\0", "\ud800",
             NAME.upper(), ["x"] * 10**5, {"a": 1}, None, True]  # fmt: skip
    asked = [{"do_remote_prefill": True, "remote_name": name} for name in names]
    flags = [1, 0, "true", 10**400, float("nan"), "x" * 10**6, DEEP, {}, [True]]
    asked += [
        {flag: value} for flag in ("do_remote_prefill", "do_remote_decode") for value in flags
    ]
    for params in asked:
        with pytest.raises(ValueError, match="kv_transfer_params") as error:
            llm.llm_engine.add_request("bad", prompt, asking(greedy(), params))
        assert len(str(error.value)) < 500
        assert "\n" not in str(error.value)
        llm.llm_engine.check_integrity()
    # names that mean nothing here are others' business, as in vLLM
    known = {"remote_block_ids": [10**30], "remote_host": "../..", "do_remote_prefill": None}
    outputs = {}
    llm.llm_engine.add_request(
        "good", prompt, asking(greedy(1), known | {"do_remote_decode": True})
    )
    while llm.llm_engine.has_unfinished_requests():
        outputs |= {output.request_id: output for output in llm.llm_engine.step()}
    alone = make_llm(tiny_qwen2, **LIMITS)
    want = alone.generate([{"prompt_token_ids": [6] * 9}], greedy(8), use_tqdm=False)
    assert ids_of([outputs["other"]]) == ids_of(want)
    (folder,) = shared.iterdir()
    assert folder.name == outputs["good"].kv_transfer_params["remote_name"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret", "shared"]


def test_an_id_that_is_used_again_asks_for_nothing(tiny_qwen2, tmp_path):
    """A request that was aborted on its way leaves nothing to the next one of its name."""
    llm = engine(tiny_qwen2, tmp_path, "kv_both")
    (asked,) = prefill(llm, [[5] * 13])
    llm.reset_prefix_cache()
    llm_engine = llm.llm_engine
    llm_engine.add_request("a", {"prompt_token_ids": [5] * 13}, asking(greedy(), asked))
    while not llm_engine.scheduler.remote_kvs.waiting:
        llm_engine.step()
    llm_engine.abort_request("a")
    llm_engine.end_transfers()
    llm_engine.add_request("a", {"prompt_token_ids": [7] * 20}, greedy())
    outputs = []
    while llm_engine.has_unfinished_requests():
        outputs = llm_engine.step() or outputs
    alone = make_llm(tiny_qwen2, **LIMITS)
    want = alone.generate([{"prompt_token_ids": [7] * 20}], greedy(), use_tqdm=False)
    assert ids_of(outputs) == ids_of(want)
    assert outputs[0].num_cached_tokens == 0
