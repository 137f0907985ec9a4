"""What a lab begins with that is a function: its docstring is the specification."""

from __future__ import annotations


def my_schedule(running, waiting, token_budget, max_num_seqs, num_free_blocks, block_size):
    """Plan one step: how many tokens of each request it computes.

    Args:
        running: by name (tokens, computed tokens), in order of admission. Nothing is preempted: for
            what these need in this step there are blocks enough.
        waiting: by name the number of tokens, in the order of the queue; none is computed.
        token_budget: the most tokens that the step may compute.
        max_num_seqs: the most requests that may run.
        num_free_blocks: blocks that nobody holds, each of block_size tokens.

    Running requests come first and want all that is not computed yet. Then waiting ones, while
    there is budget: a request is admitted if all of its tokens would fit into the free blocks, and
    takes blocks only for what this step computes of it. Nobody overtakes one that does not fit.

    Returns: tokens by name, in this order; requests that get none are left out.
    """
    raise NotImplementedError


def my_cap(num_new, token_budget, long_prefill_token_threshold, num_requests):
    """How many of the num_new missing tokens of a request may this step compute?

    Never more than token_budget, which is what is left of it. And no more than the threshold, if it
    is above 0 and other requests are there, running or waiting: num_requests counts all of them.
    """
    raise NotImplementedError


def my_online_softmax(m_i, l_i, acc, scores, value):
    """One tile of the online softmax, inside a Triton kernel: put @triton.jit above this function.

    Args:
        m_i: [BLOCK_M], the largest score so far; -inf before the first tile.
        l_i: [BLOCK_M], the sum of exp(score - m_i) so far.
        acc: [BLOCK_M, HEAD_DIM_PADDED], the sum of exp(score - m_i) * value so far.
        scores: [BLOCK_M, BLOCK_N], of this tile; -inf where a row may not look (a whole tile, too).
        value: [BLOCK_N, HEAD_DIM_PADDED], V of this tile.

    You have tl.maximum, tl.max(x, 1), tl.sum(x, 1), tl.exp, tl.where and tl.dot(a, b).

    Returns: m_i, l_i and acc with this tile in them.
    """
    raise NotImplementedError


def my_merge(results, lse):
    """Attention over all parts of a sequence, from what each part left.

    Args:
        results: [num_parts, head_dim], each part's softmax times its values.
        lse: [num_parts], the log of each part's sum of exps; -inf for a part without keys.

    Returns: [head_dim].
    """
    raise NotImplementedError


def my_top_p(logits, top_p):
    """The nucleus: keep the fewest likeliest tokens that reach top_p together.

    Args:
        logits: [vocab], float64; some may be -inf already.
        top_p: above 0, at most 1.

    A token goes if those likelier than it reach top_p without it, so the likeliest one always
    stays. Among equally likely ones the smaller id counts as the likelier.

    Returns: [vocab], the logits with -inf for each token that goes.
    """
    raise NotImplementedError


def my_propose(token_ids, k):
    """A proposer: guess how a text goes on.

    Args:
        token_ids: prompt and output so far, a list.
        k: the most drafts.

    The texts are logs: line after line about a few things, each with its state, which changes now
    and then. Guess well enough to need fewer steps than n-grams of one to three tokens at their
    first place, and do not guess at random: what is wrong costs work.

    Returns: at most k token ids; none where you have no guess.
    """
    raise NotImplementedError


def my_mask(table, accepting, tokens, stop_token_ids, state):
    """Which tokens may come next, where an automaton over bytes is in some state?

    Args:
        table: by state a dict, from a byte to the next state. Where a byte is missing, no text that
            matches goes on with it.
        accepting: by state, whether the text may end there.
        tokens: by id the bytes of each token; None for what is no text.
        stop_token_ids: ids that end the text. They may come where it may end. One of them may be
            text as well, and then it may also come as text.
        state: the state now.

    Returns: a set of token ids.
    """
    raise NotImplementedError


def my_tool_stream(pieces):
    """Read calls out of a text that comes in pieces: a generator.

    Args:
        pieces: an iterator of strings, the text in its order.

    Yields: for each piece a list of what is sure now, in order, and one more list when the text has
    ended. In it are pairs: ("content", words), ("name", name) and ("arguments", words).

    A call is <tool_call>{"name": "f", "arguments": {...}}</tool_call>, with no other blanks but
    inside the arguments, which are any JSON object. All other text is content.

    Content is given out at once; only an end that may become <tool_call> waits. A call's name is
    given out as soon as the brace of its arguments is there, and from that brace on the arguments
    as they come (half an escape may wait). Their last brace waits until </tool_call> is there, all
    of it. If the text ends before that, the last list gives out the call's text, from its
    <tool_call> on, as content.
    """
    raise NotImplementedError
