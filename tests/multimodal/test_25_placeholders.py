"""Placeholders: one for each item in the text, many among the tokens."""

import numpy as np
import pytest
from helpers import examples
from hypothesis import given
from hypothesis import strategies as st

from minivllm.multimodal.placeholders import expand, with_own_placeholders
from minivllm.multimodal.processing import ProcessedItem

IDS = {"image": 90, "audio": 91}
OWN = {"image": "<image>", "audio": "<|AUDIO|>"}


def processed(replacement, is_embed=None):
    return ProcessedItem({"x": np.zeros(1)}, replacement, is_embed)


@examples(100)
@given(
    st.lists(
        st.integers(0, 9) | st.tuples(st.sampled_from(sorted(IDS)), st.integers(1, 5)), max_size=12
    )
)
def test_each_item_stands_where_its_placeholder_was(parts):
    ids, items, want = [], {"image": [], "audio": []}, []
    for part in parts:
        if isinstance(part, int):
            ids.append(part)
            want.append(part)
            continue
        modality, length = part
        ids.append(IDS[modality])
        replacement = [20 + length] + [IDS[modality]] * length
        items[modality].append(processed(replacement, (False,) + (True,) * length))
        want += replacement
    got, ranges = expand(ids, IDS, items)
    assert got == want
    assert [place.offset for *_, place in ranges] == sorted(p.offset for *_, p in ranges)
    assert len(ranges) == len(items["image"]) + len(items["audio"])
    for modality, number, place in ranges:
        item = items[modality][number]
        assert got[place.offset : place.end] == item.replacement
        assert place.num_embeds == item.num_embeds == len(item.replacement) - 1


def test_numbered_placeholders_stand_for_the_model_s_own():
    text = "<|image_1|>\n<|image_2|>\nWhat?<|audio_1|>"
    assert with_own_placeholders(text, OWN) == "<image>\n<image>\nWhat?<|AUDIO|>"
    assert with_own_placeholders(text, {}) == text, "a text model's text is left alone"
    assert with_own_placeholders("<|image_1|>", {"image": "<|image_1|>"}) == "<|image_1|>"
    assert with_own_placeholders("<|image_x|><|image_|><image_1>", OWN).count("<image>") == 0


@pytest.mark.parametrize("text", ["<|image_2|>", "<|image_2|><|image_1|>", "<|image_0|>",
                                  "<|image_1|><|image_1|>", "<|image_1|><|image_3|>"])  # fmt: skip
def test_numbers_come_in_the_order_of_the_items(text):
    with pytest.raises(ValueError, match=r"must come as 1, 2, ... in the order of the items, but"):
        with_own_placeholders(text, OWN)
