"""The checks behind `tandem doctor`.

Each looks at one thing, changes nothing that stays, and takes milliseconds: no model is loaded and no cluster
started. "missing" stops Tandem; "weak" makes something slow or impossible.
"""

from __future__ import annotations

import os
import resource
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from tandem.cli.checks_models import embedder, index, language_model
from tandem.cli.findings import Check, missing, ok, weak
from tandem.cli.folders import data_folder
from tandem.config import Config
from tandem.side import SIDES
