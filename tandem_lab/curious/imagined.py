"""What the device would have sent if its note said so: the model, the embedder and the codec behind imagined notes.

One note for each candidate and each phrase in which notes of the bundled corpora state a fact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tandem.codecs import Codec, CodecStates, RaceLists
from tandem.codecs.base import ROOT
from tandem.codecs.race_lists import cut_vote
from tandem.engine.drafter import mix_rows
from tandem.engine.engine import Engine
from tandem.engine.port import Feed
from tandem.engine.privacy import clip
from tandem.messages.wire import varint_bytes
from tandem.modes.spec import SessionSpec
from tandem.retrieval.embedding import TextEmbedder
from tandem.retrieval.index import cosines
from tandem_lab.training.phrases import NOTES
from tandem_lab.training.synthetic import Question, make_answer

Floats = NDArray[np.float32]
PLAIN = "{name} likes {kind} {plural}."
"""The phrase of the notes from which sizes are predicted."""
LONGEST = 48
"""Tokens of an answer."""


class Imagination:
    """What the model and the embedder say is a function of the question, and is computed once."""

    def __init__(self, engine: Engine, embedder: TextEmbedder, titles: Mapping[tuple[str, str], str]) -> None:
        """titles: of the cloud's best pages, by the plural of a domain and the kind."""
        self.engine = engine
        self._embedder, self._titles = embedder, titles
        self._open = ""  # the question whose rows are there
        self._tokenizer = Tokenizer.from_str(engine.tokenizer_json)
        self.distributions = cache(self._distributions)
        self.similarities = cache(self._similarities)
        self._rows = cache(self._answer_rows)

    def kind_tokens(self, question: Question) -> list[int]:
        """The token that names each kind in an answer."""
        return [self._encode(f" {kind}")[0] for kind in question.domain.kinds]

    def sizes(
        self, question: Question, spec: SessionSpec, codec: Codec, has_payloads: bool
    ) -> list[list[tuple[int, int]]]:
        """Bytes of the id and the distribution of each step of the answer that each kind would have."""
        return [
            [
                (varint_bytes(token), self._payload_bytes(spec, codec, row, step) if has_payloads else 0)
                for step, (token, row) in enumerate(zip(tokens, rows, strict=True))
            ]
            for tokens, rows in self._rows(question)
        ]

    def _distributions(
        self, question: Question, prefix: tuple[int, ...], temperature: float, bound: float = 0.0
    ) -> Floats:
        """Next-token distributions after a prefix of the answer, [kinds, phrases, vocab]. temperature: above 0. bound:
        `device.privacy`, which the attacker knows; 0: none."""
        if question.text != self._open:
            self.engine.close(self._open)  # a question's rows take 100 MB
            self._open = question.text
            self.engine.open(question.text, question.text, [*_notes(question, NOTES), ""], LONGEST)
        logits = self.engine.next_logits(question.text, prefix) / temperature
        *noted, bare = torch.softmax(logits, dim=-1).numpy()
        rows = np.array([clip(row, bare, bound) if bound else row for row in noted])
        return np.asarray(rows.reshape(len(question.domain.kinds), len(NOTES), -1), dtype=np.float32)

    def _similarities(self, question: Question) -> NDArray[np.float64]:
        """Cosines of the question and each note, [kinds, phrases]."""
        vector = self._embedder.embed([question.text], is_query=True)[0]
        found = cosines(self._embedder.embed(_notes(question, NOTES)), vector)
        return found.reshape(len(question.domain.kinds), len(NOTES))

    def _payload_bytes(self, spec: SessionSpec, codec: Codec, logits: torch.Tensor, step: int) -> int:
        """logits: [vocab]."""
        law = mix_rows(logits[None], (0.0,), spec.sampling.temperature)
        if not spec.rules.has_race_lists:
            return len(CodecStates(codec).encode(law, ROOT))
        vote = RaceLists().encode(law)
        size, temperature = self.engine.vocab_size, spec.sampling.temperature
        return len(cut_vote(vote, spec.race_depth, size, seed=spec.seed, step=step, temperature=temperature))

    def _answer_rows(self, question: Question) -> list[tuple[list[int], torch.Tensor]]:
        """The tokens of the answer that each kind would have, its end included, with logits [tokens, vocab]."""
        found = []
        for kind, note in zip(question.domain.kinds, _notes(question, [PLAIN]), strict=True):
            title = self._titles[question.domain.plural, kind]
            text = make_answer(question.name, question.domain, kind, title)
            tokens = [*self._encode(f" {text}"), self.engine.eos_token_ids[0]]
            self.engine.open(text, question.text, [note], len(tokens))
            feed = Feed(text, tokens[:-1], num_logits=len(tokens))
            found.append((tokens, self.engine.forward([feed])[0][0].clone()))
            self.engine.close(text)
        return found

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)


def _notes(question: Question, phrases: Sequence[str]) -> list[str]:
    """One for each kind and phrase, kind by kind."""
    return [
        phrase.format(name=question.name, kind=kind, noun=question.domain.noun, plural=question.domain.plural)
        for kind in question.domain.kinds
        for phrase in phrases
    ]
