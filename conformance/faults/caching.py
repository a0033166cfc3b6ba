"""Positions, mask and storage once a cache is in use."""

from __future__ import annotations

import torch

from conformance.faults import plant
from conformance.twin import Twin


@plant(
    "positions",
    "positions.after_past[steps_after_prompt]",
    mend="Count positions from the past length: arange(past, past + T).",
)
class PositionsRestart(Twin):
    """Positions restart at 0 in each call."""

    def positions(self, past, new, config):
        return torch.arange(new)


@plant(
    "positions",
    "positions.after_past[chunk_after_prompt]",
    mend="Count positions from the past length for several new tokens too.",
)
class PositionsRestartInChunks(Twin):
    """Positions restart at 0 when several tokens follow a past."""

    def positions(self, past, new, config):
        return torch.arange(new) if new > 1 else torch.arange(past, past + new)


@plant(
    "positions",
    "positions.after_past[steps_from_empty]",
    mend="Start at the past length itself: the token after p others has position p.",
)
class PositionOneTooLarge(Twin):
    """After a past, positions count from past + 1."""

    def positions(self, past, new, config):
        return super().positions(past + (past > 0), new, config) % config.n_positions


@plant("positions", "cache.decode[5]", mend="Add the past length once.")
class PastAddedTwice(Twin):
    """The past length is added to positions that already have it."""

    def positions(self, past, new, config):
        return torch.arange(2 * past, 2 * past + new) % config.n_positions


@plant("positions", "positions.uncached", mend="Count positions from 0.")
class PositionsFromOne(Twin):
    """Positions count from 1, and the last two share one."""

    def positions(self, past, new, config):
        return torch.arange(past + 1, past + new + 1).clamp(max=config.n_positions - 1)


@plant("positions", "cache.prefill[1]", mend="Add wpe for an input of one token too.")
class NoPositionForOneToken(Twin):
    """An input of one token gets no position."""

    def embed(self, model, input_ids, positions):
        x = super().embed(model, input_ids, positions)
        return x if input_ids.shape[1] > 1 else model["wte.weight"][input_ids]


@plant("positions", "positions.explicit", mend="Look up wpe at position_ids where they are given.")
class PositionIdsIgnored(Twin):
    """position_ids is accepted and not used."""

    def forward(self, model, input_ids, position_ids=None):
        return super().forward(model, input_ids)


@plant("mask with a cache", "causality.future_ids_cached[prefill]", mend="Mask the prefill as without a cache.")
class NoMaskWithACache(Twin):
    """The mask is applied only when no cache is given, so that the prefill sees the future."""

    def visible_with_cache(self, past, new, pairs):
        return torch.ones(new, past + new, dtype=torch.bool)


@plant(
    "mask with a cache",
    "cache.chunked[uneven]",
    "causality.future_ids_cached[chunk]",
    mend="Let new token i see the past and the new tokens up to i: tril(diagonal=past).",
)
class NoMaskWithAPast(Twin):
    """The mask is left out as soon as there is a past."""

    def visible_with_cache(self, past, new, pairs):
        return torch.ones(new, past + new, dtype=torch.bool) if past else self.visible(past, new)


@plant("mask with a cache", "cache.decode[12]", mend="Let the triangle end at the last key: tril(diagonal=past).")
class TopLeftMask(Twin):
    """The triangle starts at the first key: is_causal=True with fewer queries than keys."""

    def visible_with_cache(self, past, new, pairs):
        return torch.ones(new, past + new, dtype=torch.bool).tril()


@plant(
    "mask with a cache",
    "cache.every_split",
    mend="Let the triangle end at the last key: with a past, is_causal=True is another mask.",
)
class TopLeftMaskInChunks(Twin):
    """In chunks the triangle starts at the first key, and one token sees everything: is_causal=T > 1."""

    def visible_with_cache(self, past, new, pairs):
        visible = torch.ones(new, past + new, dtype=torch.bool)
        return visible.tril() if new > 1 else visible


@plant(
    "mask with a cache",
    "cache.capacity[n_positions]",
    mend="Attend to the filled slots only: cut the buffers to past + T, or mask the rest.",
)
class ZeroSlotsVisible(Twin):
    """Slots that are not filled take part, with keys and values of zero."""

    def filled(self, cache, length):
        return cache.pairs

    def visible_with_cache(self, past, new, pairs):
        unfilled = pairs[0][0].shape[2] - past - new
        return torch.nn.functional.pad(self.visible(past, new), (0, unfilled), value=True)


@plant("mask with a cache", "cache.unused_slots", mend="Cut keys and values to past + T slots.")
class OneSlotTooMany(Twin):
    """One slot more than is filled is visible."""

    def filled(self, cache, length):
        return super().filled(cache, length + 1)

    def visible_with_cache(self, past, new, pairs):
        extra = pairs[0][0].shape[2] - past - new
        return torch.nn.functional.pad(self.visible(past, new), (0, extra), value=True)


@plant(
    "mask with a cache", "cache.every_partition", mend="Make the mask from the past length, not from a count of calls."
)
class NoMaskInTheThirdChunk(Twin):
    """From the third chunk on, the mask is left out."""

    def init_cache(self, model, batch_size, max_length):
        cache = super().init_cache(model, batch_size, max_length)
        cache.calls = 0
        return cache

    def extend(self, model, input_ids, cache):
        cache.calls += 1
        self.calls = cache.calls
        return super().extend(model, input_ids, cache)

    def visible_with_cache(self, past, new, pairs):
        visible = super().visible_with_cache(past, new, pairs)
        return torch.ones_like(visible) if self.calls > 2 else visible


@plant("cache store", "cache.contents[prefill]", mend="Keep keys and values in the model's precision.")
class CacheInBfloat16(Twin):
    """Keys and values are rounded to bfloat16 on their way into the cache."""

    def store(self, pair, k, v, slots):
        return super().store(pair, k.bfloat16().to(k.dtype), v.bfloat16().to(v.dtype), slots)


@plant("cache store", "cache.precision", mend="Make the buffers in the dtype of the weights.")
class CacheInFloat64(Twin):
    """The cache is float64 whatever the model is, and read back rounded."""

    def init_cache(self, model, batch_size, max_length):
        cache = super().init_cache(model, batch_size, max_length)
        cache.pairs = [(keys.double(), values.double()) for keys, values in cache.pairs]
        return cache

    def store(self, pair, k, v, slots):
        keys, values = super().store(pair, k.double(), v.double(), slots)
        return keys.to(k.dtype), values.to(v.dtype)


@plant("cache store", "dtype.cache_precision[float16]", mend="Make the buffers in the dtype of the weights.")
class CacheInFloat32(CacheInFloat64):
    """The cache is float32 in a half-precision model too."""

    def init_cache(self, model, batch_size, max_length):
        cache = super().init_cache(model, batch_size, max_length)
        cache.pairs = [(keys.float(), values.float()) for keys, values in cache.pairs]
        return cache

    def store(self, pair, k, v, slots):
        keys, values = Twin.store(self, pair, k.float(), v.float(), slots)
        return keys.to(k.dtype), values.to(v.dtype)


@plant("dtype", "dtype.cached[bfloat16]", mend="Convert with to(dtype); view(dtype) reinterprets the bits.")
class CacheBitsReinterpreted(Twin):
    """Half-precision keys are stored as the bits of the other half precision."""

    def store(self, pair, k, v, slots):
        if k.dtype == torch.bfloat16:
            k = k.view(torch.float16).to(torch.bfloat16)
        return super().store(pair, k, v, slots)


@plant("cache store", "cache.contents[chunks]", mend="Write first and move the counter on afterwards.")
class FirstSlotEmpty(Twin):
    """The counter moves on before the first write, so that slot 0 stays zero."""

    def store(self, pair, k, v, slots):
        keys, values = super().store(pair, k, v, slots)
        keys[:, :, 0] = values[:, :, 0] = 0
        return keys, values


@plant("cache store", "cache.token_by_token", mend="Give each layer keys and values of its own.")
class OneCacheForAllLayers(Twin):
    """Every layer writes into the first layer's buffers."""

    def filled(self, cache, length):
        return super().filled(cache, length)[:1] * len(cache.pairs)


@plant("cache store", "cache.chunked[even]", mend="Append the new keys and values: cat((old, new), dim=2).")
class NewInFrontOfOld(Twin):
    """New keys and values are put in front of the old ones, while the mask counts from the old."""

    def store(self, pair, k, v, slots):
        keys, values = super().store(pair, k, v, slots)
        new = k.shape[2]
        return keys.roll(new, dims=2), values.roll(new, dims=2)


@plant("cache store", "cache.decode[1]", mend="Return keys and values in the order in which they are unpacked.")
class KeysAndValuesExchanged(Twin):
    """With a past, keys are read as values."""

    def store(self, pair, k, v, slots):
        keys, values = super().store(pair, k, v, slots)
        return (values, keys) if keys.shape[2] > k.shape[2] else (keys, values)


@plant("cache store", "greedy.step_by_step", mend="Store the new key and value before attending.")
class CurrentTokenUnseen(Twin):
    """A step attends to the past only: its own key and value are not in it yet."""

    def visible_with_cache(self, past, new, pairs):
        visible = super().visible_with_cache(past, new, pairs)
        return visible & (torch.arange(past + new) < past) if past else visible


@plant("batch", "cache.batch", mend="Read every row's own cache: do not index or expand the batch axis.")
class FirstRowForAll(Twin):
    """All rows read the first row's cache."""

    def store(self, pair, k, v, slots):
        keys, values = super().store(pair, k, v, slots)
        return keys[:1].expand_as(keys), values[:1].expand_as(values)


@plant("limits", "cache.filled_up", mend="Make room for max_length tokens, and raise when it is full.")
class LastSlotNeverUsed(Twin):
    """The cache holds one token less than asked for, and goes on silently: the last write hits the slot before."""

    def slots(self, past, new):
        return super().slots(past, new).clamp(max=38)


@plant("positions", "cache.long_sequence", mend="Keep positions as integers.")
class PositionsInABfloat16(Twin):
    """Far into a sequence positions are counted in bfloat16, and rounded."""

    def positions(self, past, new, config):
        exact = super().positions(past, new, config)
        return (exact.bfloat16() * 3 / 3).long().clamp(max=config.n_positions - 1) if past > 64 else exact


@plant("mask with a cache", "cache.float64", mend="Use one mask for every precision.")
class TopLeftMaskInFloat64(Twin):
    """The float64 path has the triangle at the first key."""

    def visible_with_cache(self, past, new, pairs):
        visible = super().visible_with_cache(past, new, pairs)
        return torch.ones_like(visible).tril() if pairs[0][0].dtype == torch.float64 else visible
