"""The Triton kernels under the interpreter: equal to the PyTorch ones."""

import os
import subprocess
import sys

import pytest
import torch
from cuda_stand_ins import CUDA, pretend_gpu
from helpers import examples
from hypothesis import given
from paged_batches import TOLERANCE, batches, make_batch

from minivllm import LLM, SamplingParams
from minivllm.attention import selector
from minivllm.attention.kv_cache import KVCache
from minivllm.exercises import ch10

pytest.importorskip("triton", reason="Triton is available for Linux only")

from minivllm.attention.kernels import cache, launch, online_softmax
from minivllm.attention.kernels.decode import paged_decode, paged_decode_torch
from minivllm.attention.kernels.launch import Card, launch_decode, launch_varlen
from minivllm.attention.kernels.recorder import record_loads
from minivllm.attention.kernels.varlen import varlen_attention_torch
from minivllm.attention.paged_triton import PagedTriton

CPU = torch.device("cpu")


def same(a, b, dtype=torch.float32):
    torch.testing.assert_close(a, b, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


# ---- attention -------------------------------------------------------------------------------


@pytest.mark.slow
@examples(12)
@given(batch=batches(longest=30, most_tokens=30))
def test_equal_to_the_reference(batch):
    batch.check(PagedTriton())


@pytest.mark.parametrize(
    ("seqs", "group"),
    [([(1, 64), (1, 65), (1, 129)], 3), ([(3, 70), (1, 64), (66, 66)], 3), ([(140, 150)], 1)],
    ids=["decodes", "mixed", "tiles of rows"],
)
@pytest.mark.parametrize("window", [None, 20])
def test_across_the_edges_of_tiles(seqs, group, window):
    """With the window, the last rows of a tile see nothing in the first tile of keys."""
    make_batch(seqs, block_size=7, kv_heads=1, group=group, window=window).check(PagedTriton())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "head_dim", "query_len", "tile"),
    [
        (torch.float32, 32, 2, 64), (torch.float32, 128, 2, 32), (torch.float32, 160, 2, 16),
        (torch.float32, 32, 10, 32), (torch.float32, 160, 10, 16),
        (torch.float16, 32, 10, 64), (torch.float16, 160, 10, 32),
    ],
    ids=lambda value: str(value).removeprefix("torch."),
)  # fmt: skip
def test_a_tile_that_ends_one_past_the_first_rows_position(dtype, head_dim, query_len, tile):
    """Every tile size: only here is a mask that is left out one position late a causal leak."""
    first = tile - 2  # the first row's position; the next one is the last of the first tile
    batch = make_batch([(query_len, first + query_len)], head_dim=head_dim, dtype=dtype)
    assert launch_varlen(batch.query, batch.key_cache, query_len)["BLOCK_N"] == tile
    batch.check(PagedTriton())


def test_programs_write_apart_and_read_no_key_after_their_last_token(monkeypatch):
    """On a GPU there is no order: two programs that write the same number would race."""
    from triton.runtime.interpreter import interpreter_builder

    written, store = [], interpreter_builder.create_masked_store

    def store_and_tell(pointers, value, mask, *args):
        written.extend(pointers.data[mask.data].tolist())
        return store(pointers, value, mask, *args)

    monkeypatch.setattr(interpreter_builder, "create_masked_store", store_and_tell)
    batch = make_batch([(11, 13)], block_size=1, kv_heads=1, group=12)  # 5 tokens in 64 rows
    with record_loads(batch.key_cache) as loads:
        batch.check(PagedTriton())
    assert len(written) == len(set(written)) == batch.query.numel()
    assert [len(load.blocks) for load in loads] == [13, 12, 7]


def test_the_longest_rows_have_smaller_tiles():
    batch = make_batch([(2, 40), (1, 33)], kv_heads=1, head_dim=160)
    for shape in (
        launch_decode(batch.query, batch.key_cache),
        launch_varlen(batch.query, batch.key_cache, max_query_len=2),
    ):
        assert (shape["HEAD_DIM_PADDED"], shape["BLOCK_N"], shape["BLOCK_M"]) == (256, 16, 16)
    batch.check(PagedTriton())
    shape = launch_varlen(batch.query, batch.key_cache, max_query_len=9)
    assert (shape["BLOCK_N"], shape["BLOCK_M"]) == (16, 32)


@pytest.mark.parametrize(
    ("card", "dtype", "head_dim", "rows", "tile", "stages"),
    [
        (Card((9, 0), 227 * 1024), torch.bfloat16, 128, 128, 64, 5),
        (Card((9, 0), 227 * 1024), torch.float32, 128, 64, 32, 5),
        (Card((8, 0), 163 * 1024), torch.float16, 128, 128, 64, 5),
        (Card((8, 6), 99 * 1024), torch.float16, 128, 128, 64, 3),
        (Card((8, 6), 99 * 1024), torch.float32, 128, 16, 16, 5),
        (Card((7, 5), 64 * 1024), torch.float16, 128, 16, 16, 5),
        (Card((7, 5), 64 * 1024), torch.float32, 256, 16, 16, 3),
        (Card((9, 0), 227 * 1024), torch.float16, 512, 16, 16, 5),
        (Card((8, 6), 99 * 1024), torch.float32, 512, 16, 16, 3),
    ],
)
def test_launches_are_chosen_by_what_the_card_has(
    monkeypatch, card, dtype, head_dim, rows, tile, stages
):
    monkeypatch.setattr(launch, "card_of", lambda device: card)
    query = torch.empty(300, 8, head_dim, dtype=dtype, device="meta")
    key_cache = torch.empty(40, 16, 4, head_dim, dtype=dtype, device="meta")
    shape = launch_varlen(query, key_cache, max_query_len=300)
    assert (shape["BLOCK_M"], shape["BLOCK_N"], shape["num_stages"]) == (rows, tile, stages)
    decode = launch_decode(query, key_cache)
    held = decode["BLOCK_N"] * decode["HEAD_DIM_PADDED"] * dtype.itemsize
    assert decode["num_stages"] == 3 or 6 * held <= card.shared_memory


def test_the_card_of_a_gpu_is_what_torch_says_of_it(monkeypatch):
    pretend_gpu(monkeypatch, "Tesla T4", (7, 5), shared_memory=65536)
    assert launch.card_of.__wrapped__(CUDA) == Card((7, 5), 65536)
    assert launch.card_of.__wrapped__(CPU) == launch.HOPPER


def test_many_sequences_of_all_lengths_and_few_programs_in_vain():
    """Tiles are numbered through all sequences, and a program looks for its own."""
    seqs = [(1, 9), (30, 33), (1, 1), (64, 64), (7, 7), (1, 40), (65, 80), (2, 2)]
    batch = make_batch(seqs, kv_heads=1, group=2)
    with record_loads(batch.key_cache) as loads:
        batch.check(PagedTriton())
    programs = {load.program for load in loads}
    tokens = 32  # of two heads each in 64 rows
    assert len(programs) == sum(-(-query_len // tokens) for query_len, _ in seqs)
    assert max(programs)[0] < sum(query_len for query_len, _ in seqs) // tokens + len(seqs)


def test_a_larger_score_may_come_in_every_tile():
    """Keys that point the query's way more and more: the running maximum moves each time."""
    batch = make_batch([(1, 200)], kv_heads=1, group=1)
    slots = batch.metadata.block_table[0].long().unsqueeze(1) * 4 + torch.arange(4)
    for position, slot in enumerate(slots.flatten()[:200]):
        batch.key_cache.flatten(0, 1)[slot] = batch.query[0, 0] * position / 20
    batch.check(PagedTriton())


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_kernels_and_their_pytorch_references(dtype):
    decodes = make_batch([(1, 9), (1, 70)], block_size=5, head_dim=48, dtype=dtype)
    tables = decodes.key_cache, decodes.value_cache, decodes.metadata.block_table
    args = decodes.query, *tables, decodes.metadata.seq_lens, decodes.scale
    for window in (online_softmax.NO_WINDOW, 6):
        same(paged_decode(*args, window), paged_decode_torch(*args, window, tile=16), dtype)
    mixed = make_batch([(9, 20), (1, 7), (4, 4)], block_size=3, dtype=dtype, window=5)
    expected = varlen_attention_torch(
        mixed.query, mixed.key_cache, mixed.value_cache, mixed.metadata.block_table,
        mixed.metadata.query_start_loc, mixed.metadata.seq_lens, mixed.scale,
        window=5, tokens=4, tile=8,
    )  # fmt: skip
    same(mixed.attend(PagedTriton()), expected, dtype)


# ---- moving K and V --------------------------------------------------------------------------


def test_writing_into_slots_takes_rows_that_lie_apart():
    fused = torch.randn(3, 3 * 2 * 40, generator=torch.Generator().manual_seed(0))
    key, value = (part.unflatten(1, (2, 40)) for part in fused.chunk(3, dim=1)[1:])
    slots = torch.tensor([7, 0, 11])
    written = []
    for write in (cache.write_slots, cache.write_slots_torch):
        caches = torch.full((2, 4, 3, 2, 40), torch.nan)
        write(key, value, *caches, slots)
        written.append(caches.flatten(1, 2))
    assert torch.equal(written[0].isnan(), written[1].isnan())
    assert torch.equal(written[0].nan_to_num(), written[1].nan_to_num())
    assert torch.equal(written[0][0, [7, 0, 11]], key)
    assert written[0][1, [1, 2, 3, 4, 5, 6, 8, 9, 10]].isnan().all()


def test_copying_blocks_and_a_block_that_is_both_source_and_target():
    storage = KVCache(3, 6, 5, 2, 48, torch.float32, CPU)
    storage.data.normal_(generator=torch.Generator().manual_seed(0))
    before = storage.data.clone()
    cache.copy_blocks(storage.data, [1, 2, 1], [4, 5, 3])
    cache.copy_blocks_torch(before, [1, 2, 1], [4, 5, 3])
    assert torch.equal(storage.data, before)
    PagedTriton().copy_blocks(storage, [1, 4], [4, 0])
    assert torch.equal(storage.data[:, :, [4, 0]], before[:, :, [1, 4]])


# ---- which program reads what ----------------------------------------------------------------


def test_each_program_reads_its_own_sequences_blocks():
    batch = make_batch([(1, 9), (1, 3), (1, 66)], block_size=4)
    with record_loads(batch.key_cache) as loads:
        batch.attend(PagedTriton())
    tables, seq_lens = batch.metadata.block_table.tolist(), [9, 3, 66]
    for seq in range(3):
        for kv_head in range(2):
            read = [b for load in loads if load.program == (seq, kv_head, 0) for b in load.blocks]
            used = -(-seq_lens[seq] // 4)
            assert read == tables[seq][:used]
    assert len(loads) == 2 * (1 + 1 + 2)  # one load per tile of 64 positions
    before = len(loads)
    batch.attend(PagedTriton())
    assert len(loads) == before


# ---- in the engine ---------------------------------------------------------------------------


@pytest.mark.slow
def test_the_engine_says_the_same_under_the_interpreter():
    said = {}
    for name in ("paged_torch", "paged_triton"):
        llm = LLM(
            attention_backend=name, dtype="float32", block_size=3, max_model_len=32,
            num_gpu_blocks_override=20, max_num_batched_tokens=4,
        )  # fmt: skip
        params = [
            SamplingParams(temperature=0, max_tokens=2),
            SamplingParams(n=2, temperature=0.8, seed=1, max_tokens=3, ignore_eos=True),
        ]
        outputs = llm.generate(["The capital of France is", "Hello"], params, use_tqdm=False)
        said[name] = [c.token_ids for output in outputs for c in output.outputs]
    assert said["paged_triton"] == said["paged_torch"]
    assert [len(token_ids) for token_ids in said["paged_triton"]] == [2, 3, 3]


# ---- errors ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_cpu_without_the_interpreter_is_told_what_to_do():
    code = (
        "import torch\n"
        "from minivllm.attention.selector import make_backend\n"
        "make_backend('paged_triton', torch.device('cpu'))"
    )
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.stderr.splitlines()[-1] == (
        "ValueError: attention_backend='paged_triton' on a CPU needs Triton's interpreter: set "
        "TRITON_INTERPRET=1 in the environment before triton is first imported, or use "
        "'paged_torch' or 'auto'."
    )


def test_an_interpreter_and_a_numpy_that_do_not_fit(monkeypatch):
    monkeypatch.setattr("triton.__version__", "3.6.0")
    monkeypatch.setattr("numpy.__version__", "2.4.1")
    with pytest.raises(ValueError, match=r"Triton 3\.6\.0 fails .* install triton>=3\.7\.1"):
        selector.make_backend("paged_triton", CPU)
    monkeypatch.setattr("numpy.__version__", "2.3.5")
    assert selector.make_backend("paged_triton", CPU).name == "paged_triton"


# ---- the notebook's exercises ----------------------------------------------------------------


def test_the_loads_by_hand_are_those_of_the_loop():
    """``attend_range_torch`` asks the table once per turn: the exercise's answer, from the code."""
    asked = []

    class Table(torch.Tensor):
        def __getitem__(self, index):
            blocks = torch.Tensor.__getitem__(self.as_subclass(torch.Tensor), index)
            asked.append(list(dict.fromkeys(blocks.tolist())))
            return blocks

    exercise = ch10.loads()
    table, block_size, seq_len, tile = exercise.given.values()
    caches = torch.zeros(2, 10, block_size, 1, 32)
    online_softmax.attend_range_torch(
        torch.zeros(1, 32), torch.tensor([seq_len - 1]), *caches,
        torch.tensor(table).as_subclass(Table), 0, 0, seq_len,
        online_softmax.NO_WINDOW, 1.0, tile,
    )  # fmt: skip
    assert asked == exercise.solve()


def test_what_a_tile_reads_is_what_the_kernel_reads():
    seqs, block_size, tokens = [(11, 13), (25, 40)], 3, 5  # 5 tokens of 12 heads in 64 rows
    batch = make_batch(seqs, block_size=block_size, kv_heads=1, group=12)
    with record_loads(batch.key_cache) as loads:
        batch.attend(PagedTriton())
    program_reads = ch10.program_reads(0).solve()
    tables = batch.metadata.block_table.tolist()
    num_tiles = 36 // tokens + 2
    first_tiles = [0, 11 // tokens + 1]
    for seq, (query_len, seq_len) in enumerate(seqs):
        for tile in range(3 if seq == 0 else 6):
            program = num_tiles - 1 - (first_tiles[seq] + tile)  # the last tiles first
            read = [b for load in loads if load.program[0] == program for b in load.blocks]
            case = block_size, query_len, seq_len, tile, tokens
            assert list(dict.fromkeys(read)) == program_reads(tables[seq], *case)
