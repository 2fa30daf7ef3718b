"""The bundled model's tokenizer: byte-level BPE, trained on generated text.

Every syllable of a made-up word is one token, whatever stands beside it, so that copying a title means copying
four tokens. Two things see to it: while training, text is cut at `_JOINT` between syllables, and syllables are
repeated until their merges come before all others. At use a space is put before the first word, so a name at the
start of a document has the same tokens as in the middle. Knows nothing of the model.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from tandem.corpora import DOCUMENT_TEMPLATE, QUERY_TEMPLATE
from tandem_lab.training import phrases
from tandem_lab.training.phrases import DOMAINS
from tandem_lab.training.synthetic import make_answer, make_distractor, make_note, make_page, make_question

VOCAB_SIZE = 2048
BOS, EOS, PAD = "<s>", "</s>", "<pad>"
BOS_ID, EOS_ID, PAD_ID = 0, 1, 2  # the trainer numbers special tokens first
MAX_LENGTH = 512

_JOINT = "|"
_NUM_TEXTS = 1500
_SYLLABLE_REPEATS = 20_000  # above the count of any pair of letters in _NUM_TEXTS texts


def train_tokenizer(rng: Random) -> Tokenizer:
    """A tokenizer of at most `VOCAB_SIZE` entries; the same `rng` state gives the same tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [  # of training only
            pre_tokenizers.Split(Regex(r"\|"), behavior="removed"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[BOS, EOS, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(rng), trainer)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )  # so the rows of a model of it begin
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    """Write tokenizer.json, its configuration for `AutoTokenizer`, and template.json."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "model_max_length": MAX_LENGTH,
        "clean_up_tokenization_spaces": False,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    template = {"document": DOCUMENT_TEMPLATE, "query": QUERY_TEMPLATE}
    (directory / "template.json").write_text(json.dumps(template, indent=2) + "\n")


def _texts(rng: Random) -> Iterator[str]:
    syllables = [" " + head for head in phrases.HEADS] + [*phrases.TAILS, *phrases.NAME_TAILS]
    for syllable in syllables:
        yield _JOINT.join([syllable] * _SYLLABLE_REPEATS)
    for _ in range(_NUM_TEXTS):
        yield _text(rng)


def _text(rng: Random) -> str:
    domain = rng.choice(DOMAINS)
    kind = rng.choice(domain.kinds)
    head, tail = rng.choice(phrases.HEADS), rng.choice(phrases.TAILS)
    name = title = f"{head}{_JOINT}{tail}"
    question = make_question(rng, name, domain, kind, title)
    parts = [
        make_note(rng, name, domain, kind, 4).text,
        make_page(rng, domain, kind, title, 4, has_headline=False).text,
        make_distractor(rng, title, 3).text,
    ]
    documents = "".join(DOCUMENT_TEMPLATE.format(document=part) for part in parts)
    query = QUERY_TEMPLATE.format(query=question.text)
    return f" {documents} {query} {make_answer(name, domain, kind, title)}"
