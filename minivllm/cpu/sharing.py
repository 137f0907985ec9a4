"""Sharing a loop: one machine code for one thread and for several.

A loop that is compiled by numba's ``parallel=True`` costs twice or thrice as long to compile, and
little work needs the same loop without threads. So here a kernel has a share of its work as its
first argument, and calls itself in each thread. Threads are numba's own (OpenMP's, where it is
there); they neither need nor wait for the interpreter lock.
"""

from __future__ import annotations

import torch
from llvmlite import ir
from numba import get_num_threads, types
from numba.core import cgutils
from numba.extending import intrinsic

ALL_ALONE = (0, 1)  # a share: the first of one part
_INT, _BYTES = ir.IntType(64), ir.IntType(8).as_pointer()
_VOID = ir.VoidType()
_FIRST = 2  # of a compiled function's arguments; those before are for its result and its error


def by_threads(num_threads: int) -> tuple[int, int]:
    """The share with which a kernel calls itself in this number of threads: no part yet."""
    return -1, num_threads


def start_threads() -> None:
    """Let numba start its threads, which compiled code needs; torch keeps its number of them."""
    num_threads = torch.get_num_threads()
    get_num_threads()
    if torch.get_num_threads() != num_threads:
        torch.set_num_threads(num_threads)


@intrinsic
def shared_range(typing, share, length):
    """``range(length)``, of which a kernel that is called with this share has its part.

    The share is the kernel's first argument. ``by_threads`` has none: the kernel is called with the
    same arguments by each thread for its part, and when all are done, the range here is empty. What
    stands before the loop is computed by each.
    """

    def emit(context, builder, signature, args):
        part, num_parts = cgutils.unpack_tuple(builder, args[0], 2)
        begin, end = (
            builder.sdiv(builder.mul(args[1], each), num_parts)
            for each in (part, builder.add(part, _INT(1)))
        )
        undivided = builder.icmp_signed("<", part, _INT(0))
        with builder.if_then(undivided):
            _call_in_threads(builder, num_parts)
        numbers = context.make_helper(builder, types.range_state64_type)
        numbers.start = builder.select(undivided, _INT(0), begin)
        numbers.stop = builder.select(undivided, _INT(0), end)
        numbers.step = _INT(1)
        return numbers._getvalue()

    return types.range_state64_type(types.UniTuple(types.int64, 2), types.int64), emit


def _call_in_threads(builder, num_parts):
    """Call the function that is being built, by each thread, with its arguments and another part.

    (The threads' function is that of numba's ufuncs: see ``numba.np.ufunc.parallel``.)
    """
    arguments = builder.function.args
    record = cgutils.alloca_once(builder, ir.LiteralStructType([a.type for a in arguments]))
    for i, argument in enumerate(arguments):
        builder.store(argument, cgutils.gep_inbounds(builder, record, 0, i))
    # a thread gets the address 0 plus its number
    nowhere = cgutils.alloca_once_value(builder, _BYTES(None))
    count, step = (cgutils.alloca_once_value(builder, value) for value in (num_parts, _INT(1)))
    kind = ir.FunctionType(_VOID, [_BYTES] * 5 + [_INT] * 3)
    parallel_for = cgutils.get_or_insert_function(builder.module, kind, "numba_parallel_for")
    addresses = _part(builder.function), nowhere, count, step, record
    pointers = [builder.bitcast(address, _BYTES) for address in addresses]
    builder.call(parallel_for, [*pointers, _INT(0), _INT(1), num_parts])


def _part(function):
    """A function for one thread: call ``function`` with what is in the record, for this part."""
    kind = ir.FunctionType(_VOID, [_BYTES.as_pointer(), _BYTES, _BYTES, _BYTES])
    part = ir.Function(function.module, kind, f"{function.name}.part")
    part.linkage = "internal"
    builder = ir.IRBuilder(part.append_basic_block())
    kinds = [argument.type for argument in function.args]
    record = builder.bitcast(part.args[3], ir.LiteralStructType(kinds).as_pointer())
    values = [builder.load(cgutils.gep_inbounds(builder, record, 0, i)) for i in range(len(kinds))]
    for i in range(_FIRST):  # a result and an error of its own, which nothing reads
        values[i] = builder.bitcast(builder.alloca(_BYTES), kinds[i])
    values[_FIRST] = builder.ptrtoint(builder.load(part.args[0]), _INT)
    builder.call(function, values)
    builder.ret_void()
    return part
