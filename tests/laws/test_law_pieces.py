"""The law of answers of pieces: the text of two steps is drawn from the mixture of what the models' own tokens say.

Against an oracle that knows bytes alone, by counting 25,000 seeds, at three temperatures, of two and of three parties.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tandem.aggregation import rules
from tandem.aggregation.coupling import noise
from tandem.engine.drafter import row_probabilities
from tandem.engine.pieces import PieceReader, Pieces, Reading, TextTokens, run_passes
from tandem.engine.port import IsStale
from tandem.engine.template import TemplateTokenizer
from tandem.engine.tokenizer import Detokenizer

Check = Callable[[np.ndarray, np.ndarray], None]
WORDS = {
    "device": {"a": 1, "b": 2, "ab": 3, "c": 4},
    "cloud": {"c": 1, "ca": 2, "b": 3, "a": 4, "abc": 5, "bc": 6},
    "third": {"b": 1, "ba": 2, "a": 3, "c": 4},
}
MERGES = {"device": [("a", "b")], "cloud": [("c", "a"), ("b", "c"), ("a", "bc")], "third": [("b", "a")]}
WEIGHTS = {2: (0.35, 0.65), 3: (0.2, 0.5, 0.3)}
NUM_SEEDS = 25_000
LETTERS = "The rain, the sun: 12 of 30.\n  Yes"


class Model:
    """A few tokens, of which 0 ends an answer, and the letters that every tokenizer has; a function of the tokens."""

    def __init__(self, party: str) -> None:
        words = {"</s>": 0, **WORDS[party]}
        letters = sorted(set(LETTERS) - set(words) | {"Ġ", "Ċ"} - {" ", "\n"})
        words |= {letter: len(words) + place for place, letter in enumerate(letters) if letter not in " \n"}
        words = {word: number for number, word in enumerate(words)}
        tokenizer = Tokenizer(models.BPE(words, MERGES[party]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens(["</s>"])
        self.party, self.vocab_size, self.eos_token_ids = party, len(words), (0,)
        self.num_words = 1 + len(WORDS[party])
        self.detokenizer = Detokenizer(tokenizer)
        self.tokenizer = tokenizer
        self.text_tokenizer = TemplateTokenizer(tokenizer).within_text

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        rng = np.random.default_rng([len(self.party), len(tokens), *tokens])
        return np.append(rng.normal(0, 1.5, self.num_words), np.full(self.vocab_size - self.num_words, -60.0))

    def forward(
        self, answers: Mapping[str, Sequence[int]], num_logits: Mapping[str, int], *, is_stale: IsStale | None
    ) -> list[np.ndarray]:
        ((name, tokens),) = answers.items()
        ends = range(len(tokens) - num_logits[name] + 1, len(tokens) + 1)
        return [np.array([[self.logits(tokens[:end]) for end in ends]], np.float32)]


@cache
def model(party: str) -> Model:
    return Model(party)


@cache
def pieces_of(num_parties: int) -> Pieces:
    parties = list(WORDS)[:num_parties]
    return Pieces({party: TextTokens(model(party), party).packed for party in parties})


# ---- the oracle, over bytes ----------------------------------------------------------------------------------


def says(party: str, text: str, temperature: float) -> dict[str, float]:
    """How probable a party finds each next piece after a text; the end is empty."""
    own = model(party)
    tokens = own.tokenizer.encode(text, add_special_tokens=False).ids
    powers = np.exp(own.logits(tokens)[: own.num_words] / temperature)
    return dict(zip(["", *WORDS[party]], (powers / powers.sum()).tolist(), strict=True))


def law(num_parties: int, temperature: float) -> dict[tuple[str, str], float]:
    """The probability of two pieces in a row; nothing follows the end."""

    def mixture(text: str) -> dict[str, float]:
        mixed: dict[str, float] = {}
        for party, weight in zip(WORDS, WEIGHTS[num_parties], strict=False):
            for piece, share in says(party, text, temperature).items():
                mixed[piece] = mixed.get(piece, 0.0) + weight * share
        return mixed

    firsts = mixture("")
    return {
        (first, second): share * other
        for first, share in firsts.items()
        for second, other in (mixture(first) if first else {"": 1.0}).items()
    }


# ---- what the parties draw -----------------------------------------------------------------------------------


def counted(num_parties: int, temperature: float, by_lottery: bool) -> dict[tuple[str, str], int]:
    pieces = pieces_of(num_parties)
    parties = list(WORDS)[:num_parties]
    readings = {
        party: Reading(PieceReader(TextTokens(model(party), party), pieces), None) for party in parties
    }

    @cache
    def votes(said: tuple[int, ...]) -> np.ndarray:
        logits = (
            run_passes(model(party), {"a": readings[party].passes(said, 1, learns=False)})[0]
            for party in parties
        )
        return np.array([row_probabilities(each[:, -1], temperature)[0] for each in logits], np.float64)

    weights, numbers = WEIGHTS[num_parties], np.arange(pieces.size)
    counts: dict[tuple[str, str], int] = {}
    for seed in range(NUM_SEEDS):
        said: tuple[int, ...] = ()
        while len(said) < 2 and (not said or said[-1]):
            of_all, step = votes(said), len(said)
            if by_lottery:
                target = of_all[rules.draw_owner(weights, seed=seed, step=step)]
            else:
                target = np.asarray(weights) @ of_all
            said = (*said, int(np.argmax(target / noise(seed, step, numbers))))
        first, second = (pieces.texts[piece].decode() for piece in (*said, 0)[:2])
        counts[first, second] = counts.get((first, second), 0) + 1
    return counts


CASES = [(number, temperature) for number in WEIGHTS for temperature in (0.6, 1.0, 1.5)]


@pytest.mark.parametrize(("num_parties", "temperature"), CASES)
@pytest.mark.slow("25,000 seeds")
def test_texts_follow_the_law(num_parties: int, temperature: float, chi_square: Check) -> None:
    exact = law(num_parties, temperature)
    drawn = counted(num_parties, temperature, by_lottery=CASES.index((num_parties, temperature)) % 2 == 0)
    assert set(drawn) <= set(exact)
    chi_square(np.array([drawn.get(texts, 0) for texts in exact]), np.array(list(exact.values())))


def test_a_reading_letter_by_letter_is_found(chi_square: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    def by_letter(self: Reading, pieces: Sequence[int]) -> tuple[int, ...]:
        reader = vars(self)["_reader"]
        letters = reader.pieces.join(pieces).decode()
        return tuple(token for letter in letters for token in reader.vocabulary.read(letter.encode()))

    monkeypatch.setattr(Reading, "tokens", by_letter)
    with pytest.raises(AssertionError, match="chi-square"):
        test_texts_follow_the_law(2, 1.0, chi_square)
