"""Scheduling with KV cache groups: decisions are vLLM's, and every block is accounted for."""

import json
import subprocess
import sys

import pytest

from minivllm.lab.sim.recordings import HYBRID_GOLDEN, load_recording
from minivllm.lab.sim.replay import replay


@pytest.mark.parametrize("path", HYBRID_GOLDEN, ids=lambda p: p.name.split(".")[0])
def test_decides_what_vllm_decides(path):
    """Hits, junctions, the block ids of every group, what is cached and what is free."""
    golden = load_recording(path)
    ours = replay({"config": golden["config"], "requests": golden["requests"]})
    for want, got in zip(golden["steps"], ours["steps"], strict=True):
        assert got == want
    assert ours["results"] == golden["results"]


def test_a_selection_is_shipped_with_all_exhibits():
    names = [path.name[:2] for path in HYBRID_GOLDEN]
    assert names[:8] == [f"e{i}" for i in range(8)]
    assert len(names) == 12


def test_the_command_replays_groups(tmp_path):
    golden, out = load_recording(HYBRID_GOLDEN[7]), tmp_path / "out.json"
    command = [sys.executable, "-m", "minivllm.sim", "replay", HYBRID_GOLDEN[7], "--out", out]
    subprocess.run(command, check=True, timeout=100)
    assert json.loads(out.read_text())["steps"] == golden["steps"]


def change(config, **values):
    groups = [dict(group) for group in config["groups"]]
    groups[1] |= values
    return {**config, "groups": groups}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda c: c | {"groups": []}, r"config\['groups'\] must be a list of at least one"),
        (lambda c: c | {"groups": {}}, r"config\['groups'\] must be a list of at least one"),
        (lambda c: c | {"groups": [4]}, r"config\['groups'\]\[0\] must be an object"),
        (
            lambda c: change(c, kind="mamba"),
            r"\[1\]\['kind'\] must be one of full, sliding, got 'mam",
        ),
        (lambda c: change(c, block_size=0), r"\[1\]\['block_size'\] must be an integer from 1"),
        (
            lambda c: change(c, sliding_window=None),
            r"\['sliding_window'\] must be an integer from 1",
        ),
        (lambda c: change(c, kind="full"), r"\['sliding_window'\] must be absent of a full group"),
        (lambda c: change(c, block_size=999_983), "of block sizes with a multiple up to 1000000"),
        (
            lambda c: c | {"prefix_cache_retention_interval": 6},
            r"prefix_cache_retention_interval \(6\) must be non-negative and a multiple of "
            r"scheduler_block_size \(4\)",
        ),
        (
            lambda c: c | {"prefix_cache_retention_interval": -4},
            r"prefix_cache_retention_interval \(-4\) must be non-negative",
        ),
        (lambda c: c | {"prefix_cache_retention_interval": "4"}, "must be an integer"),
        (
            lambda c: c | {"groups": c["groups"][:1], "prefix_cache_retention_interval": 8},
            "prefix_cache_retention_interval is set but this model has no sliding-window",
        ),
        (lambda c: c | {"mode": "kv", "kv_role": "kv_both"}, "groups have no connector"),
    ],
)
def test_groups_that_cannot_be_are_refused(changed, message):
    golden = load_recording(HYBRID_GOLDEN[0])
    with pytest.raises(ValueError, match=message):
        replay({"config": changed(golden["config"]), "requests": golden["requests"]})


def test_a_block_size_is_asked_for_where_there_are_no_groups():
    golden = load_recording(HYBRID_GOLDEN[0])
    config = {key: value for key, value in golden["config"].items() if key != "groups"}
    with pytest.raises(ValueError, match=r"config\['block_size'\] must be given"):
        replay({"config": config, "requests": golden["requests"]})
