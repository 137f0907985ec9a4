"""Architecture: which object owns which, from LLM to the KV cache. Every class here exists."""

from __future__ import annotations

from canvas import BLUE, GREEN, GREY, ORANGE, PINK, PLAIN, RED, Canvas

from minivllm.lab.viz.draw.figure import Figure

# What the picture names, and where it is: a test looks each of them up.
CLASSES = {
    "LLM": "minivllm.entrypoints.llm",
    "AsyncLLM": "minivllm.engine.async_llm",
    "LLMEngine": "minivllm.engine.llm_engine",
    "InputProcessor": "minivllm.engine.input_processor",
    "OutputProcessor": "minivllm.engine.output_processor",
    "EngineCore": "minivllm.engine.core",
    "Scheduler": "minivllm.scheduling.scheduler",
    "SchedulingPolicy": "minivllm.scheduling.policies",
    "SchedulerOutput": "minivllm.scheduling.output",
    "ModelRunnerOutput": "minivllm.scheduling.output",
    "KVCacheManager": "minivllm.kv.manager",
    "BlockPool": "minivllm.kv.block_pool",
    "BlockTable": "minivllm.kv.block_table",
    "PrefixCache": "minivllm.kv.prefix_cache",
    "SwapSpace": "minivllm.kv.swap_space",
    "Executor": "minivllm.executor.abstract",
    "Worker": "minivllm.worker.worker",
    "ModelRunner": "minivllm.worker.model_runner",
    "InputBatch": "minivllm.worker.input_batch",
    "DecoderModel": "minivllm.models.decoder",
    "DecoderLayer": "minivllm.models.decoder",
    "Attention": "minivllm.models.decoder",
    "AttentionBackend": "minivllm.attention.backend",
    "KVCache": "minivllm.attention.kv_cache",
    "Sampler": "minivllm.sampling.sampler",
    "Group": "minivllm.distributed.group",
    "Trace": "minivllm.trace",
}
ALT = (
    "Architecture: LLM owns LLMEngine and calls its step. LLMEngine owns InputProcessor, "
    "OutputProcessor and EngineCore. AsyncLLM, which the server asks, owns the same three, but its "
    "EngineCore runs by itself, in a thread or a process of its own. EngineCore handles no text; "
    "it owns a Scheduler and an Executor, which makes a Worker for each rank. Scheduler owns "
    "KVCacheManager, which owns BlockPool, a BlockTable per sequence, PrefixCache and SwapSpace. "
    "Worker owns ModelRunner, which owns InputBatch, the model and Sampler; the model's Attention "
    "layers read KVCache through an AttentionBackend. Where there are several ranks, each has all "
    "of this for its part of the model, and its layers exchange with the others' through a Group. "
    "Only SchedulerOutput and ModelRunnerOutput cross between the two sides."
)


def draw() -> Figure:
    page = Canvas(
        "Who owns whom", "An arrow leads from an object to what it makes or holds. Only plans and "
        "tokens cross the middle.", ALT, 960, 806,
    )  # fmt: skip
    llm = page.box(
        360, 72, 240, 46, "LLM", ("prompts in, texts out, in prompt order",), colour=BLUE
    )
    engine = page.box(
        330, 138, 300, 46, "LLMEngine", ("step(): the core's, then text",), colour=BLUE
    )
    core = page.box(
        360, 204, 240, 46, "EngineCore", ("step(): schedule, execute, update",), colour=BLUE
    )
    processor = page.box(
        60, 158, 196, 46, "InputProcessor", ("text and parameters → Request",), colour=BLUE
    )
    output_processor = page.box(
        704, 158, 196, 46, "OutputProcessor", ("token ids → text that is certain",), colour=BLUE
    )
    async_llm = page.box(
        704, 72, 196, 62, "AsyncLLM",
        ("for the server: its core runs", "in a thread or a process"), colour=BLUE,
    )  # fmt: skip
    page.arrow([llm.bottom, engine.top])
    page.arrow([engine.bottom, core.top])
    page.arrow([async_llm.left, (648, 103), (648, 218), core.at("right", 14 / 46)])
    page.arrow([async_llm.bottom, output_processor.top])
    page.arrow([engine.left, (292, 161), (292, 181), processor.right])
    page.arrow([engine.right, (668, 161), (668, 181), output_processor.left])

    executor = page.box(704, 212, 196, 42, "Executor", ("a Worker for each rank",), colour=BLUE)

    page.region(24, 270, 440, 404, "scheduling/, kv/", "pure Python: only numbers")
    page.region(504, 278, 440, 404)  # another rank
    page.region(496, 270, 440, 404, "torch: tensors", "worker/, models/, attention/, sampling/")
    scheduler = page.box(
        52, 306, 216, 62, "Scheduler", ("what runs next, under", "one token budget?"), colour=GREEN
    )
    policy = page.box(
        296,
        306,
        156,
        62,
        "SchedulingPolicy",
        ("which comes first,", "which gives way?"),
        colour=GREEN,
    )
    manager = page.box(
        100, 428, 288, 66, "KVCacheManager",
        ("is there room, and which blocks?", "all ask it for blocks"), colour=ORANGE,
    )  # fmt: skip
    pool = page.box(40, 562, 184, 46, "BlockPool", ("free blocks, ref counts",), colour=ORANGE)
    table = page.box(264, 562, 184, 46, "BlockTable", ("one per sequence",), colour=ORANGE)
    cache = page.box(40, 618, 184, 46, "PrefixCache", ("full blocks by hash",), colour=ORANGE)
    swap = page.box(264, 618, 184, 46, "SwapSpace", ("blocks on the host",), colour=ORANGE)
    page.arrow([scheduler.right, policy.left])
    page.arrow([scheduler.at("bottom", 0.6), (scheduler.x + 0.6 * 216, 428)])
    for part in (pool, table):
        page.arrow([manager.at("bottom", 0.5), (244, 528), (part.top[0], 528), part.top])
    for part, x in ((cache, 244), (swap, 244)):
        y = part.left[1]
        page.arrow([(244, 528), (x, y), (part.right if part is cache else part.left)])

    worker = page.box(
        524,
        306,
        180,
        62,
        "Worker",
        ("a rank: loads its part of", "the model, sizes the cache"),
        colour=RED,
    )
    runner = page.box(
        736, 306, 184, 62, "ModelRunner", ("plan → tensors", "→ logits → tokens"), colour=RED
    )
    batch = page.box(736, 428, 184, 52, "InputBatch", ("what it knows of each",), colour=RED)
    model = page.box(512, 428, 200, 52, "DecoderModel", ("a usual transformer",), colour=PINK)
    sampler = page.box(736, 500, 184, 46, "Sampler", ("logits → a token",), colour=RED)
    layer = page.box(512, 494, 200, 46, "DecoderLayer", ("attention, MLP, norms",), colour=PINK)
    attention = page.box(
        512, 558, 200, 46, "Attention", ("keeps no cache of its own",), colour=PINK
    )
    backend = page.box(
        512, 622, 200, 46, "AttentionBackend", ("write slots, read blocks",), colour=RED
    )
    group = page.box(736, 558, 184, 46, "Group", ("sums with other ranks",), colour=RED)
    storage = page.box(736, 622, 184, 46, "KVCache", ("K and V of every block",), colour=RED)
    page.arrow([worker.right, runner.left])
    page.arrow([runner.bottom, batch.top])
    page.arrow([(724, 400), (724, 523), sampler.left])
    page.arrow([runner.at("bottom", 0.2), (772.8, 400), (612, 400), model.top])
    page.arrow([model.bottom, layer.top])
    page.arrow([layer.bottom, attention.top])
    page.arrow([attention.bottom, backend.top])
    page.arrow([attention.right, group.left])
    page.arrow([backend.right, storage.left])

    page.arrow([core.left, (220, 227), scheduler.at("top", 0.7777)])
    page.arrow([core.at("right", 29 / 46), executor.left])
    page.arrow([executor.bottom, (802, 262), (662, 262), worker.at("top", 0.7667)])
    # What crosses, below the two sides.
    page.box(
        360, 690, 240, 44, "SchedulerOutput", ("a plan: ids, counts, blocks, copies",), colour=PLAIN
    )
    page.box(360, 746, 240, 44, "ModelRunnerOutput", ("the tokens that were drawn",), colour=PLAIN)
    grey = {"colour": GREY, "dashed": True}
    page.arrow([(244, 674), (244, 712), (360, 712)], **grey)
    page.arrow([(600, 712), (716, 712), (716, 674)], **grey)
    page.arrow([(776, 674), (776, 768), (600, 768)], **grey)
    page.arrow([(360, 768), (184, 768), (184, 674)], **grey)
    page.box(
        60, 72, 196, 62, "Trace", ("Scheduler and manager", "write it, if asked to"), dashed=True
    )
    return page.figure()
