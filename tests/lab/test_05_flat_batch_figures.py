"""Padding, flat batch and mask of a step, and the tensors that a runner makes of it."""

import pytest
import torch

from minivllm import EngineArgs, LLMEngine, SamplingParams
from minivllm.attention.metadata import AttentionMetadata
from minivllm.attention.reference import Reference
from minivllm.exercises import make_request
from minivllm.sim import dry_run
from minivllm.viz import padded_batch, step_mask, step_tensors


def beside_decodes(prompt, num_decodes):
    """A run whose step 1 computes a prompt beside so many decodes."""
    decodes = [make_request(f"D{i}", 2, 5) for i in range(num_decodes)]
    return dry_run([*decodes, make_request("P", prompt, 2, 1)], num_blocks=40, block_size=4)


@pytest.mark.parametrize(("prompt", "num_decodes"), [(8, 2), (1, 3), (5, 1), (9, 7)])
def test_a_rectangle_needs_n_less_1_times_b_less_1_pads(prompt, num_decodes):
    figure = padded_batch(beside_decodes(prompt, num_decodes), step=1)
    pads = (prompt - 1) * num_decodes
    *_, flat = rows = figure.text.splitlines()[3:]
    assert f"{pads} pad{'s' * (pads != 1)} · flat: {prompt + num_decodes} places" in figure.text
    assert sum(row.split().count("-") for row in rows) == pads
    assert len(flat.split()) - 1 == prompt + num_decodes


def test_the_mask_is_what_attention_reads():
    """A key is seen if another value of it changes the row: asked of the reference."""
    trace = beside_decodes(3, 2)  # step 1: two decodes of three keys, and a prompt of three
    drawn = [line.split() for line in step_mask(trace, step=1).text.splitlines()[4:9]]
    metadata = AttentionMetadata.build(
        [1, 1, 3], [3, 3, 3], [[1], [2], [3]], [6, 10, 12, 13, 14], torch.device("cpu")
    )
    query, keys = torch.ones(5, 1, 4), torch.zeros(4, 4, 1, 4)
    slots = [4 * block + slot for block in (1, 2, 3) for slot in range(3)]
    for column, slot in enumerate(slots):
        values = torch.zeros(4, 4, 1, 4)
        values.flatten(0, 1)[slot] = 1
        out = Reference().attend(query, keys, values, metadata, 1.0)
        assert [row[1 + column] != "." for row in drawn] == (out[:, 0, 0] > 0).tolist()
    assert [row[0] for row in drawn] == ["A2", "B2", "C0", "C1", "C2"]
    assert [row.count("o") for row in drawn] == [2, 2, 0, 0, 0], "cached keys"


@pytest.mark.parametrize("draw", [padded_batch, step_mask])
def test_a_step_that_computes_nothing_or_too_much_is_refused(draw):
    with pytest.raises(ValueError, match="step must be a step that computes something, got 99"):
        draw(beside_decodes(3, 2), step=99)
    with pytest.raises(ValueError, match=r"step must be a step .*at most 26"):
        draw(dry_run([(50, 2)], num_blocks=40, block_size=4), step=0)


def test_the_tensors_of_a_step_are_those_of_the_runner():
    engine = LLMEngine(EngineArgs(block_size=4, max_model_len=32, num_gpu_blocks_override=9))
    for name, num in (("A", 5), ("B", 3)):
        params = SamplingParams(temperature=0, max_tokens=3)
        engine.add_request(name, {"prompt_token_ids": [9] * num}, params)
    plan = engine.scheduler.schedule()
    engine.model_runner.execute_model(plan)
    figure = step_tensors({"one": engine.model_runner.prepare_inputs(plan)}, block_size=4)
    lines = [line.split() for line in figure.text.splitlines()]
    assert ["positions", *"01234012"] in lines
    assert ["slot_mapping", *map(str, (4, 5, 6, 7, 8, 12, 13, 14))] in lines
    assert lines[-2:] == [["block_table", "1", "2"], ["3", "0"]]
    with pytest.raises(ValueError, match="steps must be at least one step"):
        step_tensors({}, block_size=4)
