"""Put your own documents on the device, and ask them together with the cloud's pages that come with Tandem.

Run it: python examples/your_documents.py [FOLDER QUESTION]
Files may be txt, md, html, pdf or jsonl. Without a folder it indexes two notes of its own, and asks for a fact of one
of them. The model is small; choose others with "device.model=..." and "cloud.model=...".
"""

import sys
import tempfile
from pathlib import Path

from tandem import Answer, Config, Tandem
from tandem.retrieval import BuildReport, build_index, load_embedder

NOTES = {
    "shed.md": "The code of the garden shed is 2085. The spade and the wheelbarrow are in there.",
    "boat.txt": "The boat lies at the small pier. Its oars are at Mrs Lind's house.",
}
QUESTION = "Where are the oars of the boat?"


def write_notes(folder: Path) -> Path:
    """Two notes, in a folder of their own."""
    for name, text in NOTES.items():
        (folder / name).write_text(text)
    return folder


def index_notes(notes: Path, index: Path) -> BuildReport:
    """The same as `tandem index device NOTES --out INDEX`; run it again after changes."""
    return build_index(notes, index, load_embedder("auto"))


def ask(index: Path, question: str) -> Answer:
    """An answer of both parties; the notes stay on the device."""
    with Tandem.launch(Config.load(None, [f"device.index={index}"])) as tandem:
        return tandem.query(question, seed=7)


def main() -> None:
    """Index, then ask."""
    with tempfile.TemporaryDirectory() as scratch:
        index = Path(scratch) / "index"
        notes = Path(sys.argv[1]) if len(sys.argv) > 1 else write_notes(Path(tempfile.mkdtemp(dir=scratch)))
        report = index_notes(notes, index)
        print(f"{report.num_files} files, {report.num_chunks} chunks")
        answer = ask(index, sys.argv[2] if len(sys.argv) > 2 else QUESTION)
        print(answer.text)
        print("from:", ", ".join(source.title for source in answer.sources if source.title))


if __name__ == "__main__":
    main()
