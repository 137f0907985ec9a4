"""MultiModalPreprocessor: fetches, checks and processes a prompt's items, and expands its tokens.

It runs beside the event loop, in any number of threads. What it makes goes to the engine with the
request, once. (vLLM: ``BaseMultiModalProcessor`` in vllm/multimodal/processing/processor.py)
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from minivllm.config.multimodal import (
    MultiModalConfig,
    check_media_io_kwargs,
    check_processor_kwargs,
)
from minivllm.multimodal.errors import MediaError
from minivllm.multimodal.hasher import hash_item
from minivllm.multimodal.inputs import MultiModalFeatureSpec
from minivllm.multimodal.media import MediaConnector, MediaUrl
from minivllm.multimodal.parse import items_of, parse_item, uuids_of
from minivllm.multimodal.placeholders import check_matches, count_placeholders, expand
from minivllm.multimodal.processing import MultiModalProcessor, ProcessedItem
from minivllm.multimodal.processor_cache import ProcessorCache

_MOST_UUIDS = 10_000  # whose items' sizes are remembered


class MultiModalPreprocessor:
    """All that a prompt's items need before the engine has them.

    Args:
        model: its name, a part of every hash.
        processor: the model's own.
        config: limits, sources and options.
        connector: reads items that have a URL; None: one with this config.
    """

    def __init__(
        self,
        model: str,
        processor: MultiModalProcessor,
        config: MultiModalConfig,
        connector: MediaConnector | None = None,
    ):
        self.model = model
        self.processor = processor
        self.config = config
        self.connector = connector or MediaConnector(config)
        self.cache = ProcessorCache(int(config.mm_processor_cache_gb * 2**30))
        self._sizes: OrderedDict[tuple[str, str], Any] = OrderedDict()  # of items with a uuid
        self._lock = threading.Lock()

    @property
    def placeholders(self) -> Mapping[str, str]:
        """The text of a placeholder, by modality."""
        return self.processor.placeholders

    def process(
        self, token_ids: list[int], prompt: Mapping[str, Any]
    ) -> tuple[list[int], list[MultiModalFeatureSpec]]:
        """Process the items of a prompt.

        Args:
            token_ids: of its text, with one placeholder for each item.
            prompt: its ``multi_modal_data``, ``multi_modal_uuids``, ``mm_processor_kwargs`` and
                ``media_io_kwargs``, each of them perhaps missing. An item may be a ``MediaUrl``.

        Returns:
            The prompt with all placeholders of each item, and its items in the prompt's order.

        Raises:
            ValueError: naming what is wrong, before anything is fetched if that is possible.
        """
        # 1. Check all that needs no item.
        items = items_of(prompt.get("multi_modal_data"), prompt.get("multi_modal_uuids"))
        uuids = uuids_of(prompt.get("multi_modal_uuids"), items)
        options = self.config.mm_processor_kwargs | check_processor_kwargs(
            prompt.get("mm_processor_kwargs")
        )
        io_options = check_media_io_kwargs(prompt.get("media_io_kwargs"))
        self._check_limits(items)
        counts = count_placeholders(token_ids, self.processor.placeholder_ids)
        num_items = {modality: len(given) for modality, given in items.items()}
        check_matches(counts, num_items, self.placeholders)
        # 2. Each item: its data, its identity, its tokens.
        hashes: dict[str, list[str]] = {}
        processed: dict[str, list[ProcessedItem]] = {}
        for modality, given in items.items():
            of_modality = []
            hashes[modality] = []
            for index, (item, uuid) in enumerate(zip(given, uuids[modality], strict=True)):
                try:
                    if isinstance(item, MediaUrl):
                        item = self.connector.fetch(modality, item, io_options)
                    key, one = self._process_item(modality, item, uuid, options)
                except ValueError as error:
                    raise _of_item(error, f"{modality} {index} of {len(given)}") from error
                hashes[modality].append(key)
                of_modality.append(one)
            processed[modality] = of_modality
        # 3. Their places in the prompt.
        expanded, ranges = expand(token_ids, self.processor.placeholder_ids, processed)
        features = [
            MultiModalFeatureSpec(
                data=processed[modality][number].data,
                modality=modality,
                identifier=hashes[modality][number],
                mm_position=place,
                mm_hash=hashes[modality][number],
            )
            for modality, number, place in ranges
        ]
        return expanded, features

    def _check_limits(self, items: dict[str, list]) -> None:
        """Raise ``ValueError`` for a modality that the model lacks, or too many items."""
        for modality, given in items.items():
            if modality not in self.placeholders:
                taken = ", ".join(self.placeholders)
                raise ValueError(f"this model takes no {modality}; it takes {taken}")
            limit = self.config.get_limit_per_prompt(modality)
            if len(given) > limit:  # vLLM's sentence
                raise ValueError(
                    f"At most {limit} {modality}(s) may be provided in one prompt. "
                    "Set `--limit-mm-per-prompt` to increase this limit."
                )

    def _process_item(
        self, modality: str, item: Any, uuid: str | None, options: dict[str, Any]
    ) -> tuple[str, ProcessedItem]:
        """The hash of an item, and what its processor makes of it."""
        if item is not None:
            item = parse_item(modality, item)
        if uuid is None:
            key = hash_item(self.model, modality, item, options)
        else:
            self._check_uuid(modality, uuid, item)
            key = hash_item(self.model, modality, uuid, options) if options else uuid
        found = self.cache.get(key)
        if found is None:
            if item is None:
                raise ValueError(f"there is no item of uuid {uuid!r} any more; send its data again")
            found = self._run(modality, item, options)
            self.cache.put(key, found)
        return key, found

    def _run(self, modality: str, item: Any, options: dict[str, Any]) -> ProcessedItem:
        try:
            return self.processor.process(modality, item, **options)
        except ValueError:
            raise
        except Exception as error:  # an option of the wrong type, and what a processor dislikes
            raise ValueError(f"the model's processor cannot read it: {error}") from error

    def _check_uuid(self, modality: str, uuid: str, item: Any) -> None:
        """Remember the size of a uuid's item. Raises ``ValueError`` if it had another one."""
        if item is None:
            return
        size = _size(item)
        with self._lock:
            known = self._sizes.setdefault((modality, uuid), size)
            if len(self._sizes) > _MOST_UUIDS:
                self._sizes.popitem(last=False)
        if known != size:
            raise ValueError(
                f"uuid {uuid!r} is that of an item of size {known}, but this one has {size}; "
                "another item needs another uuid"
            )


def _size(item: Any) -> tuple[int, ...]:
    """Width and height of a picture, the shape of an array, of others each of their parts."""
    if isinstance(item, (list, tuple)):
        return tuple(side for part in item for side in _size(part))
    size = getattr(item, "shape", getattr(item, "size", ()))
    return tuple(size) if isinstance(size, tuple) else ()


def _of_item(error: ValueError, name: str) -> ValueError:
    """The error of an item, with its name."""
    if isinstance(error, MediaError):
        return MediaError(f"{name}: {error}", error.status)
    return ValueError(f"{name}: {error}")
