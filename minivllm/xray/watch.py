"""Hooks around the methods of vLLM's block managers that change tables and the prefix cache.

Each lets vLLM decide first, but where a block's id would be gone then. It knows nothing of vLLM.
"""

from __future__ import annotations

from typing import Any

from minivllm.xray.recorder import Recorder


def group_of(group: int) -> tuple[int, ...]:
    """End of a row about blocks: the KV cache group; nothing for group 0."""
    return (group,) if group else ()


def watch_manager(manager: Any, recorder: Recorder, group: int) -> None:
    """Put hooks around a manager of vLLM's that has the block tables of one KV cache group."""
    tables = manager.req_to_blocks
    allocate = manager.allocate_new_blocks
    share = manager.add_local_computed_blocks
    free = manager.free
    end = group_of(group)

    def allocate_new_blocks(request_id, *args):  # vLLM names none of them
        blocks = allocate(request_id, *args)
        if blocks:
            with recorder:
                ids = [block.block_id for block in blocks]
                recorder.rows.append(("BlocksAllocated", request_id, ids, *end))
        return blocks

    def add_local_computed_blocks(request_id, new_computed_blocks, *args, **kwargs):
        share(request_id, new_computed_blocks, *args, **kwargs)
        with recorder:
            if tables[request_id]:
                ids = [block.block_id for block in tables[request_id]]
                recorder.rows.append(("BlocksShared", request_id, ids, *end))

    def free_(request_id):
        blocks = tables.get(request_id, ())
        ids = [block.block_id for block in blocks if not block.is_null]
        has_table = bool(blocks)
        free(request_id)
        if has_table:
            recorder.rows.append(("BlocksFreed", request_id, ids, *end))

    manager.allocate_new_blocks = allocate_new_blocks
    manager.add_local_computed_blocks = add_local_computed_blocks
    manager.free = free_
    if hasattr(manager, "sliding_window"):
        _watch_window(manager, recorder, end)


def _watch_window(manager: Any, recorder: Recorder, end: tuple[int, ...]) -> None:
    """Put a hook around the method with which a sliding window leaves blocks behind."""
    tables = manager.req_to_blocks
    remove = manager.remove_skipped_blocks

    def remove_skipped_blocks(request_id, processed_computed_tokens, *args, **kwargs):
        ids: list[int] = []
        with recorder:
            blocks = tables.get(request_id, ())
            num_skipped = manager.get_num_skipped_tokens(processed_computed_tokens)
            for index in reversed(range(min(num_skipped // manager.block_size, len(blocks)))):
                if blocks[index].is_null:  # so are all before it
                    break
                ids.append(blocks[index].block_id)
        remove(request_id, processed_computed_tokens, *args, **kwargs)
        if ids:
            recorder.rows.append(("BlocksSkipped", request_id, ids[::-1], *end))

    manager.remove_skipped_blocks = remove_skipped_blocks


def watch_pool(pool: Any, recorder: Recorder) -> None:
    """Put a hook around the method with which vLLM's pool registers full blocks."""
    cache = pool.cache_full_blocks

    def cache_full_blocks(
        request, blocks, num_cached_blocks, num_full_blocks, block_size, kv_cache_group_id,
        **options,
    ):  # fmt: skip
        cache(
            request=request,
            blocks=blocks,
            num_cached_blocks=num_cached_blocks,
            num_full_blocks=num_full_blocks,
            block_size=block_size,
            kv_cache_group_id=kv_cache_group_id,
            **options,
        )
        with recorder:
            new = [b for b in blocks[num_cached_blocks:num_full_blocks] if b.block_hash is not None]
            ids = [b.block_id for b in new]
            hashes = [b.block_hash[:8].hex() for b in new]
            if new:
                end = group_of(kv_cache_group_id)
                recorder.rows.append(("BlocksCached", request.request_id, ids, hashes, *end))

    pool.cache_full_blocks = cache_full_blocks
