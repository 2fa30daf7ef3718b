"""Three people answer together, each from private notes of their own; no note leaves its owner.

Run it: python examples/federated.py [QUESTION]
A server drafts with a small model and has no documents. Each person's model votes on every token from that person's
notes, and only votes cross the links, here within one process. It downloads nothing, and takes about half a minute on
two CPU cores. Server and people run SmolLM2 where it is installed.
"""

import sys
import tempfile
from pathlib import Path

from tandem import Answer, Config, Tandem
from tandem.retrieval import build_index, load_embedder

QUESTION = "What time does the Sunday ferry to Vey leave?"
NOTES = {
    "ada": {"ferry.md": "The ferry to Vey leaves at 9:40 on Sundays. We take the bicycles along."},
    "ben": {"vey.md": "On Vey we stay at the blue house by the harbour. The key is under the third pot."},
    "cleo": {"dentist.txt": "The dentist has moved to Mill Street 14. He is closed on Sundays."},
}


def write_notes(folder: Path) -> dict[str, Path]:
    """The notes of each person, in a folder of their own."""
    for name, files in NOTES.items():
        (folder / name).mkdir()
        for file, text in files.items():
            (folder / name / file).write_text(text)
    return {name: folder / name for name in NOTES}


# --8<-- [start:settings]
def settings(notes: dict[str, Path], scratch: Path) -> Config:
    """An index for each person, and the settings of a cluster with all of them as workers."""
    embedder = load_embedder("auto")
    lines = ["[decoding]", 'mode = "federated"']
    for name, folder in notes.items():
        index = scratch / f"index-{name}"
        build_index(folder, index, embedder)
        lines += [f"[workers.{name}]", f'index = "{index}"']
    file = scratch / "federated.toml"
    file.write_text("\n".join(lines) + "\n")
    return Config.load(file)


# --8<-- [end:settings]


def describe(answer: Answer) -> str:
    """Whose documents were read, and how often the token was the one that the server had drafted."""
    counts = {name: sum(source.party == name for source in answer.sources) for name in NOTES}
    read = ", ".join(f"{count} of {name}" for name, count in counts.items())
    statistics = answer.statistics
    return f"notes read: {read}; drafts kept: {statistics.num_device_accepted} of {statistics.num_tokens}"


def main() -> None:
    """Index, start all parties, ask everybody, at the server and at ada, then one person alone."""
    question = sys.argv[1] if len(sys.argv) > 1 else QUESTION
    with tempfile.TemporaryDirectory() as scratch:
        config = settings(write_notes(Path(tempfile.mkdtemp(dir=scratch))), Path(scratch))
        with Tandem.launch(config) as tandem:
            answer = tandem.query(question, seed=7)
            print("together:", answer)
            print(describe(answer))
            at_ada = tandem.query(question, seed=7, home="ada")  # the same answer, with ada's own titles
            titles = sorted({source.title for source in at_ada.sources if source.title})
            print(f"asked at ada: {at_ada} (own notes: {', '.join(titles)})")
            for name in NOTES:
                print(f"{name} alone:", tandem.query(question, seed=7, only=name))


if __name__ == "__main__":
    main()
