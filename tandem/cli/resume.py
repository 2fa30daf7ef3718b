"""`tandem resume`: the rest of an answer that was interrupted, failed, or went on without a party."""

from __future__ import annotations

from tandem.cli.ask import noting_kept, print_rest
from tandem.cli.options import (
    Output,
    Place,
    Settings,
    with_options,
)
from tandem.cli.output import StageLog
from tandem.cli.stream import follow
from tandem.cli.transcript import Transcript


@with_options("cluster.runtime")
def resume(
    *,
    place: Place,
    output: Output,
    settings: Settings,
) -> int:
    """Go on with the newest answer that `tandem ask` could not finish, or not with all parties, from its tokens.

    Question, seed and options are those of before, so that the answer is the one that would have been; join link,
    models and documents must be the same, too, or nothing is done.
    """
    from tandem.client.resume import Unfinished

    log = StageLog(is_quiet=output.quiet)
    config = settings.load(log)
    unfinished = Unfinished.find()
    spec = unfinished.spec
    log(f"answer: going on after {unfinished.num_tokens} tokens")
    transcript = Transcript(spec.query, spec.seed, spec.only, spec.decoding)
    with place.open(config, log) as tandem, noting_kept(transcript, log):
        follow(tandem.stream_resumed(unfinished), transcript, log, is_silent=output.as_json)
    return print_rest(transcript, output)
