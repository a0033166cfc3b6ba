"""Reset, aliasing, and everything that lets one run touch another."""

from __future__ import annotations

import torch

from conformance.faults import plant
from conformance.shapes import TINY
from conformance.twin import Twin, TwinCache


@plant(
    "reset", "isolation.reset[shorter_after_longer]", mend="Set the past length to 0 in reset_cache, in every layer."
)
class ResetDoesNothing(Twin):
    """reset_cache returns the cache as it is."""

    def reset_cache(self, model, cache):
        return cache


@plant("reset", "isolation.reset[longer_after_shorter]", mend="Overwrite slots: do not add to what they hold.")
class ResetKeepsValues(Twin):
    """After a reset the old values are added to the new ones."""

    def reset_cache(self, model, cache):
        cache.stale = [values.clone() for _, values in cache.pairs]
        return super().reset_cache(model, cache)

    def extend(self, model, input_ids, cache):
        stale = iter(getattr(cache, "stale", []))
        self.next_stale = lambda: next(stale, None)
        return super().extend(model, input_ids, cache)

    def store(self, pair, k, v, slots):
        stale = self.next_stale()
        return super().store(pair, k, v if stale is None else v + stale[:, :, slots], slots)


@plant("reset", "positions.start_over", mend="Reset the position counter with the cache.")
class CounterNotReset(Twin):
    """The position counter survives a reset."""

    def extend(self, model, input_ids, cache):
        self.count = getattr(cache, "count", 0)
        cache.count = self.count + input_ids.shape[1]
        return super().extend(model, input_ids, cache)

    def positions(self, past, new, config):
        return (
            torch.arange(self.count, self.count + new) % config.n_positions
            if hasattr(self, "count")
            else (super().positions(past, new, config))
        )

    def forward(self, model, input_ids):
        self.count = 0
        return super().forward(model, input_ids)


@plant("reset", "isolation.a_b_a", mend="Carry out every reset, whatever was reset before.")
class ThirdRunStale(Twin):
    """The second reset is not carried out."""

    def reset_cache(self, model, cache):
        cache.resets = getattr(cache, "resets", 0) + 1
        return cache if cache.resets == 2 else super().reset_cache(model, cache)


@plant("reset", "isolation.new_cache", mend="Return an empty cache from init_cache: reset the one inside the model.")
class CacheOfTheModel(Twin):
    """There is one cache, inside the model, and asking for a new one gives it as it is."""

    def init_cache(self, model, batch_size, max_length):
        if not hasattr(model, "cache"):
            model.cache = super().init_cache(model, batch_size, max_length)
        return model.cache


@plant("reset", "isolation.uncached_after_cached", mend="Count positions from 0 where no cache is given.")
class UncachedGoesOn(Twin):
    """A call without a cache starts where the last cached run ended."""

    def extend(self, model, input_ids, cache):
        logits, cache = super().extend(model, input_ids, cache)
        model.count = cache.length
        return logits, cache

    def forward(self, model, input_ids):
        start = getattr(model, "count", 0)
        positions = torch.arange(start, start + input_ids.shape[1]) % model.config.n_positions
        return super().forward(model, input_ids, positions)


@plant("reset", "isolation.uncached_in_the_middle", mend="Leave the cache alone where none is given.")
class UncachedClearsTheCache(Twin):
    """A call without a cache resets the cache that is in use."""

    def extend(self, model, input_ids, cache):
        model.in_use = cache
        return super().extend(model, input_ids, cache)

    def forward(self, model, input_ids):
        if hasattr(model, "in_use"):
            model.in_use.length = 0
        return super().forward(model, input_ids)


@plant("reset", "isolation.after_an_error", mend="Check the input first, and let a reset forget everything.")
class HalfWritten(Twin):
    """A call counts its tokens before it looks at them, and a reset forgets only what was finished."""

    def check(self, model, input_ids, past, cache):
        if cache is not None:
            cache.owed = getattr(cache, "owed", 0) + input_ids.shape[1]
        super().check(model, input_ids, past, cache)
        if cache is not None:
            cache.owed -= input_ids.shape[1]

    def reset_cache(self, model, cache):
        cache.length = getattr(cache, "owed", 0)
        return cache


@plant("aliasing", "isolation.interleaved_caches", mend="Make new buffers for each cache.")
class CachesShareBuffers(Twin):
    """Caches of one model share their buffers."""

    def init_cache(self, model, batch_size, max_length):
        cache = super().init_cache(model, batch_size, max_length)
        if not hasattr(model, "pairs") or model.pairs[0][0].shape != cache.pairs[0][0].shape:
            model.pairs = cache.pairs
        cache.pairs = model.pairs
        return cache


@plant("aliasing", "isolation.interleaved_models", mend="Make buffers for each cache, not for the class.")
class ModelsShareBuffers(Twin):
    """Caches of all models share their buffers."""

    def init_cache(self, model, batch_size, max_length):
        cache = super().init_cache(model, batch_size, max_length)
        if not hasattr(self, "pairs") or self.pairs[0][0].shape != cache.pairs[0][0].shape:
            self.pairs = cache.pairs
        cache.pairs = self.pairs
        return cache


@plant("aliasing", "isolation.logits_stay", mend="Return a tensor that no later call writes to.")
class LogitsInOneBuffer(Twin):
    """The logits are a view of a buffer that the next call overwrites."""

    def head(self, model, x):
        logits = super().head(model, x)
        if not hasattr(model, "buffer") or model.buffer.dtype != logits.dtype:
            model.buffer = logits.new_empty(8 * TINY.n_positions * TINY.vocab_size)
        buffer = model.buffer[: logits.numel()].view(logits.shape)
        buffer.copy_(logits)
        return buffer


@plant("aliasing", "isolation.generate_leaves_caches_alone", mend="Make a cache of its own for each generation.")
class GenerateUsesTheLastCache(Twin):
    """generate runs in the cache that was made last, after resetting it."""

    def init_cache(self, model, batch_size, max_length):
        model.last_cache = super().init_cache(model, batch_size, max_length)
        return model.last_cache

    def cache_for(self, model, input_ids, max_new_tokens):
        cache = getattr(model, "last_cache", None)
        if cache is None or len(cache.pairs[0][0]) != len(input_ids):
            cache = self.init_cache(model, len(input_ids), model.config.n_positions)
        cache.length = 0
        return cache


@plant("roll-back", "rollback.truncate[5]", mend="Set the past length in truncate_cache, and cut what is read.")
class TruncateDoesNothing(Twin):
    """truncate_cache returns the cache as it is."""

    def truncate_cache(self, model, cache, length):
        return cache


@plant("roll-back", "rollback.truncate[all]", mend="Keep the first length tokens.")
class TruncateEmpties(Twin):
    """truncate_cache forgets every token."""

    def truncate_cache(self, model, cache, length):
        return super().truncate_cache(model, cache, 0)


@plant("roll-back", "rollback.truncate[8]", mend="Keep length tokens: slots 0 to length - 1.")
class TruncateKeepsOneTooFew(Twin):
    """One token more than asked for is forgotten."""

    def truncate_cache(self, model, cache, length):
        return super().truncate_cache(model, cache, length - 1)


@plant("batch", "isolation.batch_size_changes", raises=True, mend="Make buffers for the batch size that is asked for.")
class BuffersOfTheFirstCall(Twin):
    """The buffers are made for the first batch size and kept."""

    def init_cache(self, model, batch_size, max_length):
        if not hasattr(model, "rows"):
            model.rows = batch_size
        return TwinCache(model, model.rows, max_length)


@plant("reset", "isolation.reset[after_full]", mend="Set the past length to 0 whatever it was.")
class FullCacheNotReset(Twin):
    """A cache that is exactly full is not reset: what is compared is the slot that would come next."""

    def reset_cache(self, model, cache):
        return cache if cache.length == cache.pairs[0][0].shape[2] else super().reset_cache(model, cache)

    def extend(self, model, input_ids, cache):
        if cache.length == cache.pairs[0][0].shape[2]:
            cache.length = 1
        return super().extend(model, input_ids, cache)


@plant("reset", "isolation.capacity_changes", mend="Make buffers for the max_length that is asked for.")
class CapacityOfTheFirstCache(Twin):
    """The first cache's capacity holds for all: later tokens fall on its last slot."""

    def init_cache(self, model, batch_size, max_length):
        if not hasattr(model, "capacity"):
            model.capacity = max_length
        self.last_slot = model.capacity - 1
        return super().init_cache(model, batch_size, max_length)

    def slots(self, past, new):
        return super().slots(past, new).clamp(max=self.last_slot)
