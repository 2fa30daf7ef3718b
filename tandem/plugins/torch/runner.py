"""Computes the rows of sessions with a model of transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from typing import Any

import torch

from tandem.engine.kv import Cache, CacheForm
from tandem.engine.places import context_length
from tandem.engine.port import IsStale, LoadOptions, Logits
from tandem.engine.session import Runner
from tandem.errors import GenerationError
from tandem.plugins.torch import model as models
from tandem.plugins.torch.batch import FORM, BatchModel, TorchModel, find_fault
from tandem.plugins.torch.growing import GrowingModel


class TorchRunner(Runner):
    """A `Runner` of a model of transformers."""

    form: CacheForm = FORM

    def __init__(self, model: Any, *, is_batched: bool = True) -> None:
        """model: of transformers; not to be changed. is_batched: as of `LoadOptions`. Raises GenerationError."""
        models.check_cache(model)
        super().__init__()
        self.model = model
        self.vocab_size = int(model.config.get_text_config(decoder=True).vocab_size)  # of its output
        self.context_length = context_length(model.config)
        self.configurations = getattr(model, "generation_config", None), model.config
        self.shared: Any = None  # the model whose tensors it uses, as long as it is here
        self.row_model: TorchModel
        self.fault = "batching is off"
        if is_batched:
            self.row_model = batch = BatchModel(model)
            self.fault = find_fault(batch, model, self.vocab_size, self.context_length)
            if self.fault is not None:
                batch.release()
        if self.fault is not None:
            self.row_model = GrowingModel(model)

    @cached_property
    def weights_fingerprint(self) -> str:
        """A fingerprint of all weights, which are read once."""
        return models.fingerprint_weights(self.model)

    @property
    def computing_fingerprint(self) -> str:
        """A fingerprint of weights, libraries, kind of processor, threads."""
        computation = models.fingerprint_computation(self.model, self.weights_fingerprint)
        return sha256(f"{computation} {self.row_model.arithmetic}".encode()).hexdigest()[:32]

    def describe(self) -> dict[str, Any]:
        """PyTorch's version and the model's size and number format."""
        return {
            "engine": f"PyTorch {torch.__version__}",
            "num_parameters": self.model.num_parameters(),
            "num_bytes": self.model.num_parameters() * self.model.dtype.itemsize,
            "dtype": str(self.model.dtype).removeprefix("torch."),
        }

    @torch.inference_mode()
    def forward(
        self, answers: Mapping[str, Sequence[int]], num_logits: Mapping[str, int], is_stale: IsStale | None
    ) -> list[Logits]:
        """Compute what the answers need."""
        return super().forward(answers, num_logits, is_stale)

    @torch.inference_mode()
    def compute_document(self, tokens: tuple[int, ...]) -> Cache:
        """The cache of a document, computed alone."""
        return super().compute_document(tokens)


def load(path: str, options: LoadOptions) -> TorchRunner:
    """Load a folder, GGUF file or hub id. Raises GenerationError."""
    if options.num_threads is not None:
        if options.num_threads < 1:
            raise GenerationError(f"num_threads is {options.num_threads}; set it to at least 1.")
        torch.set_num_threads(options.num_threads)
    if not options.shares_weights:
        model = models.load_model(path, device=options.device, dtype=options.dtype)
        return TorchRunner(model, is_batched=options.is_batched)
    shared = models.load_shared(path, device=options.device, dtype=options.dtype)
    runner = TorchRunner(models.share_tensors(shared), is_batched=options.is_batched)
    runner.shared = shared
    return runner
