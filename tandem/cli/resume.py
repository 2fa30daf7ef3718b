"""`tandem resume`: the rest of an answer that was interrupted, failed, or went on without a party."""

from __future__ import annotations

from tandem.cli.ask import noting_kept, print_rest
from tandem.cli.options import (
    AsJson,
    ConfigFile,
    Overrides,
    Place,
    Quiet,
    ShowSources,
    load_settings,
    with_options,
)
from tandem.cli.output import StageLog
from tandem.cli.stream import follow
from tandem.cli.transcript import Transcript


@with_options("cluster.runtime")
def resume(
    *,
    place: Place,
    show_sources: ShowSources = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    config_file: ConfigFile = None,
    overrides: Overrides = None,
) -> int:
    """Go on with the newest answer that `tandem ask` could not finish, or not with all parties, from its tokens.

    Question, seed and options are those of before, so that the answer is the one that would have been; join link,
    models and documents must be the same, too, or nothing is done.
    """
    from tandem.client.resume import Unfinished

    log = StageLog(is_quiet=quiet)
    config = load_settings(config_file, overrides, log)
    unfinished = Unfinished.find()
    spec = unfinished.spec
    log(f"answer: going on after {unfinished.num_tokens} tokens")
    transcript = Transcript.create(spec.query, spec.seed, spec.only, spec.decoding)
    with place.open(config, log) as tandem, noting_kept(transcript, log):
        follow(tandem.stream_resumed(unfinished), transcript, log, is_silent=as_json)
    return print_rest(transcript, show_sources=show_sources, quiet=quiet, as_json=as_json)
