"""Four plugins for Tandem, written as its own are: a file format, a codec, an engine and a command.

Install it:   pip install ./examples/plugins
Use it:       tandem index device ~/contacts                 (which now reads .vcf files)
              tandem ask QUESTION --set codec.name=halves --set device.engine=careful
              tandem vocabulary model.gguf
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, BinaryIO

import numpy as np
from typer import Argument

from tandem import plugins
from tandem.aggregation.distributions import Distribution
from tandem.cli.output import emit
from tandem.codecs import StatelessCodec
from tandem.codecs.base import MAX_VOCAB
from tandem.engine.port import LoadOptions
from tandem.errors import ProtocolError
from tandem.retrieval.documents import Document, with_metadata
from tandem.retrieval.readers import EMPTY, Unreadable, decode
from tandem.system.file_kinds import FileKind

# ---- a reader: a row of the table of file kinds, and the function that it names ------------------------------------

# --8<-- [start:reader]
CONTACTS = FileKind(
    (".vcf",),
    "tandem_example_plugins:read_contacts",
    "a contact",
    "its fields, one a line",
    has_headings=False,
)


def read_contacts(file: BinaryIO, source: str, problems: list[str]) -> Iterator[Document]:
    """A vCard file: one document per contact. Raises Unreadable if there is none; a problem would be a sentence."""
    lines = decode(file.read(), source, problems).replace("\r\n ", "").splitlines()
    fields = [line.replace(":", ": ", 1) for line in lines if not line.startswith(("BEGIN:", "VERSION:"))]
    contacts = [card.strip() for card in "\n".join(fields).split("END: VCARD") if card.strip()]
    if not contacts:
        raise Unreadable(EMPTY)
    for number, card in enumerate(contacts, 1):
        yield with_metadata(card, {"contact": number}, source=source)


# --8<-- [end:reader]
# ---- a codec ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Halves(StatelessCodec):
    """The two most probable tokens, each with probability 1/2. Bytes: two ids of 32 bits, ascending."""

    max_bytes = 8

    def encode(self, dense: np.ndarray) -> bytes:
        """Bytes of probabilities [vocab]."""
        return np.sort(np.argsort(-dense, kind="stable")[:2]).astype("<u4").tobytes()

    def decode(self, payload: bytes, vocab_size: int = MAX_VOCAB) -> Distribution:
        """What both parties use; ProtocolError if the bytes are malformed."""
        if len(payload) != self.max_bytes:
            raise ProtocolError(f"Two tokens have {self.max_bytes} bytes, got {len(payload)}.")
        try:
            return Distribution(np.frombuffer(payload, "<u4"), np.array([0.5, 0.5]), vocab_size=vocab_size)
        except ValueError as error:
            raise ProtocolError(f"The two tokens are malformed ({error}).") from error

    def fingerprint(self) -> str:
        """What must agree on both parties."""
        return "halves/1"


# ---- an engine: a function that loads a model and returns a `tandem.engine.session.Runner` ----------


def load_careful(path: str, options: LoadOptions) -> Any:
    """llama.cpp on one thread, whatever the settings say. An engine of your own would return its own `Runner`."""
    return plugins.find("engine", "llama")(path, replace(options, num_threads=1))


# ---- a command -------------------------------------------------------------------------------------------------------


def vocabulary(model: Annotated[str, Argument(metavar="MODEL", help="a folder or a GGUF file")]) -> int:
    """Print how many tokens a model's tokenizer has."""
    from tandem.engine.places import load_tokenizer

    tokenizer, _ = load_tokenizer(model)
    emit(f"{model}: {tokenizer.get_vocab_size():,} tokens")
    return 0
