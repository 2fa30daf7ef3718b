"""A drafter's trunk and head: blocks of the target that are copied and frozen, and one block more that learns.

FlexSpec (Section 3) freezes the target's last block and feeds it with embeddings. NOT in the paper: other blocks may be
the trunk, and the head is a decoder block, the final norm and the projection to the vocabulary, so that a drafter is an
ordinary model of the target's family with fewer layers.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tandem.engine.places import decoder_layers
from tandem.errors import GenerationError

if TYPE_CHECKING:
    import torch

TRUNKS = ("first", "last", "first+last")
"""Trunks with a name; a number n stands for the n first blocks."""
_FINAL_NORM = re.compile(r"(^|[._])(ln_f|[a-z_]*norm)$")


def trunk_blocks(trunk: str, num_layers: int) -> tuple[int, ...]:
    """Indices of the target's blocks that a trunk copies, ascending. Raises GenerationError."""
    if trunk in TRUNKS:
        first, last = 0, num_layers - 1
        named = {"first": (first,), "last": (last,), "first+last": tuple(sorted({first, last}))}
        return named[trunk]
    if not (trunk.isascii() and trunk.isdigit() and 1 <= int(trunk) <= num_layers):
        raise GenerationError(
            f"A trunk is one of {', '.join(TRUNKS)}, or a number of blocks from 1 to the target's {num_layers} "
            f"(got {trunk!r}); choose one of these."
        )
    return tuple(range(int(trunk)))


def make_drafter(target: Any, blocks: Sequence[int]) -> Any:
    """A model of the target's family in float32: these blocks of it and one more, which begins as its last block.

    Embeddings and blocks are frozen; the last block, the final norm and the projection to the vocabulary learn. The
    projection is a matrix of its own, even where the target's is its embedding. GenerationError if the family does
    not let itself be cut.
    """
    import torch
    from transformers import AutoModelForCausalLM

    copied = (*blocks, len(decoder_layers(target)) - 1)
    auto: Any = AutoModelForCausalLM
    try:
        drafter = auto.from_config(_cut_config(target.config, copied), dtype=torch.float32)
        drafter.load_state_dict(_cut_weights(target, copied))
    except Exception as error:  # anything may come out of a family whose blocks are not alike
        raise GenerationError(
            f"A {type(target).__name__} cannot be cut to {len(copied)} blocks "
            f"({(str(error).splitlines() or [''])[0]:.200}); train a drafter of another family."
        ) from None
    drafter.generation_config = copy.deepcopy(target.generation_config)
    freeze_trunk(drafter)
    return drafter.eval()


def freeze_trunk(drafter: Any) -> None:
    """Let the head learn, and nothing else."""
    for parameter in drafter.parameters():
        parameter.requires_grad_(False)
    for module in head_modules(drafter):
        for parameter in module.parameters():
            parameter.requires_grad_(True)


def head_modules(drafter: Any) -> list[torch.nn.Module]:
    """The last block, the norm before the projection, the projection."""
    layers = decoder_layers(drafter)
    inside = {id(module) for layer in layers for module in layer.modules()}
    norms = [
        module
        for name, module in drafter.named_modules()
        if id(module) not in inside and _FINAL_NORM.search(name) and not list(module.children())
    ]
    return [layers[-1], *norms, drafter.get_output_embeddings()]


def _cut_config(config: Any, copied: Sequence[int]) -> Any:
    """The target's configuration for these blocks of it, in this order."""
    cut = copy.deepcopy(config)
    text = cut.get_text_config(decoder=True)
    kinds = getattr(text, "layer_types", None)
    if kinds:
        text.layer_types = [kinds[block] for block in copied]
    text.num_hidden_layers = len(copied)
    cut.tie_word_embeddings = text.tie_word_embeddings = False
    return cut


def _cut_weights(target: Any, copied: Sequence[int]) -> dict[str, torch.Tensor]:
    prefix = _layers_name(target)
    weights: dict[str, torch.Tensor] = {}
    for name, value in target.state_dict().items():
        number, rest = _split(name, prefix)
        if number is None:
            weights[name] = value.float()
        for place, block in enumerate(copied):
            if number == block:
                weights[f"{prefix}.{place}.{rest}"] = value.float()
    return weights


def _layers_name(model: Any) -> str:
    first = decoder_layers(model)[0]
    names: list[str] = [name for name, module in model.named_modules() if module is first]
    return names[0].removesuffix(".0")


def _split(name: str, prefix: str) -> tuple[int | None, str]:
    """The number of the block that a parameter belongs to, and its name there; None: it belongs to none."""
    if not name.startswith(f"{prefix}."):
        return None, name
    number, _, rest = name.removeprefix(f"{prefix}.").partition(".")
    return int(number), rest
