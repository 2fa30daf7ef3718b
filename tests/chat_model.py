"""A small chat model, made from a configuration: random weights, a tokenizer of bytes and a ChatML template.

For tests that need a model of their own without a download.
It writes no sensible word; everything else about it is as in a model of the Qwen2 family.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from tandem.corpora import BUNDLED
from tests.unit.engine.builders import byte_level

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "initializer_range": 0.2,
}


def build(
    folder: Path,
    *,
    family: str = "qwen2",
    seed: int = 0,
    chat_template: str | None = CHATML,
    own: Tokenizer | None = None,
    end: str = SPECIAL[0],
) -> Path:
    """Write model and tokenizer into a folder, and return it.

    All models have one vocabulary. chat_template: None: a base model, with no template of its own. own: another
    tokenizer, whose answers end with `end`.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    texts = [path.read_text("utf-8") for path in sorted(BUNDLED.rglob("*.md"))]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=own or byte_level(*SPECIAL, texts=texts, vocab_size=1024),
        eos_token=end,
        pad_token=end,
    )
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    config = AutoConfig.for_model(
        family, vocab_size=len(tokenizer), bos_token_id=None, eos_token_id=0, pad_token_id=0, **SIZES
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
