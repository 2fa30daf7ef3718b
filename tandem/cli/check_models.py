"""What `tandem doctor` finds out about the models of both parties: whether they can answer together.

Tokenizers and configurations are loaded, weights are not, and nothing is downloaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tandem.cli.checks import Check, missing, ok, refused, weak
from tandem.corpora import model_path
from tandem.errors import GenerationError
from tandem.topology import PARTIES, Party

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from tandem.config.schema import Config, PartyConfig

SAME_VOCABULARY = "set device.model and cloud.model to models of one family, which share a tokenizer"


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What one party's model is like, without its weights."""

    tokenizer: Tokenizer
    name: str  # of the tokenizer, in words
    template: str
    context_length: int | None


def check_models(config: Config, present: tuple[Party, ...] = PARTIES) -> list[Check]:
    """The tokenizer and template of each party whose model is on this machine, and how they compare."""
    facts: dict[Party, ModelFacts] = {}
    results: list[Check] = []
    for party in present:
        name = f"{party} prompt"
        try:
            facts[party] = load_facts(config.party(party))
        except GenerationError as error:
            results.append(refused(name, error))
        else:
            results.append(ok(name, _describe(facts[party])))
    if len(facts) == len(PARTIES):
        results += compare(*(facts[party] for party in PARTIES))
    return results


def load_facts(party: PartyConfig) -> ModelFacts:
    """Read what a party's settings name. Raises GenerationError."""
    from tandem.engine import model as models
    from tandem.engine.adapters import base_of
    from tandem.engine.places import expand_home
    from tandem.engine.prompt import PromptBuilder
    from tandem.engine.template import find_template
    from tandem.engine.tokenizer import describe_tokenizer

    path = expand_home(model_path(party.model))
    tokenizer, wrapper = models.load_tokenizer(path, is_local=True)
    template = find_template(party.template, base_of(path), wrapper, party.system_prompt)
    PromptBuilder(tokenizer, template, (), None)  # which refuses a template that cannot be split
    length = models.context_length(models.load_config(path, is_local=True))
    return ModelFacts(tokenizer, describe_tokenizer(tokenizer, wrapper), template.describe(), length)


def compare(device: ModelFacts, cloud: ModelFacts) -> list[Check]:
    """Whether models can work together, and what differs although they can."""
    from tandem.engine.tokenizer import find_difference, find_extra

    difference = find_difference(device.tokenizer, cloud.tokenizer, ("device", "cloud"))
    if difference:
        found = f"device: {device.name}; cloud: {cloud.name}: {difference}"
        vocabulary = missing("vocabulary", found, SAME_VOCABULARY)
    elif extra := find_extra(device.tokenizer, cloud.tokenizer, ("device", "cloud")):
        vocabulary = ok("vocabulary", f"{extra}; answers are of the tokens that both have")
    else:
        vocabulary = ok("vocabulary", "the same on both sides")
    return [vocabulary, _compare_templates(device, cloud), _compare_contexts(device, cloud)]


def _compare_templates(device: ModelFacts, cloud: ModelFacts) -> Check:
    if device.template == cloud.template:
        return ok("templates", "of one kind on both sides")
    found = f"device: {device.template}; cloud: {cloud.template}: the models are led to answers of different forms"
    return weak("templates", found, "unless you mean it, set device.template and cloud.template alike")


def _compare_contexts(device: ModelFacts, cloud: ModelFacts) -> Check:
    lengths = [facts.context_length for facts in (device, cloud)]
    known = [length for length in lengths if length is not None]
    if len(set(lengths)) == 1 or not known:
        return ok("contexts", "the same on both sides")
    found = f"device: {_tokens(lengths[0])}; cloud: {_tokens(lengths[1])}"
    return ok("contexts", f"{found}: a question and its answer must fit {_tokens(min(known))}")


def _describe(facts: ModelFacts) -> str:
    return f"{facts.name}; context of {_tokens(facts.context_length)}; template: {facts.template}"


def _tokens(length: int | None) -> str:
    return "any length" if length is None else f"{length:,} tokens"
