"""One pass of a model over new tokens of many rows of many sessions, whose bits do not depend on company.

All tokens of a pass stand in one line, [1, tokens]: everything in a model but attention treats each on its own.
Attention is computed segment by segment here, each against its own cache. A row's logits are a function of its own
tokens alone, bit for bit, because

- a token's column in the cache is its position, and what a row may not see is masked, not left out;
- matrix products whose sums would be ordered by the number of rows are avoided: linear layers see at most MAX_TOKENS
  tokens and keep float32 weights transposed, attention keeps keys transposed, has `min_columns` to MAX_COLUMNS query
  columns, and adds up values in blocks of VALUE_BLOCK columns;
- the line is padded to a `multiple` of tokens, so that functions like exp never reach the last few elements of a
  tensor, which the processor's vectors do not fill and which are computed by another routine.

Which sizes do is a property of the machine's libraries (docs/log/2026-11.md), so `find_fault` tries them when a
model is loaded.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from safetensors.torch import save
from transformers import AttentionInterface, DynamicCache

from tandem.engine.kv import Cache, CacheForm
from tandem.engine.places import decoder_layers
from tandem.engine.port import IsStale, Preempted
from tandem.engine.session import RowCache, RowModel, Segment

# ---- Keys and values ---------------------------------------------------------------------------------------


def _names(num_tensors: int) -> list[str]:
    return [f"{layer}.{part}" for part in ("keys", "values") for layer in range(num_tensors // 2)]


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """Without a copy where it is contiguous."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data


FORM = CacheForm("pt", _names, save, _bytes_of)
"""Documents' caches have `keys` and `values` of each layer, [key-value heads, tokens, head size]."""


def to_cache(layers: Sequence[tuple[torch.Tensor, torch.Tensor]], num_tokens: int) -> Cache:
    """A copy of all layers' keys and values, on the CPU."""
    tensors = [keys for keys, _ in layers] + [values for _, values in layers]
    contiguous = torch.contiguous_format
    copies = [tensor.to("cpu", copy=True, memory_format=contiguous) for tensor in tensors]
    return Cache(dict(zip(_names(len(copies)), copies, strict=True)), num_tokens)


def layers_of(cache: Cache, device: torch.device | str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Keys and values of each layer, on a device."""
    tensors = [tensor.to(device) for tensor in cache.tensors.values()]
    return list(zip(tensors[: len(tensors) // 2], tensors[len(tensors) // 2 :], strict=True))


BLOCK = 64
"""Capacities and the widths that attention sees are multiples of this."""


def round_up(num_columns: int) -> int:
    """The next multiple of BLOCK."""
    return -(-num_columns // BLOCK) * BLOCK


class TorchRows(RowCache):
    """Rows of a fixed capacity: keys are transposed, [rows, heads, size, capacity], values not.

    So both products of attention are of the kind whose sums do not depend on the number of query columns.
    """

    def __init__(self, num_rows: int, num_columns: int, device: torch.device | str = "cpu") -> None:
        """num_columns: that are expected; it grows if more come."""
        self.num_rows, self._device = num_rows, device
        self.capacity = round_up(num_columns)
        self.keys: dict[int, torch.Tensor] = {}  # by layer, from its first pass on
        self.values: dict[int, torch.Tensor] = {}

    def reserve(self, num_columns: int) -> None:
        """Make room for so many columns."""
        if num_columns <= self.capacity:
            return
        self.capacity = round_up(num_columns)
        for layer, keys in self.keys.items():
            missing = self.capacity - keys.shape[3]
            self.keys[layer] = torch.nn.functional.pad(keys, (0, missing))
            self.values[layer] = torch.nn.functional.pad(self.values[layer], (0, 0, 0, missing))

    def add_layer(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Make room for a layer whose keys and values look like these, [..., heads, tokens, size]."""
        heads, key_size, value_size = keys.shape[-3], keys.shape[-1], values.shape[-1]
        # Zeros, because a masked column weighs 0, and 0 times uninitialised memory may be NaN.
        self.keys[layer] = keys.new_zeros((self.num_rows, heads, key_size, self.capacity))
        self.values[layer] = values.new_zeros((self.num_rows, heads, self.capacity, value_size))

    def load(self, row: int, cache: Cache) -> None:
        """Copy a document's keys and values into the first columns of a row."""
        self.reserve(cache.num_tokens)
        for layer, (keys, values) in enumerate(layers_of(cache, self._device)):
            if layer not in self.keys:
                self.add_layer(layer, keys, values)
            self.keys[layer][row, :, :, : cache.num_tokens] = keys.transpose(1, 2)
            self.values[layer][row, :, : cache.num_tokens] = values

    def save(self, row: int, num_tokens: int) -> Cache:
        """The first tokens of a row."""
        layers = [
            (
                self.keys[layer][row, :, :, :num_tokens].transpose(1, 2),
                self.values[layer][row, :, :num_tokens],
            )
            for layer in sorted(self.keys)
        ]
        return to_cache(layers, num_tokens)


MAX_TOKENS = 128
"""Tokens of one pass; more are computed in several."""
MAX_COLUMNS = 64
"""Query columns of one product of attention, at most."""
VALUE_BLOCK = 128
"""Columns of the cache whose values are added up in one product. Libraries split longer sums at a place that depends on
the length: oneMKL above 192 on some processors."""
NAME = "tandem_rows"
"""The name of this attention in transformers."""

_IGNORED = frozenset(
    [
        "position_ids",
        "is_causal",
        "use_cache",
        "output_attentions",
        "output_hidden_states",
        "position_embeddings",
    ]
)
"""Options of attention that change nothing here."""
_running = threading.local()


class Unsupported(Exception):
    """The model asks for a kind of attention that is not computed here."""


@dataclass(eq=False)
class _Part(Segment):
    """A segment, in one pass."""

    positions: torch.Tensor = field(init=False)  # [rows, new]
    width: int = field(init=False)  # columns that attention sees
    _index: tuple[torch.Tensor, torch.Tensor] | None = field(init=False, default=None)  # where new columns go
    _masks: dict[Any, torch.Tensor] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.positions = torch.tensor(self.starts)[:, None] + torch.arange(self.num_new)
        end = max(self.starts) + self.num_new
        self.width = round_up(end)
        self.cache.reserve(end)

    def places_of_logits(self, start: int) -> list[int]:
        """Positions in the line of the tokens whose logits are computed, if this segment's first is at `start`."""
        columns = range(self.num_new - self.num_logits, self.num_new)
        return [start + row * self.num_new + column for row in range(self.num_rows) for column in columns]

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, how: _How
    ) -> torch.Tensor:
        """Store keys and values and attend. query, key, value: [heads, tokens, size]; result [tokens, heads, size]."""
        self._store(layer, key, value)
        last_row = self.first_row + self.num_rows
        keys = self.cache.keys[layer][self.first_row : last_row, :, :, : self.width]
        values = self.cache.values[layer][self.first_row : last_row, :, : self.width]
        heads = key.shape[0]
        groups = query.shape[0] // heads
        queries = query.view(heads, groups, self.num_rows, self.num_new, -1).permute(2, 0, 1, 3, 4)
        step = max(1, MAX_COLUMNS // groups)
        parts = [
            self._attend_columns(queries[:, :, :, at : at + step], at, keys, values, how)
            for at in range(0, self.num_new, step)
        ]
        whole = parts[0] if len(parts) == 1 else torch.cat(parts, dim=3)  # [rows, heads, groups, new, size]
        return whole.permute(0, 3, 1, 2, 4).reshape(self.num_tokens, heads * groups, -1)

    def _store(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        if layer not in self.cache.keys:
            self.cache.add_layer(layer, key, value)
        if self._index is None:
            rows = torch.arange(self.first_row, self.first_row + self.num_rows)[:, None]
            self._index = rows.to(key.device), self.positions.to(key.device)
        rows, columns = self._index
        shape = (key.shape[0], self.num_rows, self.num_new, -1)
        self.cache.keys[layer][rows, :, :, columns] = key.view(shape).permute(1, 2, 0, 3)
        self.cache.values[layer][rows, :, columns] = value.view(shape).permute(1, 2, 0, 3)

    def _attend_columns(
        self, query: torch.Tensor, at: int, keys: torch.Tensor, values: torch.Tensor, how: _How
    ) -> torch.Tensor:
        """query: [rows, heads, groups, some of the new, size], whose first is column `at`; the result likewise."""
        rows, heads, groups, count, _ = query.shape
        columns = query.reshape(rows, heads, groups * count, -1)
        if (missing := how.min_columns - groups * count) > 0:
            columns = torch.nn.functional.pad(columns, (0, 0, 0, missing))
        scores = _multiply(columns, keys).mul_(how.scaling)
        if how.softcap is not None:
            scores = torch.tanh(scores / how.softcap) * how.softcap
        scores.masked_fill_(self._mask(at, count, groups, how, scores.device), -torch.inf)
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
        result = weigh(weights, values)[:, :, : groups * count]
        return result.view(rows, heads, groups, count, -1)

    def _mask(self, at: int, count: int, groups: int, how: _How, device: torch.device) -> torch.Tensor:
        """True for what must not be seen: [rows, 1, query columns, width]. The same for all layers of a kind."""
        window = how.window
        key = (at, count, groups, window)
        if key not in self._masks:
            positions = (
                self.positions[:, None, at : at + count].expand(-1, groups, -1).reshape(self.num_rows, -1, 1)
            )
            if (missing := how.min_columns - groups * count) > 0:
                positions = torch.cat([positions, positions[:, -1:].expand(-1, missing, -1)], dim=1)
            columns = torch.arange(self.width)
            hidden = columns > positions
            if window is not None:
                hidden |= columns <= positions - window
            self._masks[key] = hidden[:, None].to(device)
        return self._masks[key]


def weigh(weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """weights @ values of [..., query columns, width] and [..., width, size], added up block by block.

    One product would order its sums by the number of columns.
    """
    width = weights.shape[-1]
    result = _multiply(weights[..., :VALUE_BLOCK], values[:, :, :VALUE_BLOCK])
    for at in range(VALUE_BLOCK, width, VALUE_BLOCK):
        result += _multiply(weights[..., at : at + VALUE_BLOCK], values[:, :, at : at + VALUE_BLOCK])
    return result


def _multiply(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """left @ right of [rows, heads, m, k] and [rows, heads, k, n].

    On a GPU never one product alone, for which cuBLAS has other kernels than for several.
    """
    if left.device.type == "cpu" or left.shape[0] * left.shape[1] > 1:
        return torch.matmul(left, right)
    return torch.matmul(left.expand(2, -1, -1, -1), right.expand(2, -1, -1, -1))[:1]


@dataclass(frozen=True, slots=True)
class _How:
    """The options of a layer's attention."""

    scaling: float
    softcap: float | None
    window: int | None  # columns that a token sees, itself included
    min_columns: int


class TorchModel(RowModel):
    """A causal model of transformers, whose pass asks before every decoder layer whether it is still wanted."""

    arithmetic: str
    """Part of what identifies stored caches: another way of computing gives other last bits."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.device: torch.device = model.device
        self._is_stale: IsStale | None = None
        for layer in decoder_layers(model):
            layer.register_forward_pre_hook(self._check)

    def run(self, is_stale: IsStale | None, **inputs: Any) -> torch.Tensor:
        """The logits of one pass over `inputs`; may raise Preempted."""
        self._is_stale = is_stale
        try:
            with torch.inference_mode():
                return torch.as_tensor(self.model(**inputs).logits)
        finally:
            self._is_stale = None

    def _check(self, _layer: torch.nn.Module, _inputs: Any) -> None:
        if self._is_stale is not None and self._is_stale():
            raise Preempted

    def empty(self, shape: tuple[int, ...]) -> torch.Tensor:
        """A tensor that is not filled, on the model's device."""
        return torch.empty(shape, device=self.device)

    def probabilities(self, logits: torch.Tensor, tokens: Sequence[int]) -> list[float]:
        """The softmax of each row of logits, at its token."""
        following = torch.tensor(tokens, device=logits.device)
        # Normalised row by row, so that the bits are the same however columns are grouped.
        chosen: list[float] = torch.softmax(logits, dim=-1).gather(1, following[:, None])[:, 0].tolist()
        return chosen


class BatchModel(TorchModel):
    """A model that computes segments of many caches in one pass."""

    max_tokens = MAX_TOKENS
    arithmetic = "rows-2"

    def __init__(self, model: Any) -> None:
        """Changes how the model's weights lie in memory; `release` undoes it."""
        super().__init__(model)
        self.multiple = 4  # of tokens: what passes are padded to
        self.min_columns = 2  # query columns of one product of attention, at least
        self.windows: dict[int, int | None] = {}  # by layer, as each asked in its last pass
        AttentionInterface.register(NAME, _attend)
        _transpose_weights(model, is_transposed=True)

    def make_cache(self, num_rows: int, num_columns: int) -> TorchRows:
        """A cache of tensors, on the model's device."""
        return TorchRows(num_rows, num_columns, self.device)

    def release(self) -> None:
        """Put the model's weights back as they were."""
        _transpose_weights(self.model, is_transposed=False)

    def __call__(self, segments: Sequence[Segment], is_stale: IsStale | None = None) -> list[torch.Tensor]:
        """The logits of all segments, in one pass.

        Whatever happens, nothing of the caches changes before the first of the new columns.
        """
        parts = [
            _Part(each.cache, each.first_row, each.starts, each.tokens, each.num_logits) for each in segments
        ]
        ids = [token for part in parts for row in part.tokens for token in row]
        positions = torch.cat([part.positions.flatten() for part in parts])
        starts = accumulate((part.num_tokens for part in parts[:-1]), initial=0)
        places = [
            at for part, start in zip(parts, starts, strict=True) for at in part.places_of_logits(start)
        ]
        padding = -len(ids) % self.multiple
        padded = places + [0] * (-len(places) % self.multiple or self.multiple * (not places))
        with self._attention(parts):
            logits = self.run(
                is_stale,
                input_ids=torch.tensor([ids + [0] * padding], device=self.device),
                position_ids=torch.nn.functional.pad(positions, (0, padding))[None].to(self.device),
                use_cache=False,
                logits_to_keep=torch.tensor(padded, device=self.device),
            )[0]
        split = logits[: len(places)].float().split([part.num_rows * part.num_logits for part in parts])
        return [
            rows.view(segment.num_rows, segment.num_logits, logits.shape[-1])
            for segment, rows in zip(segments, split, strict=True)
        ]

    @contextmanager
    def _attention(self, parts: Sequence[_Part]) -> Iterator[None]:
        """Our attention, for one pass: other users of the model find their own."""
        config = self.model.config
        before = config._attn_implementation
        config._attn_implementation = NAME
        _running.model, _running.parts = self, parts
        try:
            yield
        finally:
            config._attn_implementation = before
            del _running.model, _running.parts


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attend, called by transformers. query, key, value: [1, heads, tokens, size]; result [1, tokens, heads, size]."""
    unknown = sorted(name for name, option in options.items() if option is not None and name not in _IGNORED)
    if unknown or attention_mask is not None:
        raise Unsupported(f"its attention uses {unknown[0] if unknown else 'a mask'}")
    model: BatchModel = _running.model
    parts: Sequence[_Part] = _running.parts
    model.windows[module.layer_idx] = sliding_window
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    how = _How(scaling, softcap, sliding_window, model.min_columns)
    output = query.new_zeros((query.shape[2], query.shape[1], value.shape[-1]))
    start = 0
    for part in parts:
        end = start + part.num_tokens
        output[start:end] = part.attend(
            module.layer_idx, query[0, :, start:end], key[0, :, start:end], value[0, :, start:end], how
        )
        start = end
    return output[None], None


def _transpose_weights(model: Any, *, is_transposed: bool) -> None:
    """Keep float32 weights of linear layers on the CPU as [in, out] or, as usual, [out, in] in memory.

    Their values and shapes stay. With [in, out], a product's sums have one order for every number of tokens from 2 on.
    """
    for module in model.modules():
        if type(module) is torch.nn.Linear:
            weight = module.weight
            if weight.dtype == torch.float32 and weight.device.type == "cpu":
                data = weight.data
                weight.data = data.t().contiguous().t() if is_transposed else data.contiguous()


# ---- Does this model, on this machine, give a row the same bits in any batch? --------------------------------
#
# Tried when a model is loaded: a few random rows are computed in one pass, then again in other groupings, alone and
# with others, token by token and in blocks. All logits must agree to the bit, and be those of an ordinary pass of the
# model to a tolerance.


NUM_ROWS, LENGTH = 4, 24
SIZES = ((4, 2), (16, 2), (4, 4), (16, 4), (16, 8))
"""Sizes to try, cheapest first: tokens to whose multiples passes are padded, and least query columns of attention."""
WHOLE = (MAX_TOKENS, MAX_COLUMNS)
"""The size on a GPU, where padding costs next to nothing: all passes have one shape, and cuBLAS chooses kernels by
shape."""
BLOCKS = (1, 2, 3, 5, 7, 6)
COMPANY = (0, 3, 10, 33, 61, MAX_TOKENS - 24)
"""How a row is fed, and how many tokens of others are computed with each block."""
TOLERANCE = {torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.15}
"""Largest root mean square of the differences from an ordinary pass, in standard deviations of its logits: three times
that of 28 layers 3,584 wide in bfloat16. The largest difference of all would grow with the vocabulary."""


def find_fault(batch: BatchModel, model: Any, vocab_size: int, context_length: int | None) -> str | None:
    """The reason why the model cannot be computed in batches here; None if it can. Sets what passes are padded to."""
    if "logits_to_keep" not in inspect.signature(model.forward).parameters:
        return "it does not say which logits it computes"
    length = min(LENGTH, context_length or LENGTH)
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(vocab_size, (NUM_ROWS, length), generator=generator).tolist()
    if not _sums_ignore_the_width(model.dtype, batch.device, generator):
        return "the last bits of attention depend on the width of the cache"
    sizes = SIZES if batch.device.type == "cpu" else (WHOLE,)
    try:
        for batch.multiple, batch.min_columns in sizes:
            expected = _feed(batch, TorchRows(NUM_ROWS, 1), rows, range(NUM_ROWS), 0, length)
            if _agree(batch, rows, expected[-1]):
                return _compare_with_plain(batch, model, rows[0], expected[0])
    except Unsupported as error:
        return str(error)
    except Exception as error:  # anything may come out of a model that was never run this way
        return f"it failed ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})"
    return "the last bits of a row depend on what else is in the batch"


def _sums_ignore_the_width(dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> bool:
    """Whether what attention adds up for a token is the same however far the cache reaches beyond it, and however many
    rows and heads there are.
    """
    weights = torch.rand(1, 2, MAX_COLUMNS, 2 * VALUE_BLOCK, generator=generator).to(device, dtype)
    values = torch.randn(1, 2, 2 * VALUE_BLOCK, MAX_COLUMNS, generator=generator).to(device, dtype)
    for live in range(BLOCK, 2 * VALUE_BLOCK, BLOCK):
        seen = weights.clone()
        seen[..., live - 3 :] = 0
        widths = range(live, 2 * VALUE_BLOCK + 1, BLOCK)
        sums = [weigh(seen[..., :width], values[:, :, :width]) for width in widths]
        alone = [weigh(seen[:, :1, :, :width], values[:, :1, :width]) for width in widths]
        if not all(torch.equal(each, sums[0]) for each in sums):
            return False
        if not all(torch.equal(each, sums[0][:, :1]) for each in alone):
            return False
    return True


def _feed(
    batch: BatchModel,
    cache: TorchRows,
    rows: Sequence[Sequence[int]],
    who: range,
    start: int,
    count: int,
    company: int = 0,
) -> torch.Tensor:
    """[rows, count, vocab] of `count` tokens of neighbours, with so many tokens of others in front."""
    tokens = [rows[row][start : start + count] for row in who]
    return batch([*_junk(company), Segment(cache, who[0], [start] * len(who), tokens, count)])[-1]


def _agree(batch: BatchModel, rows: list[list[int]], expected: torch.Tensor) -> bool:
    """Whether groupings of the same tokens give the last row the expected bits. expected: [tokens, vocab]."""
    last, everyone = range(NUM_ROWS - 1, NUM_ROWS), range(NUM_ROWS)
    length, blocks = len(rows[0]), list(BLOCKS)
    while sum(blocks) > length:
        blocks.pop()
    plans = [
        # fails most often, and soonest
        (last, [count for count in (length - 1, 1) if count], (0, COMPANY[-1])),
        (last, blocks, COMPANY[::-1]),
        (last, blocks[::-1], COMPANY),
        (everyone, blocks, [0] * len(blocks)),
    ]
    for who, counts, company in plans:
        cache, start = TorchRows(NUM_ROWS, 1), 0
        for count, num_others in zip(counts, company, strict=False):
            computed = _feed(batch, cache, rows, who, start, count, num_others)[-1]
            if not torch.equal(computed, expected[start : start + count]):
                return False
            start += count
    return True


def _junk(num_tokens: int) -> list[Segment]:
    """Rows of other tokens, in a cache of their own."""
    if num_tokens < 1:
        return []
    num_rows = 3 if num_tokens % 3 == 0 else 1
    tokens = [[(row + column) % 7 for column in range(num_tokens // num_rows)] for row in range(num_rows)]
    return [Segment(TorchRows(num_rows, num_tokens), 0, [0] * num_rows, tokens, 1)]


def _compare_with_plain(batch: BatchModel, model: Any, row: list[int], logits: torch.Tensor) -> str | None:
    """The oracle: an ordinary pass, without cache, by the model's own attention. And its sliding windows, which a short
    row would not show."""
    with torch.inference_mode():
        plain = model(input_ids=torch.tensor([row], device=batch.device), use_cache=False).logits[0]
    limit = TOLERANCE.get(plain.dtype, 1e-4) * float(plain.float().std())
    difference = float((plain.float() - logits.float()).square().mean().sqrt())
    if not difference <= limit:
        return f"its logits are off by {difference:.2g}"
    layers = DynamicCache(config=model.config).layers
    for index, layer in enumerate(layers):
        if batch.windows.get(index, -1) != getattr(layer, "sliding_window", None):
            return f"layer {index} does not say how far it sees"
    return None
