"""`tandem resume`: the rest of an answer whose process, device or cloud died."""

from __future__ import annotations

from typing import Any

from tandem.cli.ask import Address, Fresh, Question, Quiet, ShowSources, open_tandem, print_rest
from tandem.cli.follow import follow, make_printer
from tandem.cli.options import (
    AsJson,
    ConfigFile,
    Join,
    Overrides,
    load_settings,
    setting_overrides,
    with_settings,
)
from tandem.cli.output import StageLog
from tandem.cli.transcript import Transcript
from tandem.config.checks import change
from tandem.config.schema import placement_of
from tandem.topology import Party


@with_settings("cluster.runtime")
def resume(
    address: Address = None,
    join: Join = None,
    fresh: Fresh = False,
    show_sources: ShowSources = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    config_file: ConfigFile = None,
    overrides: Overrides = None,
    **settings: Any,
) -> int:
    """Go on with the newest answer that `tandem ask` could not finish, from the tokens that were committed.

    Question, seed and options are those of before, so that the answer is the one that would have been; models and
    documents must be the same, too.
    """
    from tandem.client.resume import Unfinished

    log = StageLog(is_quiet=quiet)
    config = load_settings(config_file, overrides, setting_overrides(settings), log)
    unfinished = Unfinished.find()
    spec = unfinished.spec
    where = {"address": address or "", "join": join or "", "is_fresh": fresh}
    question = Question.create(spec.query, spec.seed, Party(spec.only) if spec.only else None, **where)
    log(f"answer: going on after {unfinished.num_tokens} tokens")
    decoding = change(config.decoding, {"mode": spec.mode, "placement": spec.placement}, "decoding")
    transcript = Transcript(spec.query, spec.seed, placement_of(decoding), question.only, mode=spec.mode)
    with open_tandem(question, config, log) as tandem:
        events = tandem.stream_resumed(unfinished)
        follow(events, transcript, make_printer(False, is_silent=as_json), log, is_quiet=quiet)
    return print_rest(transcript, show_sources=show_sources, quiet=quiet, as_json=as_json)
