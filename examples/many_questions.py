"""Ask many questions side by side; answers come as they finish, and one that fails does not lose the others.

Run it: python examples/many_questions.py [FILE]
FILE holds a question per line; without it three questions about the documents that come with Tandem are asked.
"""

import sys
from pathlib import Path

from tandem import SamplingParams, Tandem

QUESTIONS = [
    "What is Ole's telephone number?",
    "What is the goat at the farm called?",
    "When was the lighthouse on Vey built?",
]


# --8<-- [start:ask]
def ask_all(questions: list[str]) -> None:
    """Every question with the same seed, at most four at once."""
    sampling = SamplingParams(max_new_tokens=32)
    with Tandem.launch() as tandem:
        for item in tandem.batch(questions, concurrency=4, sampling=sampling, seed=7):
            if item.answer is None:
                print(f"{item.index + 1}. {item.question} failed: {item.error}")
                continue
            print(f"{item.index + 1}. {item.question} {item.answer}")
            if item.answer.is_degraded:
                print(f"   {item.answer.degraded_reason}")


# --8<-- [end:ask]


def main() -> None:
    """The questions of a file, or three of our own."""
    ask_all(Path(sys.argv[1]).read_text().splitlines() if len(sys.argv) > 1 else QUESTIONS)


if __name__ == "__main__":
    main()
