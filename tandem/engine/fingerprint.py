"""Which model computed a cache, and how: what must be equal before a stored cache may be used.

Two loads of the same weights have one fingerprint, wherever their files are and whatever these are called. It
guards against mix-ups and not against forgery. Knows nothing of caches.
"""

from __future__ import annotations

import json
import zlib
from hashlib import sha256
from typing import Any

import torch
import transformers

VOLATILE = ("_name_or_path", "transformers_version")
"""Keys of a configuration that say where it came from."""


def weights_fingerprint(model: Any) -> str:
    """32 hexadecimal digits of a model's configuration and of all its weights, in the precision they have.

    Reads every weight once, at about the speed of the memory (4 GB/s with one core): sizes and times of the files
    would not tell a fine-tuned copy from its original. Of each tensor a CRC-32 is taken, so two models with one
    different tensor are told apart but for 1 in 2^32.
    """
    digest = sha256(_configuration(model).encode())
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)} {zlib.crc32(flat.numpy())}".encode())
    return digest.hexdigest()[:32]


def computing_fingerprint(model: Any, weights: str) -> str:
    """32 hexadecimal digits of `weights` and of what else the bits of a result depend on.

    That is the versions of PyTorch and transformers, the kind of processor, and the number of threads.
    """
    device: torch.device = model.device
    if device.type == "cuda":
        processor = str(torch.cuda.get_device_name(device))
    else:
        processor = f"{device.type} {torch.backends.cpu.get_cpu_capability()} {torch.get_num_threads()}"
    versions = f"{torch.__version__} {transformers.__version__}"
    return sha256(f"{weights} {versions} {processor}".encode()).hexdigest()[:32]


def _configuration(model: Any) -> str:
    """The configuration as JSON, without its origin, with the kind of attention that is really used."""
    values = json.loads(model.config.to_json_string(use_diff=False))
    kept = {key: value for key, value in values.items() if key not in VOLATILE}
    return json.dumps([kept, model.config._attn_implementation, type(model).__name__], sort_keys=True)
