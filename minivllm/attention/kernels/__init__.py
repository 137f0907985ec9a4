"""Triton kernels of paged attention, each beside its PyTorch reference.

In reading order: ``cache`` (K and V into slots, block copies), ``online_softmax`` (the loop that
all attention kernels share), ``decode``, ``split_kv``, ``varlen``, ``launch`` (launch parameters).
A **program** is what Triton calls one instance of a kernel; a reference does in loops over programs
what a GPU does at once.

The same source runs on a CPU, one program after the other, under Triton's interpreter. Triton
decides about that when it is first imported, so ``TRITON_INTERPRET=1`` has to be in the environment
before: in a notebook, ``os.environ["TRITON_INTERPRET"] = "1"`` above all other imports.

So far these kernels have run under the interpreter only; for a GPU they have been compiled, and
looked at. Their launch parameters (rows, tiles, warps) are chosen by reasoning, and not tuned.
"""
