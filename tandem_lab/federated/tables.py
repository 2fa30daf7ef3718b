"""Cells as text for a person and as plain values for a script."""

from __future__ import annotations

from math import nan

from tandem_lab.federated.rows import Row, checks_of, rows_of
from tandem_lab.federated.systems import SYSTEMS
from tandem_lab.speculative.tables import Tables, shown

HEADER = (
    f"{'system':20} {'ms/token':>8} {'predicted':>9} {'off':>5} {'floors':>6} {'TTFT ms':>7} {'accepted':>8} "
    f"{'drafts':>11} {'passes':>11} {'up B':>6} {'down B':>6} {'vote B':>6} {'settled':>7} {'wrong':>5}  "
    "last vote"
)
LEGEND = """\
Measured/predicted; all but TTFT is per token. ms/token: after the tokens of the first verdict, median of runs.
predicted: from acceptance, floors, link, and the parties' own work as measured without a delay, on token-wise and
stop-and-wait answers; floors: predicted as if they had no work but the floors.
accepted: share of the committed tokens that the server had proposed. drafts: forwards of the server; passes: of a
worker. up, down: bytes from and to one worker on its data connection, with headers and acknowledgements; vote B: of a
vote's race list, without its frame. settled: steps that these lists settle at once, in percent, as predicted.
wrong: tokens that are not those of the draft-free loop. last vote: for whose vote the others waited, in percent of the
tokens, by worker."""


def _line(row: Row) -> str:
    last = "/".join(shown(100 * share, ".0f") for share in row.waited_for.values())
    return (
        f"{row.system:20} {shown(1e3 * row.token_s, '.1f'):>8} "
        f"{shown(1e3 * row.predicted_s, '.1f'):>9} {shown(row.deviation, '+.0%'):>5} "
        f"{shown(1e3 * row.predicted.get('floors_s', nan), '.1f'):>6} "
        f"{shown(1e3 * row.first_s, '.0f'):>7} {row.accepted:>8.2f} {_both(row, 'drafts'):>11} "
        f"{_both(row, 'passes'):>11} {shown(row.up_bytes, '.0f'):>6} "
        f"{shown(row.down_bytes, '.0f'):>6} "
        f"{shown(row.predicted.get('vote_bytes', nan), '.0f'):>6} "
        f"{shown(100 * row.predicted.get('certified', nan), '.1f'):>7} {row.num_wrong:>5}  {last}"
    ).rstrip()


def _both(row: Row, name: str) -> str:
    return f"{shown(getattr(row, name), '.2f')}/{shown(row.predicted.get(name, nan), '.2f')}"


TABLES = Tables(
    header=HEADER,
    legend=LEGEND,
    name_width=20,
    systems=SYSTEMS,
    rows_of=rows_of,
    checks_of=checks_of,
    line=_line,
)
text_of, values_of = TABLES.text_of, TABLES.values_of
