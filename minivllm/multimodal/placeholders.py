"""Placeholders of a prompt: one for each item in its text, many among its tokens.

(vLLM: ``PromptReplacement`` in vllm/multimodal/processing/processor.py)
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from minivllm.multimodal.inputs import PlaceholderRange
from minivllm.multimodal.processing import ProcessedItem

_NUMBERED = re.compile(r"<\|(image|audio|video)_(\d+)\|>")


def with_own_placeholders(
    text: str, placeholders: Mapping[str, str], seen: Counter[str] | None = None
) -> str:
    """A text with the model's own placeholders in place of numbered ones, ``<|image_1|>``.

    Args:
        text: of a prompt, or a piece of it.
        placeholders: the model's, by modality; of a modality without one nothing changes.
        seen: how many of each modality earlier pieces had; it goes on counting.

    Raises:
        ValueError: unless the numbers of a modality are 1, 2, ... in this order.
    """
    seen = Counter() if seen is None else seen

    def own(match: re.Match) -> str:
        modality = match[1]
        if modality not in placeholders or match[0] == placeholders[modality]:
            return match[0]
        seen[modality] += 1
        if int(match[2]) != seen[modality]:
            raise ValueError(
                f"numbered placeholders must come as 1, 2, ... in the order of the items, but "
                f"{match[0]} is number {seen[modality]} of its kind"
            )
        return placeholders[modality]

    return _NUMBERED.sub(own, text)


def count_placeholders(token_ids: list[int], placeholder_ids: Mapping[str, int]) -> dict[str, int]:
    """Number of placeholders of each modality."""
    return {modality: token_ids.count(one) for modality, one in placeholder_ids.items()}


def check_matches(
    counts: Mapping[str, int], num_items: Mapping[str, int], placeholders: Mapping[str, str]
) -> None:
    """Check that a prompt has a placeholder for each item.

    Raises:
        ValueError: with both numbers.
    """
    for modality, count in counts.items():
        given = num_items.get(modality, 0)
        if count != given:
            raise ValueError(
                f"the prompt has {count} placeholder{'s' * (count != 1)} {placeholders[modality]} "
                f"for {given} {modality}{'s' * (given != 1)}; it needs one for each"
            )


def expand(
    token_ids: list[int],
    placeholder_ids: Mapping[str, int],
    items: Mapping[str, list[ProcessedItem]],
) -> tuple[list[int], list[tuple[str, int, PlaceholderRange]]]:
    """Put the tokens of each item in place of its placeholder.

    Args:
        token_ids: of a prompt with one placeholder for each item.
        placeholder_ids: the placeholder's token, by modality.
        items: of each modality, in order.

    Returns:
        The longer prompt; and of each item in the prompt's order its modality, its number in this
        modality, and its range.
    """
    modality_of = {placeholder_ids[modality]: modality for modality in items}
    expanded: list[int] = []
    ranges = []
    seen: Counter[str] = Counter()
    for token_id in token_ids:
        modality = modality_of.get(token_id)
        if modality is None:
            expanded.append(token_id)
            continue
        number = seen[modality]
        item = items[modality][number]
        seen[modality] += 1
        place = PlaceholderRange(len(expanded), len(item.replacement), item.is_embed)
        ranges.append((modality, number, place))
        expanded += item.replacement
    return expanded, ranges
