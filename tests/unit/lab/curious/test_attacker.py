"""The attacker finds a fact that was sent, and nothing where nothing was."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any, cast

import numpy as np
import pytest

from tandem.codecs import RaceLists, TopP
from tandem.codecs.race_lists import cut_vote
from tandem.messages import LinkFrame, Open, Vote, encode
from tandem.protocol.prefix import Prefix
from tandem_lab.curious.attacker import Attacker, guess
from tandem_lab.curious.imagined import Imagination
from tandem_lab.curious.study import Trial, deal, guess_by_timing, success
from tandem_lab.curious.transcripts import Arrival, Transcript, read_transcript
from tandem_lab.simulation.specs import change_spec, make_spec

KINDS, PHRASES, VOCAB = 8, 3, 50
FIRST_KIND, LIKES, STATED = 20, 7, 1
QUESTION = deal(Random(1)).asked[0].question
SPEC = change_spec(make_spec(), seed=5, race_depth=8, temperature=1.0, draft_rule="coupled")


class FakeImagination:
    """A model that says "likes", and then the kind of its note with nine parts of ten."""

    def kind_tokens(self, question: Any) -> list[int]:
        return list(range(FIRST_KIND, FIRST_KIND + KINDS))

    def distributions(
        self, question: Any, prefix: tuple[int, ...], temperature: float, bound: float = 0.0
    ) -> Any:
        laws = np.full((KINDS, PHRASES, VOCAB), 0.1 / (VOCAB - 1), np.float32)
        for kind in range(KINDS):
            laws[kind, :, FIRST_KIND + kind if len(prefix) == STATED else LIKES] = 0.9
        return laws

    def similarities(self, question: Any) -> Any:
        return np.repeat(np.linspace(0.1, 0.8, KINDS)[:, None], PHRASES, axis=1)

    def sizes(self, *arguments: Any) -> Any:
        return [[(1, 40 + kind), (1, 40)] for kind in range(KINDS)]


ATTACKER = Attacker(cast(Imagination, FakeImagination()), TopP())


def law(kind: int, prefix: tuple[int, ...]) -> Any:
    return FakeImagination().distributions(None, prefix, 1.0)[kind, 0].astype(float)


def received(body: Any) -> Arrival:
    frame = LinkFrame(
        session=1, view=0, committed=0, committed_digest=Prefix(1).digest, stamp=1, echo=0, held_us=0, body=body
    )  # fmt: skip
    return Arrival(0.0, encode(frame))


def transcript(kind: int, *, is_voted: bool = True, draft: int | None = None) -> Transcript:
    """Two steps of a device whose note says so, and an answer that says something else."""
    arrivals, prefix = [received(Open(spec=SPEC.to_json()))], Prefix(1)
    for step, token in enumerate((LIKES, FIRST_KIND + kind if draft is None else draft)):
        vote = RaceLists().encode(law(kind, tuple(prefix.tokens)))
        payload = cut_vote(vote, 8, VOCAB, seed=SPEC.seed, step=step, temperature=1.0)
        proposal = Vote(
            step=step, digest=prefix.digest, tokens=(token,),
            payloads=(payload,) if is_voted else (),
            log_weights=(SPEC.relevance_scale * (0.1 + 0.1 * kind),) if is_voted else (),
            decode_us=1,
        )  # fmt: skip
        arrivals.append(received(proposal))
        prefix.append(token)
    return read_transcript(arrivals, (LIKES, FIRST_KIND + (kind + 1) % KINDS, 3))


@pytest.mark.parametrize("kind", range(KINDS))
def test_votes_weights_and_drafts_give_the_fact_away(kind: int) -> None:
    random, found = Random(kind), transcript(kind)
    assert ATTACKER.stated_at(QUESTION, found) == STATED
    for scores in (
        ATTACKER.votes(QUESTION, found, STATED),
        ATTACKER.weights(QUESTION, found),
        ATTACKER.ids(QUESTION, found, STATED),
        ATTACKER.whole(QUESTION, found),
        ATTACKER.ids(QUESTION, transcript(kind, is_voted=False), STATED),
    ):
        assert scores is not None
        assert guess(scores, random) == kind


@pytest.mark.parametrize("kind", range(KINDS))
def test_an_attacker_who_knows_of_a_bound_reads_votes_and_private_draws(kind: int) -> None:
    """Of an id that was drawn with private noise it is the likelihood that counts, not whether the shared noise has it
    win; the weight is nobody's note's."""
    bounded = replace(ATTACKER, privacy=0.5)
    own, voted = transcript(kind, is_voted=False), transcript(kind)
    scores = bounded.ids(QUESTION, own, STATED)
    expected = np.log(0.9 * law(kind, (0,))[FIRST_KIND + kind] + 0.1 * (0.9 + 7 * 0.1 / 49) / 8) + np.log(0.9)
    assert scores is not None
    assert scores[kind] == scores.max() == pytest.approx(expected)
    assert bounded.weights(QUESTION, voted) is None
    assert guess(bounded.whole(QUESTION, voted), Random(0)) == kind  # type: ignore[arg-type]


def test_before_the_fact_only_the_weight_tells() -> None:
    """The mutant counts the step that states it."""
    found = transcript(4)
    early = ATTACKER.votes(QUESTION, found, STATED - 1)
    assert early is not None
    assert np.ptp(early) == pytest.approx(0)
    assert np.ptp(ATTACKER.votes(QUESTION, found, STATED)) > 1  # type: ignore[arg-type]
    assert guess(ATTACKER.before(QUESTION, found), Random(0)) == 4  # type: ignore[arg-type]


def test_without_votes_the_answer_counts_in_mode_dual_only() -> None:
    opened = [received(Open(spec=SPEC.to_json()))]
    answered = read_transcript(opened, (LIKES, FIRST_KIND + 6))
    assert guess(ATTACKER.whole(QUESTION, answered), Random(0)) == 6  # type: ignore[arg-type]
    speculative = change_spec(SPEC, mode="speculative", race_depth=0)
    alone = read_transcript([received(Open(spec=speculative.to_json()))], (LIKES, FIRST_KIND + 6))
    assert ATTACKER.whole(QUESTION, alone) is None


def test_where_nothing_crosses_there_is_nothing_to_guess_from() -> None:
    nothing = read_transcript([], (LIKES,))
    for signal in (ATTACKER.whole, ATTACKER.before, ATTACKER.weights, ATTACKER.sizes):
        assert signal(QUESTION, nothing) is None


def trial(fact: int, guessed: int | None, deal_name: str = "a", timing: tuple[float, ...] = ()) -> Trial:
    return Trial("case", deal_name, "games", fact, (fact + 1) % KINDS, {"whole": guessed}, timing, 1, 1)


def test_success_counts_right_guesses_and_those_of_another_deal() -> None:
    counted = success([trial(1, 1), trial(1, 2), trial(1, None), trial(5, 0)], "whole")
    assert counted is not None
    assert (counted["right"], counted["of"], counted["shuffled"]) == (1, 3, 1)
    low, high = counted["interval"]
    assert 0 < low < 1 / 3 < high < 1
    assert success([trial(1, None)], "whole") is None


def test_timing_is_guessed_from_the_nearest_run_with_other_notes() -> None:
    trials = [
        trial(3, 0, "a", (10.0, 1.0)),
        trial(3, 0, "b", (10.1, 1.0)),
        trial(6, 0, "b", (20.0, 1.0)),
        trial(6, 0, "a", ()),
    ]
    guessed = guess_by_timing(trials, Random(0))
    assert guessed[0].guesses["timing"] == 3
    assert guessed[1].guesses["timing"] == 3, "the only run of another deal"
    assert guessed[3].guesses["timing"] is None


def test_a_deal_changes_the_kinds_of_the_notes_and_nothing_else() -> None:
    first, second = deal(Random(1)), deal(Random(2))
    assert len(first.asked) == 20
    for one, other in zip(first.notes, second.notes, strict=True):
        assert one.text.replace(one.kind, "*") == other.text.replace(other.kind, "*")
    changed = [one.kind != other.kind for one, other in zip(first.notes, second.notes, strict=True)]
    assert sum(changed) > len(changed) / 2
    for each in first.asked:
        assert each.note.name == each.question.name
        assert f"{each.question.domain.kinds[each.fact]} " in each.note.text
    sampled = first.sample(Random(5), 50)
    assert len(sampled) == len({(each.note.name, each.note.domain) for each in sampled}) == 10
