"""Ask the documents that come with Tandem a question, then stream the answer to another one.

Run it: python examples/quickstart.py [QUESTION QUESTION]
Both parties run in this process. It downloads nothing, and takes some seconds on two CPU cores.
"""

import sys

from tandem import Tandem, TokenEvent

QUESTIONS = ["What is Ole's telephone number?", "When was the lighthouse on Vey built?"]


def main() -> None:
    """Two questions, models loaded once."""
    first, second = sys.argv[1:] or QUESTIONS
    with Tandem.launch() as tandem:
        answer = tandem.query(first, seed=7)
        print(answer)
        for source in answer.sources:
            # The device's own documents have a title and a score here; the cloud's are opaque ids.
            print(f"  {source.party}: {source.title or source.id}")

        for event in tandem.stream(second, seed=7):
            if isinstance(event, TokenEvent):
                print(event.text, end="", flush=True)
        print()


if __name__ == "__main__":
    main()
