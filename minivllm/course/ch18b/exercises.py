"""Exercises of notebook 18b: the place of a code, AWQ's nibbles, what a kernel reads."""

from __future__ import annotations

from random import Random

from minivllm.course.asking.answers import compare, whole_numbers
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.course.asking.function_exercise import FunctionExercise

# -- core: the place of a code -------------------------------------------------------------------


@seeded(difficulty=2, minutes=6)
def place(rng: Random) -> Exercise:
    """The word and the bit at which GPTQ keeps a weight's code and its zero."""
    bits = rng.choice([2, 4, 8])
    group_size = rng.choice([32, 64, 128])
    return Exercise(
        _check_place,
        "How many codes are in a word of 32 bits? Codes run along the inputs, zeros along the "
        "outputs.",
        _solve_place,
        "GPTQ packs the codes of this many bits into words of 32, the first in the lowest bits: "
        "neighbouring inputs of one output into qweight[row][n], zeros of neighbouring "
        "outputs into qzeros[group][column]. Where are the code and the zero of the weight with "
        "which output n multiplies input k? Answer with a tuple (row, lowest bit of the code, "
        "group, column).",
        {
            "bits": bits,
            "group_size": group_size,
            "k": group_size * rng.randint(2, 9) + rng.randint(9, 31),
            "n": rng.randint(40, 900),
        },
    )


def _solve_place(bits, group_size, k, n):
    in_a_word = 32 // bits
    return k // in_a_word, bits * (k % in_a_word), k // group_size, n // in_a_word


def _check_place(answer, bits, group_size, k, n) -> str:
    names = ("row", "lowest bit", "group", "column")
    row, bit, group, column = whole_numbers(answer, names)
    right = _solve_place(bits, group_size, k, n)
    in_a_word = 32 // bits
    compare(
        row,
        right[0],
        {
            "row: a word holds more than one input.": k,
            "row: that is the output; qweight's rows are words of inputs.": n // in_a_word,
            f"row: with {bits} bits a word holds {in_a_word} codes, not 8.": k // 8,
            "row: a word has 32 bits; these are its bits.": k // bits,
        },
        f"row: not {row}. A word holds the codes of {in_a_word} neighbouring inputs.",
        f"row: it is {right[0]}.",
    )
    compare(
        bit,
        right[1],
        {
            "lowest bit: that is the place among the codes; each has bits of its own.": (
                k % in_a_word
            ),
            "lowest bit: the first code is in the lowest bits.": 32 - bits - right[1],
            "lowest bit: that is where the next code begins.": right[1] + bits,
        },
        f"lowest bit: not {bit}. Which of the {in_a_word} codes in its word is it?",
        f"lowest bit: it is {right[1]}.",
    )
    compare(
        group,
        right[2],
        {
            "group: outputs have no groups; the inputs of a row are cut.": n // group_size,
            "group: that is the word; a group is group_size inputs.": right[0],
        },
        f"group: not {group}. A group is {group_size} neighbouring inputs.",
        f"group: it is {right[2]}.",
    )
    compare(
        column,
        right[3],
        {
            "column: zeros are packed, too.": n,
            "column: zeros run along the outputs.": k // in_a_word,
            f"column: a word holds {in_a_word} zeros, not 8.": n // 8,
        },
        f"column: not {column}. A word holds the zeros of {in_a_word} neighbouring outputs.",
        f"column: it is {right[3]}.",
    )
    return "codes run along the inputs, zeros along the outputs, in the same words of 32 bits."


# -- stretch: AWQ's order ------------------------------------------------------------------------


@seeded(difficulty=3, minutes=10)
def nibble(rng: Random) -> FunctionExercise:
    """The code of one output in a word of AWQ's."""
    calls = [(rng.randint(-(2**31), 2**31 - 1), rng.choice([1, 2, 3, 4, 5, 6]))]
    calls += [(rng.randint(-(2**31), 2**31 - 1), rng.randint(0, 7)) for _ in range(40)]
    return FunctionExercise(
        "A word of AWQ's holds eight codes of 4 bits. From the lowest bits on they are those of "
        "outputs 0, 2, 4, 6, 1, 3, 5, 7. The word is an int32, so it may be negative. Write "
        "nibble(word, j): the code of output j, from 0 to 15.",
        "At which place is output j in the list? Its code begins four times as many bits up.",
        _solve_nibble,
        calls=calls,
        learnt="outputs 0 and 1 are 16 bits apart: one mask, 0x000f000f, takes both.",
        mistakes={
            "that is GPTQ's order, where code j begins at bit 4 * j.": lambda word, j: (
                word >> 4 * j & 15
            ),
            "you took output ORDER[j]; look for the place where j is in the list.": (
                lambda word, j: word >> 4 * [0, 2, 4, 6, 1, 3, 5, 7][j] & 15
            ),
            "the first code is in the lowest bits.": lambda word, j: (
                word >> 28 - 4 * [0, 4, 1, 5, 2, 6, 3, 7][j] & 15
            ),
            "the bits above it belong to other outputs; & 15 keeps four.": lambda word, j: (
                word >> 4 * [0, 4, 1, 5, 2, 6, 3, 7][j]
            ),
        },
    )


def _solve_nibble():
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def nibble(word, j):
        return word >> 4 * order.index(j) & 15

    return nibble


# -- design: what a kernel reads -----------------------------------------------------------------


@seeded(difficulty=4, minutes=12)
def lines(rng: Random) -> Exercise:
    """Cache lines that a core reads for a few outputs, in three layouts."""
    return Exercise(
        _check_lines,
        "A line has 16 words. How many of them, side by side, are of the lanes outputs?",
        _solve_lines,
        "A core computes this many neighbouring outputs at a time, and needs their codes of 4 bits "
        "for all inputs. Memory comes in lines of 64 bytes. GPTQ keeps words [inputs / 8, outputs] "
        "row by row, a word for eight inputs of one output; AWQ [inputs, outputs / 8], a word for "
        "eight outputs of one input. Lines begin where the first of these outputs is. How many "
        "lines does the core read of GPTQ's words, how many of AWQ's, and how many bytes of each "
        "line of AWQ's does it use? Answer with a triple.",
        {
            "inputs": rng.choice([1024, 1536, 2048, 3072, 4096, 5120, 8192]),
            "outputs": rng.choice([1024, 2560, 4096, 6144, 8192, 14336]),
            "lanes": rng.choice([16, 32, 64]),
        },
    )


def _solve_lines(inputs, outputs, lanes):
    of_gptq = inputs // 8 * (lanes // 16)  # 16 words, of 16 outputs
    return of_gptq, inputs, lanes // 8 * 4  # each input is another row of words


def _check_lines(answer, inputs, outputs, lanes) -> str:
    gptq, awq, used = whole_numbers(answer, ("GPTQ's lines", "AWQ's lines", "bytes used"))
    right = _solve_lines(inputs, outputs, lanes)
    compare(
        gptq,
        right[0],
        {
            "GPTQ's lines: these are words; a line has 16.": inputs // 8 * lanes,
            "GPTQ's lines: a word has the codes of eight inputs.": inputs * lanes // 16,
            "GPTQ's lines: that is for 16 outputs.": inputs // 8 if lanes > 16 else None,
            "GPTQ's lines: that is the whole layer.": inputs // 8 * outputs // 16,
        },
        f"GPTQ's lines: not {gptq:,}. A row of words is {lanes} neighbouring words here.",
        f"GPTQ's lines: it is {right[0]:,}.",
    )
    compare(
        awq,
        right[1],
        {
            "AWQ's lines: each input has a row of words of its own, far from the next one.": (
                right[0]
            ),
            "AWQ's lines: these are words; those of one input are in one line.": (
                inputs * lanes // 8
            ),
            "AWQ's lines: that is the whole layer.": inputs * outputs // 128,
        },
        f"AWQ's lines: not {awq:,}. Of each input {lanes // 8} words are needed, side by side.",
        f"AWQ's lines: it is {right[1]:,}.",
    )
    compare(
        used,
        right[2],
        {
            "bytes used: these are words of 4 bytes.": lanes // 8,
            "bytes used: all of a line is read, and not all of it is used.": 64,
            "bytes used: a code has half a byte.": lanes,
        },
        f"bytes used: not {used}. {lanes} codes of 4 bits are needed of a line.",
        f"bytes used: it is {right[2]}.",
    )
    return f"{right[1] / right[0]:g} times the lines: so AWQ's words are sorted once, at loading."
