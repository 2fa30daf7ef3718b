"""Ask the bundled documents a question, then stream the answer to another one.

Run it: python examples/quickstart.py
It starts a local cluster of two Ray nodes, downloads nothing, and takes about 20 seconds on two CPU cores.
"""

from tandem import Tandem, TokenEvent


def main() -> None:
    """Two questions, one cluster."""
    with Tandem.launch() as tandem:
        answer = tandem.query("Which game should Mira try?", seed=7)
        print(answer)
        for source in answer.sources:
            # The device's own documents have a title and a score here; the cloud's are opaque ids.
            print(f"  {source.party}: {source.title or source.id}")

        for event in tandem.stream("Which walk is right for Drezi?", seed=7):
            if isinstance(event, TokenEvent):
                print(event.text, end="", flush=True)
        print()


if __name__ == "__main__":
    main()
