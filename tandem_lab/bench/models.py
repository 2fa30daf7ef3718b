"""Two random models that accept about half of each other's drafts: the hard case of the latency grid, made on the spot.

Both are one tiny Llama of 50,000 tokens with random weights; the cloud's output head is the device's plus noise, and
each reads its own documents. So their distributions have long tails, which makes payloads big, and the parties seldom
draft the same token: mostly one draft is committed and the other is not. They write no sensible word. Nothing is
downloaded.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from tandem.config.parties import WorkerConfig
from tandem.config.schema import Config, PartyConfig
from tandem.corpora import BUNDLED
from tandem.topology import PARTIES, SERVER, Party
from tandem_lab.bench.plan import HALF_KV_STORE, Plan

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

P = TypeVar("P", bound=PartyConfig)

VOCAB_SIZE = 50_000
BOS, EOS = "<s>", "</s>"
NOISE = 0.3
"""Standard deviation of the cloud's noise, in those of the head's weights."""
CLOSE_NOISE = 0.05
"""The same for two models that are close to each other."""
LOGIT_STD = 4.7
"""Of every row of logits over the vocabulary: with the rows of several documents mixed, the nucleus of mass 0.8 has
about a hundred tokens.
"""

_HIDDEN_SIZE = 64
_SEED = 13
_NUM_TRAINED = 2_000  # tokens of the bundled documents; all others are made-up words


@contextmanager
def configs_of(plan: Plan, config: Config) -> Iterator[dict[str, Config]]:
    """The settings with the models of every cell, by `Setting.group`; those made for it exist within the block."""
    with ExitStack() as stack:
        configs: dict[str, Config] = {"configured": config}
        for setting in {cell.setting.group: cell.setting for cell in plan.cells}.values():
            if setting.num_workers:
                configs[setting.group] = stack.enter_context(close_federation(config, setting.workers))
        if any(cell.setting.group == "half" for cell in plan.cells):
            configs["half"] = stack.enter_context(half_accepted(config))
        if any(cell.setting.group == "close" for cell in plan.cells):
            configs["close"] = stack.enter_context(close_to_each_other(config))
        yield configs


@contextmanager
def close_to_each_other(config: Config) -> Iterator[Config]:
    """As `half_accepted`, with less noise and without documents: a drafter whose tokens are mostly the cloud's."""
    with half_accepted(config, CLOSE_NOISE) as models:
        device, cloud = (replace(models.party(party), num_documents=0) for party in PARTIES)
        yield replace(models, device=device, cloud=cloud)


@contextmanager
def half_accepted(config: Config, noise: float = NOISE) -> Iterator[Config]:
    """`config` with these models in the place of both parties', in a folder that is removed at the end."""
    config = config.with_names()  # these models stand for the toys, and have as many documents
    with tempfile.TemporaryDirectory(prefix="tandem-half-") as folder:
        folders = {party: Path(folder, party) for party in PARTIES}
        build_pair(folders, noise)
        device, cloud = (_with_model(config.party(party), folders[party]) for party in PARTIES)
        yield replace(config, device=device, cloud=cloud)


@contextmanager
def close_federation(config: Config, workers: Sequence[str], noise: float = CLOSE_NOISE) -> Iterator[Config]:
    """`config` in mode "federated", with a server and workers that are close to each other and have no
    documents: a drafter whose tokens are mostly those of the workers' mixture."""
    with tempfile.TemporaryDirectory(prefix="tandem-close-") as folder:
        names = (SERVER, *workers)
        folders = {name: Path(folder, name) for name in names}
        build_models(list(folders.values()), noise)
        voters = {
            name: _with_model(WorkerConfig(num_documents=0, weight=1), folders[name]) for name in workers
        }
        server = _with_model(replace(config.server, num_documents=0), folders[SERVER])
        decoding = replace(config.decoding, mode="federated")
        yield replace(config, decoding=decoding, server=server, workers=voters)


def _with_model(party: P, folder: Path) -> P:
    return replace(party, model=str(folder), template="plain", kv_store=HALF_KV_STORE)


def build_pair(folders: dict[Party, Path], noise: float = NOISE) -> None:
    """Writes both models with their tokenizer. noise: see `NOISE`."""
    build_models([folders[party] for party in PARTIES], noise)


def build_models(folders: Sequence[Path], noise: float = NOISE) -> None:
    """Writes one model into each folder, with their tokenizer: one, and others that add noise of their own to its
    head. noise: see `NOISE`."""
    import torch
    from transformers import PreTrainedTokenizerFast
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call, unused-ignore]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=build_tokenizer(), bos_token=BOS, eos_token=EOS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        model = _build_model()
        first = model.lm_head.weight.detach().clone()
        for number, folder in enumerate(folders):
            if number:
                model.lm_head.weight.data = first + noise * first.std() * torch.randn_like(first)
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)


def build_tokenizer() -> Tokenizer:
    """Byte-level BPE of the bundled documents, filled up with made-up words to `VOCAB_SIZE` tokens."""
    trained = json.loads(_train(_byte_level(models.BPE())).to_str())["model"]
    fresh = (word for word in _made_up_words() if word not in trained["vocab"])
    tokens = [*trained["vocab"], *islice(fresh, VOCAB_SIZE - len(trained["vocab"]))]
    merges = [tuple(pair) for pair in trained["merges"]]
    tokenizer = _byte_level(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    tokenizer.add_special_tokens([BOS, EOS])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return tokenizer


def _byte_level(model: models.BPE) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _train(tokenizer: Tokenizer) -> Tokenizer:
    trainer = trainers.BpeTrainer(
        vocab_size=_NUM_TRAINED,
        special_tokens=[BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (path.read_text("utf-8") for path in sorted(BUNDLED.rglob("*.md")))
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _made_up_words() -> Iterator[str]:
    """Of three syllables each; the first letter stands for the space before a word."""
    syllables = ["".join(pair) for pair in product("bdfgklmnprstvz", "aeiou")]
    return ("Ġ" + "".join(word) for word in product(syllables, repeat=3))


def _build_model() -> LlamaForCausalLM:
    """Random weights; the rows of the head are scaled to `LOGIT_STD`."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=_HIDDEN_SIZE,
        intermediate_size=2 * _HIDDEN_SIZE,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        initializer_range=0.2,
        bos_token_id=0,
        eos_token_id=1,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():  # the final norm gives vectors of length sqrt(hidden size)
        model.lm_head.weight.normal_(std=LOGIT_STD / _HIDDEN_SIZE**0.5)
    return model
