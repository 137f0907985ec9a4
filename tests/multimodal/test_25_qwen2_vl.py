"""Qwen2-VL against transformers: sizes, videos, positions of three parts."""

import random

import multimodal_models as small
import numpy as np
import pytest
import torch

from minivllm.lab import oracle
from minivllm.models.loader import load_config, load_encoder, load_model
from minivllm.models.mrope import Grid, MRopePositions, get_rope

CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def checkpoint(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("qwen2-vl")
    theirs = small.make_qwen2_vl(tie_word_embeddings=request.param)
    theirs.save_pretrained(directory)
    return theirs, directory


def load(directory):
    config = load_config(directory)
    model = load_model(directory, config, torch.float32, CPU)
    return model, load_encoder(directory, config, torch.float32, CPU)


GRIDS = [(1, 4, 6), (1, 2, 2), (1, 8, 2), (1, 2, 12), (2, 4, 4), (3, 6, 8)]


@pytest.mark.bits
def test_logits_are_those_of_transformers(checkpoint):
    theirs, directory = checkpoint
    model, encoder = load(directory)
    rng = random.Random(5)
    for num_items in (0, 1, 1, 2, 3):
        parts = rng.choices(range(90), k=rng.randint(1, 6))
        for grid in rng.sample(GRIDS, num_items):
            parts += [grid, *rng.choices(range(90), k=rng.randint(1, 5))]
        token_ids, features = small.with_grids(parts)
        given = oracle.encode(encoder, features, CPU)
        got = oracle.next_token_logits(model, token_ids, given)
        want = small.their_grid_logits(theirs, token_ids, features)
        torch.testing.assert_close(got, want, atol=1e-4, rtol=0)


def test_embeddings_of_a_batch_are_those_of_each_alone(checkpoint):
    """Pictures of several sizes and a video; each frame sees itself alone."""
    _, directory = checkpoint
    _, encoder = load(directory)
    _, features = small.with_grids([*GRIDS, (2, 4, 4)])
    items = [feature.data for feature in features]
    backend = oracle.make_backend("paged_torch", CPU)
    together = encoder.encode("image", items, backend)
    for item, feature, found in zip(items, features, together, strict=True):
        (alone,) = encoder.encode("image", [item], backend)
        torch.testing.assert_close(found, alone, atol=1e-4, rtol=0)
        assert len(found) == feature.mm_position.num_embeds


def test_positions_of_a_text_a_picture_and_a_text():
    positions = MRopePositions(11, [Grid(offset=2, frames=1, rows=2, columns=3)])
    assert positions.axes(0, 13).tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 7, 8, 9],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6, 7, 8, 9],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 7, 8, 9],
    ]
    assert positions.shift == -3
    assert positions.of(9, 4) == [6, 7, 8, 9]
    assert positions.of(12, 2) == [9, 10]


def test_what_follows_a_long_video_goes_on_behind_its_time():
    """As in vLLM: behind the largest of the three, be it the time."""
    positions = MRopePositions(10, [Grid(offset=1, frames=4, rows=1, columns=2)])
    assert positions.axes(9, 2).tolist() == [[5, 6]] * 3


@pytest.mark.parametrize("seed", range(5))
def test_positions_are_those_of_transformers(seed, checkpoint):
    theirs, directory = checkpoint
    _, encoder = load(directory)
    rng = random.Random(seed)
    parts = [5]
    for grid in rng.choices(GRIDS, k=3):
        parts += [grid, *rng.choices(range(90), k=rng.randint(1, 4))]
    token_ids, features = small.with_grids(parts)
    grids = {"image": [], "video": []}
    for feature in features:
        grids[feature.modality].append(feature.data["grid_thw"])
    ids = torch.tensor([token_ids])
    tensors = {
        f"{kind}_grid_thw": torch.from_numpy(np.stack(found))
        for kind, found in grids.items()
        if found
    }
    kinds = (ids == small.PLACEHOLDER) + 2 * (ids == small.VIDEO)
    want, shift = theirs.model.get_rope_index(ids, kinds, **tensors)
    found = encoder.positions(features, len(token_ids))
    assert found.axes(0, len(token_ids)).tolist() == want[:, 0].tolist()
    assert found.shift == int(shift)
    for start in range(0, len(token_ids), 7):  # a chunk has what the whole has there
        piece = found.axes(start, 7)
        assert piece.tolist() == found.axes(0, len(token_ids) + 7)[:, start : start + 7].tolist()


def test_one_table_for_the_layers():
    """Three equal rows of positions make the table of one row."""
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
    embedding = get_rope(8, rope, 50)
    plain = torch.tensor([3, 7, 20])
    assert torch.equal(embedding(plain), embedding(plain.expand(3, -1)))
    axes = torch.tensor([[1], [2], [3]])
    table = embedding(axes)
    each = [embedding(torch.tensor([n])) for n in (1, 2, 3)]
    for number, part in enumerate((0, 1, 2, 2, 0, 1, 2, 2)):
        assert torch.equal(table[..., number], each[part][..., number])


@pytest.mark.parametrize("section", [None, [1, 1], [1, 1, 3], ["a", 1, 2]])
def test_sections_that_are_no_half_head_are_refused(section, tmp_path):
    theirs = small.make_qwen2_vl()
    theirs.config.architectures = [type(theirs).__name__]
    theirs.config.text_config.rope_parameters["mrope_section"] = section
    theirs.config.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"mrope_section in config.json must be three integers"):
        load_config(tmp_path)


def test_the_largest_item_fills_the_room(checkpoint):
    _, directory = checkpoint
    _, encoder = load(directory)
    for room in (1, 2, 7, 100, 130):
        _, item, length = encoder.largest_item(room)
        (found,) = encoder.encode("image", [item], oracle.make_backend("paged_torch", CPU))
        assert len(found) == length <= room
        assert length > 0.85 * room or room < 10
