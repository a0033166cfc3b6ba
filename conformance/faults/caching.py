"""Positions, mask and storage once a cache is in use."""

from __future__ import annotations

import torch

from conformance.faults import plant
from conformance.twin import Twin


@plant("positions", "positions.after_past[steps_after_prompt]")
class PositionsRestart(Twin):
    """Positions restart at 0 in each call."""

    def positions(self, past, new, config):
        return torch.arange(new)


@plant("positions", "positions.after_past[chunk_after_prompt]")
class PositionsRestartInChunks(Twin):
    """Positions restart at 0 when several tokens follow a past."""

    def positions(self, past, new, config):
        return torch.arange(new) if new > 1 else torch.arange(past, past + new)


@plant("positions", "positions.after_past[steps_from_empty]")
class PositionOneTooLarge(Twin):
    """After a past, positions count from past + 1."""

    def positions(self, past, new, config):
        return super().positions(past + (past > 0), new, config) % config.n_positions


@plant("positions", "cache.decode[5]")
class PastAddedTwice(Twin):
    """The past length is added to positions that already have it."""

    def positions(self, past, new, config):
        return torch.arange(2 * past, 2 * past + new) % config.n_positions


@plant("positions", "positions.uncached")
class PositionsFromOne(Twin):
    """Positions count from 1, and the last two share one."""

    def positions(self, past, new, config):
        return torch.arange(past + 1, past + new + 1).clamp(max=config.n_positions - 1)


@plant("positions", "cache.prefill[1]")
class NoPositionForOneToken(Twin):
    """An input of one token gets no position."""

    def embed(self, model, input_ids, positions):
        x = super().embed(model, input_ids, positions)
        return x if input_ids.shape[1] > 1 else model["wte.weight"][input_ids]


@plant("positions", "positions.explicit")
class PositionIdsIgnored(Twin):
    """position_ids is accepted and not used."""

    def forward(self, model, input_ids, position_ids=None):
        return super().forward(model, input_ids)


@plant("mask with a cache", "causality.future_ids_cached[prefill]")
class NoMaskWithACache(Twin):
    """The mask is applied only when no cache is given, so that the prefill sees the future."""

    def visible_with_cache(self, past, new, pairs):
        return torch.ones(new, past + new, dtype=torch.bool)


@plant("mask with a cache", "cache.chunked[uneven]", "causality.future_ids_cached[chunk]")
class NoMaskWithAPast(Twin):
    """The mask is left out as soon as there is a past."""

    def visible_with_cache(self, past, new, pairs):
        return torch.ones(new, past + new, dtype=torch.bool) if past else self.visible(past, new)


@plant("mask with a cache", "cache.decode[12]")
class TopLeftMask(Twin):
    """The triangle starts at the first key: is_causal=True with fewer queries than keys."""

    def visible_with_cache(self, past, new, pairs):
        return torch.ones(new, past + new, dtype=torch.bool).tril()


@plant("mask with a cache", "cache.every_split")
class TopLeftMaskInChunks(Twin):
    """The same, but one token sees everything: is_causal=T > 1."""

    def visible_with_cache(self, past, new, pairs):
        visible = torch.ones(new, past + new, dtype=torch.bool)
        return visible.tril() if new > 1 else visible


@plant("mask with a cache", "cache.capacity[n_positions]")
class ZeroSlotsVisible(Twin):
    """Slots that are not filled take part, with keys and values of zero."""

    def filled(self, cache, length):
        return cache.pairs

    def visible_with_cache(self, past, new, pairs):
        unfilled = pairs[0][0].shape[2] - past - new
        return torch.nn.functional.pad(self.visible(past, new), (0, unfilled), value=True)


@plant("mask with a cache", "cache.unused_slots")
class OneSlotTooMany(Twin):
    """One slot more than is filled is visible."""

    def filled(self, cache, length):
        return super().filled(cache, length + 1)

    def visible_with_cache(self, past, new, pairs):
        extra = pairs[0][0].shape[2] - past - new
        return torch.nn.functional.pad(self.visible(past, new), (0, extra), value=True)


@plant("mask with a cache", "cache.every_partition")
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


@plant("cache store", "cache.contents[prefill]")
class CacheInBfloat16(Twin):
    """Keys and values are rounded to bfloat16 on their way into the cache."""

    def store(self, pair, k, v, slots):
        return super().store(pair, k.bfloat16().to(k.dtype), v.bfloat16().to(v.dtype), slots)


@plant("cache store", "cache.precision")
class CacheInFloat64(Twin):
    """The cache is float64 whatever the model is, and read back rounded."""

    def init_cache(self, model, batch_size, max_length):
        cache = super().init_cache(model, batch_size, max_length)
        cache.pairs = [(keys.double(), values.double()) for keys, values in cache.pairs]
        return cache

    def store(self, pair, k, v, slots):
        keys, values = super().store(pair, k.double(), v.double(), slots)
        return keys.to(k.dtype), values.to(v.dtype)


@plant("cache store", "dtype.cache_precision[float16]")
class CacheInFloat32(CacheInFloat64):
    """The cache is float32 in a half-precision model too."""

    def init_cache(self, model, batch_size, max_length):
        cache = super().init_cache(model, batch_size, max_length)
        cache.pairs = [(keys.float(), values.float()) for keys, values in cache.pairs]
        return cache

    def store(self, pair, k, v, slots):
        keys, values = Twin.store(self, pair, k.float(), v.float(), slots)
        return keys.to(k.dtype), values.to(v.dtype)


@plant("dtype", "dtype.cached[bfloat16]")
class CacheBitsReinterpreted(Twin):
    """Half-precision keys are stored as the bits of the other half precision."""

    def store(self, pair, k, v, slots):
        if k.dtype == torch.bfloat16:
            k = k.view(torch.float16).to(torch.bfloat16)
        return super().store(pair, k, v, slots)


@plant("cache store", "cache.contents[chunks]")
class FirstSlotEmpty(Twin):
    """The counter moves on before the first write, so that slot 0 stays zero."""

    def store(self, pair, k, v, slots):
        keys, values = super().store(pair, k, v, slots)
        keys[:, :, 0] = values[:, :, 0] = 0
        return keys, values


@plant("cache store", "cache.token_by_token")
class OneCacheForAllLayers(Twin):
    """Every layer writes into the first layer's buffers."""

    def filled(self, cache, length):
        return super().filled(cache, length)[:1] * len(cache.pairs)


@plant("cache store", "cache.chunked[even]")
class NewInFrontOfOld(Twin):
    """New keys and values are put in front of the old ones, while the mask counts from the old."""

    def store(self, pair, k, v, slots):
        keys, values = super().store(pair, k, v, slots)
        new = k.shape[2]
        return keys.roll(new, dims=2), values.roll(new, dims=2)


@plant("cache store", "cache.decode[1]")
class KeysAndValuesExchanged(Twin):
    """With a past, keys are read as values."""

    def store(self, pair, k, v, slots):
        keys, values = super().store(pair, k, v, slots)
        return (values, keys) if keys.shape[2] > k.shape[2] else (keys, values)


@plant("cache store", "greedy.step_by_step")
class CurrentTokenUnseen(Twin):
    """A step attends to the past only: its own key and value are not in it yet."""

    def visible_with_cache(self, past, new, pairs):
        visible = super().visible_with_cache(past, new, pairs)
        return visible & (torch.arange(past + new) < past) if past else visible


@plant("batch", "cache.batch")
class FirstRowForAll(Twin):
    """All rows read the first row's cache."""

    def store(self, pair, k, v, slots):
        keys, values = super().store(pair, k, v, slots)
        return keys[:1].expand_as(keys), values[:1].expand_as(values)


@plant("limits", "cache.filled_up")
class LastSlotNeverUsed(Twin):
    """The cache holds one token less than asked for, and goes on silently: the last write hits the slot before."""

    def slots(self, past, new):
        return super().slots(past, new).clamp(max=38)


@plant("positions", "cache.long_sequence")
class PositionsInABfloat16(Twin):
    """Far into a sequence positions are counted in bfloat16, and rounded."""

    def positions(self, past, new, config):
        exact = super().positions(past, new, config)
        return (exact.bfloat16() * 3 / 3).long().clamp(max=config.n_positions - 1) if past > 64 else exact


@plant("mask with a cache", "cache.float64")
class TopLeftMaskInFloat64(Twin):
    """The float64 path has the triangle at the first key."""

    def visible_with_cache(self, past, new, pairs):
        visible = super().visible_with_cache(past, new, pairs)
        return torch.ones_like(visible).tril() if pairs[0][0].dtype == torch.float64 else visible
