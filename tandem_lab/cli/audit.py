"""`tandem lab audit`: every kind of bytes that leaves the device for a question, counted in a real run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from tandem.cli.options import (
    QUESTION_SETTINGS,
    AsJson,
    Filters,
    Join,
    Seed,
    SettingsOptions,
    merge_filters,
    with_options,
)
from tandem.cli.output import StageLog, emit, print_json
from tandem.client.answers import new_seed
from tandem.client.ask import check_question
from tandem.errors import ConfigError

if TYPE_CHECKING:
    from tandem.config.parties import PartyConfig
    from tandem.config.schema import Config
    from tandem_lab.tally import Tally

WIDTH = 22


@with_options(*(key for key in QUESTION_SETTINGS if key != "cluster.runtime"))
def audit(
    question: Annotated[str, Argument(metavar="QUESTION", help="what to ask, in quotes", show_default=False)],
    *,
    seed: Seed = None,
    filters: Filters = None,
    join: Join = None,
    as_json: AsJson = False,
    settings: SettingsOptions,
) -> int:
    """Ask a question, and list what left the device for it: every kind of bytes, how many items, how many bytes.

    With --join the question goes to that cloud. Otherwise both parties run in this process, and what is counted is what
    would cross the link. The encryption's own bytes are not counted. With device.privacy it also shows what all answers
    so far have said of the documents, and what is left of device.privacy_budget.
    """
    check_question(question)
    log = StageLog(is_quiet=as_json)
    config = settings.load(log)
    if config.is_federated:
        raise ConfigError(
            '`tandem lab audit` counts what a device sends, but decoding.mode is "federated"; choose "dual" or '
            '"speculative".'
        )
    asked = {"seed": new_seed() if seed is None else seed, **merge_filters(filters or ())}
    tally, answer = count(question, config, join, log, asked)
    if as_json:
        print_json(
            {
                "question": question,
                "seed": answer.seed,
                "num_tokens": len(answer.tokens),
                "kinds": {
                    kind: {"count": tally.counts[kind], "bytes": tally.num_bytes[kind]}
                    for kind in tally.counts
                },
                "steps": said_here(answer),
                "num_frames": tally.num_frames,
                "total_bytes": tally.total_bytes,
                "degraded_from": answer.statistics.degraded_from,
                **({"privacy": spent_on(config.device)} if config.device.privacy else {}),
            }
        )
        return 0
    emit("\n".join(lines(tally, len(answer.tokens))))
    for step in said_here(answer):
        emit(f'Said of the documents before the answer, with the question: "{step}".')
    if config.device.privacy:
        emit("\n".join(privacy_lines(config)))
    if answer.degraded_reason:
        emit(answer.degraded_reason)
    return 0


def count(
    question: str, config: Config, join: str | None, log: StageLog, options: dict[str, Any]
) -> tuple[Tally, Any]:
    """Ask, and count what the device sends, until both parties have ended the question. Raises TandemError."""
    from tandem.client.tandem import Tandem
    from tandem.topology import Party
    from tandem_lab.tally import Tally, listening_queue

    tally = Tally()
    classes: Any = {"draft_queue": listening_queue(Party.DEVICE, tally.add)}
    if join is None:
        opened = Tandem.launch(config, runtime="inline", actor_classes=classes, progress=log)
    else:
        from tandem.joining.handshakes import hello_of, new_instance
        from tandem.joining.join_link import read_link

        tally.add_handshake(hello_of(read_link(join), new_instance()))
        opened = Tandem.join(join, config, actor_classes=classes, progress=log)
    with opened as tandem:
        answer = tandem.query(question, **options)
    return tally, answer


def said_here(answer: Any) -> list[str]:
    """What the device said in steps before an answer."""
    return [step.text for step in answer.steps if step.party == "device"]


def lines(tally: Tally, num_tokens: int) -> list[str]:
    """A table for people: kinds in their order, and the sum."""
    from tandem_lab.tally import KINDS

    rows = [
        f"{kind:<{WIDTH}} {tally.counts[kind]:>6} {tally.num_bytes[kind]:>9,}  {meaning}"
        for kind, meaning in KINDS.items()
        if kind in tally.counts
    ]
    absent = ", ".join(kind for kind in KINDS if kind not in tally.counts)
    return [
        f"Left the device for an answer of {num_tokens} tokens:",
        f"{'kind':<{WIDTH}} {'items':>6} {'bytes':>9}",
        *rows,
        f"{'sum':<{WIDTH}} {tally.num_frames:>6} {tally.total_bytes:>9,}  in {tally.num_frames} frames",
        *([f"Nothing of: {absent}."] if absent else []),
        "Never: documents, their text, titles, paths and scores, and the filter for the device's own documents.",
    ]


def spent_on(party: PartyConfig) -> dict[str, float | None]:
    """The bound of a party, and what all answers of this user so far have spent, in nats. Raises ConfigError."""
    from tandem.engine.privacy import Ledger, ledger_path

    spent = Ledger(ledger_path()).spent()
    budget = party.privacy_budget
    return {
        "bound": party.privacy,
        "spent": spent.nats,
        "num_draws": spent.num_draws,
        "budget": budget or None,
        "left": max(0.0, budget - spent.nats) if budget else None,
    }


def privacy_lines(config: Config) -> list[str]:
    """What is promised of the documents, for whom, and what is left of the budget."""
    from tandem.client.request import spec_of
    from tandem.topology import Party

    known, rules = spent_on(config.device), spec_of(config).rules
    left = f"{known['left']:.4g} of {known['budget']:g} nats left" if known["budget"] else "no budget is set"
    if config.sampling.temperature == 0:
        promise = "At temperature 0 no token is drawn: nothing is counted, and the bound is the only promise."
    elif rules.roles.role(Party.DEVICE).votes and not rules.votes_are_tokens:
        promise = "Votes show how probable tokens are: the count promises nothing, and no budget can be set."
    else:
        promise = "The count holds for whoever sees all that left the device, the cloud included."
    return [
        f"Privacy: no log probability differs by more than {known['bound']:g} nats from that without documents.",
        f"Spent so far: {known['spent']:.4g} nats by {known['num_draws']:,} tokens over all documents; {left}.",
        promise,
    ]
