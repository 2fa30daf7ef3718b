"""GGUF files converted once for PyTorch; importing this needs neither PyTorch nor transformers.

transformers dequantises all of such a file at every load: for 135 million parameters in 4 bits that takes 15 s of
processor time and 0.9 GB, where loading the same weights from safetensors takes 2 s and 0.5 GB. So they are converted
to a folder in the user's cache, whose name holds the file's SHA-256, the precision and the versions of what converted
it: both parties get the same bits, wherever their files are.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from hashlib import sha256
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tandem import plugins
from tandem.errors import GenerationError, install_line
from tandem.system.paths import cache_folder

FORMAT = 2
"""The format of the converted folders."""
GGUF = plugins.find("model_format", "gguf")
_NEEDED = ("torch", "transformers", "gguf", "accelerate")


def describe(model: str, dtype: str) -> str:
    """One sentence on what `convert` will do with a model, with sizes; "" where nothing. Raises GenerationError."""
    file = GGUF.find(model)
    if file is None or _folder(file, dtype).is_dir():
        return ""
    size, memory = file.stat().st_size, GGUF.check(file).memory_bytes(dtype)
    return (
        f"converting {file.name} once, from {size / 1e9:.2f} GB on disk to {memory / 1e9:.2f} GB in memory and in the "
        f"cache, as {dtype}"
    )


def convert(file: Path, dtype: str) -> Path:
    """The folder of this file's model in a precision, as save_pretrained writes it; made unless it is there.

    Processes that need it at the same time wait for the first. Raises GenerationError.
    """
    num_bytes = GGUF.check(file).memory_bytes(dtype)
    folder = _folder(file, dtype)
    if folder.is_dir():
        return folder
    above, name = folder.parent, folder.name.rpartition("-")[0]
    try:
        above.mkdir(parents=True, exist_ok=True)
        with (above / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():
                if (free := shutil.disk_usage(above).free) < num_bytes:
                    raise OSError(f"{free / 1e9:.1f} GB are free")
                for stale in above.glob(f"{name}-*"):  # of other versions, or unfinished
                    shutil.rmtree(stale)
                unfinished = folder.with_name(f"{folder.name}.part")
                _write(file, dtype, unfinished)
                unfinished.rename(folder)
    except OSError as error:
        raise GenerationError(
            f"The converted model of {str(file)!r} cannot be written to {above} ({error.strerror or error}); free "
            f"{num_bytes / 1e9:.1f} GB there, or set XDG_CACHE_HOME to another folder."
        ) from None
    return folder


def _folder(file: Path, dtype: str) -> Path:
    """The folder of a converted file. Raises GenerationError where the packages that convert it are missing."""
    if not all(map(find_spec, _NEEDED)):
        raise GenerationError(
            f"{str(file)!r} is a GGUF file, which PyTorch computes with the packages {', '.join(_NEEDED)}, of which "
            f"some are not installed; run `{install_line('torch')}`."
        )
    versions = sha256(f"{FORMAT} {version('transformers')} {version('gguf')}".encode()).hexdigest()[:8]
    return cache_folder() / "models" / f"{GGUF.fingerprint(file)}-{dtype}-{versions}"


def _write(file: Path, dtype: str, folder: Path) -> None:
    """Weights, configuration and tokenizer of a file, in a new folder."""
    import torch
    from transformers import AutoModelForCausalLM, modeling_gguf_pytorch_utils

    reading: Any = modeling_gguf_pytorch_utils
    reading.tqdm = lambda tensors, **_: tensors  # a bar that no setting of transformers turns off
    auto: Any = AutoModelForCausalLM
    model, report = auto.from_pretrained(
        str(file.parent),
        gguf_file=file.name,
        trust_remote_code=False,
        dtype=getattr(torch, dtype),
        output_loading_info=True,
    )
    if missing := sorted(report["missing_keys"]):  # transformers would fill them with random numbers
        raise GenerationError(
            f"{str(file)!r} lacks {len(missing)} of its model's weights ({missing[0]}, ...); use another file."
        )
    model.hf_quantizer = None  # what is saved is not quantised any more
    del model.config.quantization_config
    model.save_pretrained(folder)
    read_tokenizer(file).save_pretrained(folder)
    for written in folder.iterdir():
        with written.open("rb") as stream:
            os.fsync(stream.fileno())


def read_tokenizer(file: Path) -> Any:
    """The tokenizer of a file as transformers makes it, splitting texts as the file says."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(
        str(file.parent), gguf_file=file.name, trust_remote_code=False
    )
    GGUF.split_texts(file, tokenizer.backend_tokenizer)
    return tokenizer
