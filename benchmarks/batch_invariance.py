"""Does a row get the same bits whatever else is computed with it?

Small random models of nine families, in float32 and bfloat16, with 1 and 2 threads. Batches of 64 rows
in all at most, as `benchmarks/_random_batches.py` describes them; all logits must be equal. The control feeds blocks to
a cache that grows, as transformers does by default, and must differ from token by token.

Prediction: 0 differences of 1,000 batches; the control differs for every family in float32.

Expected run time: 8 minutes on two idle cores, 2 on a GPU (`--device cuda`); `--smoke` 20 s.
"""

from __future__ import annotations

import logging
import random
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from benchmarks._common import finish, new_parser
from benchmarks._random_batches import count_differences
from tandem.engine.kv import MemoryStore
from tandem.plugins.torch.runner import TorchRunner

NUM_BATCHES = 1000
VOCAB, CONTEXT = 1000, 512
SMALL = {
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
}
WIDE = {**SMALL, "intermediate_size": 688}
SLIDING = {"sliding_window": 24}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", WIDE),
    "qwen2": ("qwen2", {**WIDE, "num_key_value_heads": 2}),
    "qwen2-sliding": (
        "qwen2",
        {**WIDE, **SLIDING, "num_key_value_heads": 2, "use_sliding_window": True, "max_window_layers": 1},
    ),
    "gpt-neox": ("gpt_neox", WIDE),
    "phi": ("phi", WIDE),
    "opt": ("opt", {**SMALL, "ffn_dim": 688, "word_embed_proj_dim": 256}),
    "gemma": ("gemma", {**WIDE, "num_key_value_heads": 1, "head_dim": 64}),
    "gemma2": ("gemma2", {**WIDE, **SLIDING, "num_key_value_heads": 2, "head_dim": 64}),
    "mistral": ("mistral", {**WIDE, **SLIDING, "num_key_value_heads": 2}),
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def random_model(family: str, dtype: str, device: str = "cpu") -> Any:
    """A model with random weights; nothing is read from the disk."""
    name, sizes = FAMILIES[family]
    torch.manual_seed(0)
    config = AutoConfig.for_model(name, vocab_size=VOCAB, pad_token_id=0, **sizes)
    return AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype]).eval().to(device)


def growing_differs(model: Any, draw: random.Random) -> bool:
    """The control: whether blocks in a growing cache differ from token by token in any bit."""
    tokens = [draw.randrange(VOCAB) for _ in range(32)]

    def logits(block: int) -> torch.Tensor:
        cache, parts = DynamicCache(), []
        with torch.inference_mode():
            for at in range(0, len(tokens), block):
                ids = torch.tensor([tokens[at : at + block]], device=model.device)
                parts.append(model(input_ids=ids, past_key_values=cache, use_cache=True).logits[0])
        return torch.cat(parts)

    return not torch.equal(logits(1), logits(8))


def try_family(
    family: str, dtype: str, num_batches: int, seed: int, device: str = "cpu"
) -> tuple[int, int, str | None]:
    """Of so many random batches: rows compared, rows that differ; and the self-check's fault, if any."""
    runner = TorchRunner(random_model(family, dtype, device))
    if runner.fault is not None:
        return 0, 0, runner.fault
    runner.caches.store = MemoryStore(1 << 30)
    return *count_differences(runner, num_batches, seed), None


def main() -> None:
    """All families, precisions and numbers of threads."""
    parser = new_parser(__doc__)
    parser.add_argument("--smoke", action="store_true", help="one batch in each setting, one thread")
    parser.add_argument("--batches", type=int, default=NUM_BATCHES)
    parser.add_argument("--device", default="cpu", help="of PyTorch: cpu, cuda")
    arguments = parser.parse_args()
    logging.disable()
    print("prediction: 0 rows differ; the growing cache differs for every family in float32")
    threads = (1,) if arguments.smoke or arguments.device != "cpu" else (1, 2)
    settings = [(count, family, dtype) for count in threads for family in FAMILIES for dtype in DTYPES]
    each = 1 if arguments.smoke else -(-arguments.batches // len(settings))
    num_rows = num_different = num_faults = num_batches = 0
    controls = []
    for seed, (num_threads, family, dtype) in enumerate(settings):
        torch.set_num_threads(num_threads)
        compared, different, fault = try_family(family, dtype, each, seed, arguments.device)
        num_rows, num_different, num_faults = (
            num_rows + compared,
            num_different + different,
            num_faults + bool(fault),
        )
        num_batches += 0 if fault else each
        print(
            f"{family} {dtype} {num_threads} threads: {different} of {compared} rows differ {fault or ''}",
            flush=True,
        )
        if dtype == "float32" and num_threads == 1:
            controls.append(growing_differs(random_model(family, dtype, arguments.device), random.Random(0)))
    print(f"growing cache: differs for {sum(controls)} of {len(controls)} families")
    finish(
        {
            "batches": num_batches,
            "rows": num_rows,
            "different": num_different,
            "faults": num_faults,
            "controls_that_differ": [sum(controls), len(controls)],
        }
    )
    sys.exit(1 if num_different or num_faults or not all(controls) else 0)


if __name__ == "__main__":
    main()
