"""Notebook 14's exercises and lab: typical mistakes are told apart; and what Acceptance counts."""

import re

import pytest
import torch
from test_14_draft_figures import speculating

from minivllm.course.asking.answers import NotYet
from minivllm.course.grading import milestones
from minivllm.exercises import ch14, labs
from minivllm.lab.sim.acceptance import Acceptance
from minivllm.lab.sim.dry_run import dry_run
from minivllm.sim import chats, chi_square, table_chat
from minivllm.spec_decode.ngram import propose
from minivllm.trace.records import Sampled, Verified


def told(exercise, answer, message):
    with pytest.raises(NotYet, match=message):
        exercise.check(answer)


@pytest.mark.parametrize("seed", range(8))
def test_a_lookup_has_a_text_for_each_mistake(seed):
    exercise = ch14.lookup(seed)
    texts, k = exercise.given["texts"], exercise.given["k"]
    right = exercise.solve()
    assert right == [propose(text, 1, 3, k, 99) for text in texts]
    last = [ch14._from_last_place(text, 1, 3, k) for text in texts]
    short = [propose(text, 1, 1, k, 99) for text in texts]
    assert [] in right
    told(exercise, last, "the first one counts, not the last")
    told(exercise, short, "of its last tokens occurred before|the first one counts")
    long = [draft + [1] * (k + 1) if draft else draft for draft in right]
    told(exercise, long, rf"\d drafts, and k is {k}")
    told(exercise, [draft[:-1] for draft in right], "more can be copied|occurred before")
    told(exercise, [draft or [9] for draft in right], "has not occurred")
    cut = [[*draft, 9] if 0 < len(draft) < k else draft for draft in right]
    told(exercise, cut, "the text ends before")
    told(
        exercise,
        [[9] * len(draft) for draft in right],
        "does not follow the first place|drafts are what followed",
    )
    told(exercise, [["a"], *right[1:]], "text 1: give token ids")
    told(exercise, right[:-1], "give 4 lists")


@pytest.mark.parametrize("seed", range(8))
def test_what_a_verified_step_leaves(seed):
    exercise = ch14.verify(seed)
    new, computed, blocks = exercise.solve()
    drafts, target = exercise.given["drafts"], exercise.given["target"]
    assert len(new) >= 2
    for wrong, message in (
        ((new[:-1], computed, blocks), "in place of the first wrong draft the target's token"),
        ((target, computed, blocks), "a text that is not there"),
        ((drafts[: len(new)], computed, blocks), "they are the target's, not the drafts"),
        (([1, 2], computed, blocks), "compare drafts and target"),
        ((new, computed + 1, blocks), "has not been through the model yet"),
        ((new, exercise.given["num_tokens"] + len(drafts), blocks), "rejected drafts do not count"),
        (
            (new, computed - 1, blocks),
            "the last token before the step|accepted drafts are computed",
        ),
        ((new, computed, blocks - 1), "none is given back"),
        ((new, computed, blocks + 1), r"the step wrote up to position \d+"),
        ((new, computed), "give a triple"),
    ):
        told(exercise, wrong, message)


def test_the_best_k_falls_with_the_batch():
    exercise = ch14.best_k(0)
    for gained, milliseconds in exercise.calls:
        ks = list(exercise.solve()(gained, milliseconds).values())
        assert ks == sorted(ks, reverse=True)
        assert ks[0] > ks[-1]


# -- the lab -------------------------------------------------------------------------------------


def by_ngrams(token_ids, k):
    return propose(token_ids, 1, 3, k, 10**6)


def always(token_ids, k):
    """The newest place of the last token, or any token: never silent."""
    for start in range(len(token_ids) - 2, -1, -1):
        if token_ids[start] == token_ids[-1]:
            return (token_ids[start + 1 : start + 1 + k] * k)[:k]
    return [1] * k


@pytest.mark.parametrize(
    ("mine", "message"),
    [
        (by_ngrams, r"\d+ steps, n-grams need \d+; at most \d+ are asked for"),
        (lambda token_ids, k: [], "at most"),
        (lambda token_ids, k: token_ids, r"at most k = 4 drafts, not \d+"),
        (lambda token_ids, k: ["a"], "return a list of token ids"),
        (lambda token_ids, k: 1 // 0, "ZeroDivisionError in line"),
        (lambda token_ids, k: token_ids.clear() or [], "at most"),  # it has a copy
    ],
)
def test_a_proposer_that_does_not_help_is_told_so(mine, message, capsys):
    labs.propose.grade(mine)
    out = capsys.readouterr().out
    assert out.startswith("FAILED   propose")
    assert re.search(message, out)


def test_a_proposer_that_guesses_at_random_is_told_its_waste(capsys):
    def hasty(token_ids, k):  # the last place of one token, if more are not found
        return labs.propose.solution(token_ids, k) or always(token_ids, k)

    labs.propose.grade(hasty)
    out = capsys.readouterr().out
    assert "FAILED" in out
    assert "% of the drafts are wrong; at most 40%" in out


def test_the_proposer_is_a_milestone_of_notebook_14(tmp_path, monkeypatch):
    monkeypatch.setenv("MINIVLLM_CACHE_ROOT", str(tmp_path))
    assert labs.MILESTONES["propose"] == "14"

    def my_propose(token_ids, k):
        return labs.propose.solution(token_ids, k)

    labs.grade(my_propose)
    assert milestones.passed().keys() == {"propose"}


# -- what is counted -----------------------------------------------------------------------------


@pytest.mark.parametrize("accept", ["all", "mixed", "none"])
def test_acceptance_counts_what_the_trace_says(accept):
    trace = speculating(accept=accept)
    found = Acceptance.of(trace)
    verified = list(trace.of(Verified))
    drafted = sum(len(r.draft_token_ids) for r in verified)
    accepted = sum(r.num_accepted for r in verified)
    assert found.rate == accepted / drafted
    assert found.tokens_per_draft == 1 + accepted / len(verified)
    assert len(found.first_right) == 3
    steps = len({(r.seq_id, r.step) for r in trace.of(Sampled)}) - 2  # less the two prefills
    tokens = sum(1 for _ in trace.of(Sampled)) - 2
    assert found.tokens_per_step == tokens / steps
    assert (found.tokens_per_step > 1) == (accept != "none")
    assert list(found.first_right) == sorted(found.first_right, reverse=True)


def test_without_drafts_a_step_gains_one_token():
    plain = dry_run([(5, 4), (9, 6)], num_blocks=20, block_size=4, max_num_batched_tokens=6)
    assert Acceptance.of(plain) == Acceptance(1.0, 0.0, 1.0, ())
    only_prefill = dry_run([(5, 1)], num_blocks=20, block_size=4)
    assert Acceptance.of(only_prefill).tokens_per_step == 0


# -- what the lecture measures on ------------------------------------------------------------------


def test_answers_of_one_kind_are_in_their_prompts_and_others_are_not():
    found = chats()
    assert list(found) == ["tables", "JSON", "capitals", "essays"]
    assert [len(messages) for messages in found.values()] == [12, 3, 5, 3]
    asked = {chat[-1]["content"] for messages in found.values() for chat in messages}
    assert len(asked) == 23
    assert found["tables"][6] == table_chat("What is the email of Bob Brown?")
    assert "bob.b@example.com" in found["tables"][6][0]["content"]
    assert found["essays"][0] == [{"role": "user", "content": "Write a short essay about music."}]


@pytest.mark.parametrize("num_outcomes", [2, 3, 4, 7])
def test_a_p_value_is_that_of_the_gamma_function(num_outcomes):
    probs = {f"{i}": 1 / num_outcomes for i in range(num_outcomes)}
    shape = torch.tensor((num_outcomes - 1) / 2, dtype=torch.float64)
    for extra in (0, 3, 40):
        counts = {name: 100 + extra * (name == "0") for name in probs}
        statistic, p_value = chi_square(counts, probs)
        right = torch.special.gammaincc(shape, torch.tensor(statistic / 2, dtype=torch.float64))
        assert p_value == pytest.approx(right.item())
    assert chi_square(dict.fromkeys(probs, 5), probs) == (0, 1)
