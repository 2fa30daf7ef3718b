"""`tandem device`: one long-running process that keeps models, index and the link to a cloud for local commands."""

from __future__ import annotations

import contextlib
import threading

from typer import BadParameter

from tandem.cli.options import Join, Settings, with_options
from tandem.cli.output import StageLog


@with_options(models=True)
def device(join: Join = None, *, settings: Settings) -> int:
    """Run the device until it is stopped, joined to a cloud; `tandem ask` and `chat` find it on this machine.

    It keeps models, index and link, so that a question costs no start. Only commands of this user reach it.
    """
    if join is None:
        raise BadParameter("`tandem device` needs --join LINK; `tandem cloud serve` prints one.")
    log = StageLog()
    config = settings.load(log)
    from tandem.cluster.start_settings import start_settings
    from tandem.joining.join_link import read_link
    from tandem.sites.home import join as join_cloud
    from tandem.sites.socket import listening, reserved, socket_folder
    from tandem.topology import Party

    link, folder = read_link(join), socket_folder()
    with (
        reserved(folder),
        contextlib.closing(join_cloud(link, config, log)) as site,
        listening(site, config, folder, start_settings(config, Party.DEVICE)),
    ):
        log("ready: `tandem ask QUESTION` and `tandem chat` ask this device, until Ctrl-C")
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
        log("stopping")
    return 0
