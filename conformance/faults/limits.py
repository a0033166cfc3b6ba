"""What happens at the limits, and with input that is wrong."""

from __future__ import annotations

import torch

from conformance.faults import plant
from conformance.twin import Twin


@plant("limits", "limits.one_too_many", mend="Raise when more than n_positions tokens are given.")
class PositionsWrap(Twin):
    """Beyond n_positions, positions begin again at 0."""

    def most(self, model, cache):
        return 10**6

    def positions(self, past, new, config):
        return super().positions(past, new, config) % config.n_positions


@plant(
    "limits",
    "logits.full_sequence[n_positions]",
    raises=True,
    mend="Refuse only more than n_positions tokens: > in place of >=.",
)
class LastPositionRefused(Twin):
    """A sequence of exactly n_positions is refused."""

    def most(self, model, cache):
        return super().most(model, cache) - 1


@plant("limits", "limits.cache_beyond_n_positions[step]", mend="Raise when the cache is full.")
class LastPositionRepeated(Twin):
    """A full cache goes on at its last slot and position."""

    def most(self, model, cache):
        return 10**6

    def positions(self, past, new, config):
        return super().positions(past, new, config).clamp(max=config.n_positions - 1)

    def slots(self, past, new):
        return super().slots(past, new).clamp(max=39)

    def visible_with_cache(self, past, new, pairs):
        return super().visible_with_cache(past, new, pairs)[:, : pairs[0][0].shape[2]]


@plant(
    "limits",
    "limits.cache_beyond_n_positions[chunk]",
    "limits.cache_beyond_n_positions[prefill]",
    mend="Raise when a chunk does not fit into the cache.",
)
class ChunkCutOff(Twin):
    """What does not fit into the cache is dropped, and its logits are zeros."""

    def extend(self, model, input_ids, cache):
        room = cache.pairs[0][0].shape[2] - cache.length
        if input_ids.shape[1] <= room or room < 1:
            return super().extend(model, input_ids, cache)
        logits, cache = super().extend(model, input_ids[:, :room], cache)
        return torch.nn.functional.pad(logits, (0, 0, 0, input_ids.shape[1] - room)), cache


@plant(
    "limits",
    "limits.cache_beyond_max_length[step]",
    mend="Raise when the cache is full: absolute positions cannot slide.",
)
class OldestSlotOverwritten(Twin):
    """A full cache overwrites its oldest slot."""

    def most(self, model, cache):
        return model.config.n_positions

    def extend(self, model, input_ids, cache):
        self.capacity = cache.pairs[0][0].shape[2]
        return super().extend(model, input_ids, cache)

    def slots(self, past, new):
        return super().slots(past, new) % self.capacity

    def visible_with_cache(self, past, new, pairs):
        return super().visible_with_cache(past, new, pairs)[:, : self.capacity]


@plant(
    "limits",
    "limits.generate_beyond_n_positions[uncached]",
    mend="Raise when prompt and new tokens do not fit into n_positions.",
)
class GenerateCrops(Twin):
    """generate crops the prompt to what fits, without a word."""

    def check_room(self, model, total):
        """Refuse nothing."""

    def refed(self, ids):
        return ids[:, -40:]


@plant(
    "limits",
    "limits.generate_beyond_n_positions[cached]",
    mend="Raise when prompt and new tokens do not fit into n_positions.",
)
class GenerateStopsShort(Twin):
    """generate ends early when there is no room, without a word."""

    def generate(self, model, input_ids, max_new_tokens, **arguments):
        room = model.config.n_positions - input_ids.shape[1]
        return super().generate(model, input_ids, min(room, max_new_tokens), **arguments)


class Unchecked(Twin):
    def check(self, model, input_ids, past, cache):
        """Refuse nothing."""


@plant(
    "limits",
    "limits.id_out_of_range[negative]",
    "limits.empty_input",
    mend="Raise for negative ids and for empty input.",
)
class InputUnchecked(Unchecked):
    """Input is taken as it comes: -1 is the last row of the embedding, and no tokens give no logits."""


@plant("limits", "limits.id_out_of_range[vocab_size]", mend="Raise for ids of vocab_size or more.")
class IdsClipped(Unchecked):
    """Ids beyond the vocabulary are clipped to the last one."""

    def embed(self, model, input_ids, positions):
        return super().embed(model, input_ids.clamp(max=model.config.vocab_size - 1), positions)


@plant("limits", "limits.wrong_dtype", mend="Raise for ids that are no integers.")
class FloatIdsTruncated(Unchecked):
    """Floating-point ids are cut to integers."""

    def embed(self, model, input_ids, positions):
        return super().embed(model, input_ids.long(), positions)


@plant("limits", "limits.wrong_rank", mend="Raise unless ids have two axes, [B, T].")
class OneAxisTakenForABatch(Unchecked):
    """Ids without a batch axis are taken for a batch of one-token sequences."""

    def forward(self, model, input_ids):
        return super().forward(model, input_ids if input_ids.dim() == 2 else input_ids[:, None])


class UncheckedWithACache(Twin):
    def check(self, model, input_ids, past, cache):
        if cache is None:
            super().check(model, input_ids, past, cache)


@plant(
    "limits", "limits.wrong_extend[negative]", "limits.wrong_extend[empty]", mend="Check ids with a cache as without."
)
class InputUncheckedWithACache(UncheckedWithACache):
    """With a cache, input is taken as it comes: -1 is the last row of the embedding, no tokens give no logits."""


@plant("limits", "limits.wrong_extend[vocab_size]", mend="Raise for ids of vocab_size or more with a cache too.")
class IdsClippedWithACache(UncheckedWithACache):
    """With a cache, ids beyond the vocabulary are clipped to the last one."""

    def embed(self, model, input_ids, positions):
        return super().embed(model, input_ids.clamp(max=model.config.vocab_size - 1), positions)


@plant("limits", "limits.wrong_extend[float]", mend="Raise for ids that are no integers with a cache too.")
class FloatIdsWithACache(UncheckedWithACache):
    """With a cache, floating-point ids are cut to integers."""

    def embed(self, model, input_ids, positions):
        return super().embed(model, input_ids.long(), positions)


@plant("limits", "limits.wrong_extend[other_rows]", mend="Raise when the number of rows is not the cache's.")
class OneRowForTwo(Twin):
    """Rows that the cache was not made for are computed with the first row's past."""

    def store(self, pair, k, v, slots):
        keys, values = (buffer.repeat(len(k) // len(buffer), 1, 1, 1) for buffer in pair)
        return super().store((keys, values), k, v, slots)


@plant("limits", "limits.wrong_prompt[vocab_size]", mend="Raise for ids outside the vocabulary in generate too.")
class PromptClipped(Twin):
    """generate clips the ids of its prompt."""

    def generate(self, model, input_ids, max_new_tokens, **arguments):
        return super().generate(model, input_ids.clamp(0, model.config.vocab_size - 1), max_new_tokens, **arguments)
