"""What a loaded model tells the other parties of itself, which they compare with their own before the first query."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tandem.errors import GenerationError

if TYPE_CHECKING:
    from tandem.engine.engine import Engine


def describe(engine: Engine) -> dict[str, Any]:
    """Plain values for JSON. Reads every weight once."""
    return {
        "tokenizer": engine.tokenizer_name,
        "template": engine.template.describe(),
        "template_fingerprint": engine.template.fingerprint,
        "writes_day": engine.template.writes_day,
        "vocabulary_fingerprint": engine.vocabulary_fingerprint,
        "vocabulary_prefixes": list(engine.vocabulary_prefixes),
        "weights_fingerprint": engine.weights_fingerprint,
        "vocab_size": engine.vocab_size,
        "num_parameters": engine.model.num_parameters(),
        "dtype": str(engine.model.dtype).removeprefix("torch."),
        "context_length": engine.context_length,
        "eos_token_ids": list(engine.eos_token_ids),
        "batching": engine.fallback,  # why sessions are not batched; "" if they are
    }


# ---- The file beside a drafter's weights that names its target ---------------------------------------------


CARD = "drafter.json"
_KEYS = ("target", "fingerprints", "trunk", "blocks", "loss", "acceptance")


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterCard:
    """How a drafter came about."""

    target: str  # the target's folder or hub id
    fingerprints: Mapping[
        str, str
    ]  # precision -> the target's weights in it, as `Engine.weights_fingerprint`
    trunk: str
    blocks: tuple[int, ...]  # of the target, copied and frozen
    loss: str
    acceptance: Mapping[str, float]  # on rows held out, when it was made

    def write(self, folder: Path) -> None:
        """Into the drafter's folder."""
        (folder / CARD).write_text(json.dumps(asdict(self), indent=2) + "\n", "utf-8")


def read_card(folder: str | Path) -> DrafterCard | None:
    """The card of a model's folder; None if it has none, or is a hub id. GenerationError if it is damaged."""
    path = Path(folder) / CARD
    if not path.is_file():
        return None
    try:
        values = json.loads(path.read_text("utf-8"))
        fields: dict[str, Any] = {key: values[key] for key in _KEYS}
        fields["fingerprints"] = {str(key): str(value) for key, value in fields["fingerprints"].items()}
        return DrafterCard(**fields | {"blocks": tuple(fields["blocks"]), "target": str(fields["target"])})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise GenerationError(
            f"{path} does not say which target the drafter was made for; train the drafter again, or delete the file."
        ) from None


def describe_card(folder: str | Path) -> dict[str, Any]:
    """What the other party is told of it: target and fingerprints; empty without a card, or with a damaged one."""
    try:
        card = read_card(folder)
    except GenerationError:
        return {}
    return {} if card is None else {"target": card.target, "fingerprints": dict(card.fingerprints)}


def find_mismatch(device: Mapping[str, Any], cloud: Mapping[str, Any]) -> str | None:
    """A sentence if the device's model was made to draft for another one than the cloud's; None if not, or unknown.

    device, cloud: what their decoders report. Weights that a precision was not recorded for are not compared.
    """
    made_for = device.get("drafter_for") or {}
    recorded = set(made_for.get("fingerprints", {}).values())
    found = cloud.get("weights_fingerprint")
    if not recorded or not found or found in recorded:
        return None
    return (
        f"The drafter {device.get('model')!r} was made for {made_for.get('target')!r}, whose weights differ from those "
        f"of the cloud's {cloud.get('model')!r}; answers are exact, but fewer drafts stand. Train one for it with "
        "`tandem draft train`."
    )
