"""`tandem device`: one long-running process that keeps models, index and the link to a cloud for local commands."""

from __future__ import annotations

import contextlib

from typer import BadParameter

from tandem.cli.options import MODELS, Join, SettingsOptions, with_options
from tandem.cli.output import StageLog
from tandem.plugins.server.serve import NEEDED, require_modules


@with_options(*MODELS)
def device(join: Join = None, *, settings: SettingsOptions) -> int:
    """Run the device until it is stopped, joined to a cloud; `tandem ask` and `chat` find it on this machine.

    It keeps models, index and link, so that a question costs no start. Only commands of this user reach it.
    """
    if join is None:
        raise BadParameter("`tandem device` needs --join LINK; `tandem cloud serve` prints one.")
    require_modules("tandem device", "server", NEEDED)
    log = StageLog()
    config = settings.load(log)
    from tandem.client.device import device_folder, reserved
    from tandem.client.tandem import Tandem
    from tandem.config.schema import start_settings
    from tandem.plugins.server.app import create_app
    from tandem.plugins.server.runner import Server
    from tandem.topology import Party

    ready = "ready: `tandem ask QUESTION` and `tandem chat` ask this device, until Ctrl-C"
    with (
        reserved(device_folder(), start_settings(config, Party.DEVICE)) as listener,
        Tandem.join(join, config, progress=log) as tandem,
    ):
        server = Server(create_app(tandem), lambda: log(ready))
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[listener])
        log("stopping")
    return 0
