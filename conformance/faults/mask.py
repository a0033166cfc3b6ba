"""The causal mask without a cache, and what a batch shares."""

from __future__ import annotations

import torch

from conformance.faults import plant
from conformance.twin import Twin


@plant("mask", "causality.future_ids[5]", mend="Set the scores of later tokens to -inf before the softmax.")
class NoMask(Twin):
    """Every position sees the whole sequence."""

    def visible(self, past, new):
        return torch.ones(new, past + new, dtype=torch.bool)


@plant("mask", "causality.future_ids[12]", mend="Mask from the first diagonal above the main one: triu(diagonal=1).")
class OneFutureToken(Twin):
    """The diagonal is one off: each position sees the next."""

    def visible(self, past, new):
        return torch.arange(past, past + new)[:, None] + 1 >= torch.arange(past + new)


@plant("mask", "logits.full_sequence[13]", mend="Let each position see all positions before it.")
class ShortWindow(Twin):
    """A position sees eight tokens back and no more."""

    def visible(self, past, new):
        distance = torch.arange(past, past + new)[:, None] - torch.arange(past + new)
        return (distance >= 0) & (distance < 8)


@plant("mask", "causality.extreme_scores", mend="Fill masked scores with -inf, or the smallest number of their dtype.")
class FiniteFill(Twin):
    """Masked scores become -10,000, which real scores can undercut."""

    def mask(self, scores, visible):
        return scores.masked_fill(~visible, -1e4)


@plant("batch", "logits.batch", mend="Count positions from 0 in every row, and keep the batch axis apart.")
class RowsAsOneSequence(Twin):
    """Positions go on from row to row, as if the batch were one sequence."""

    def embed(self, model, input_ids, positions):
        rows, new = input_ids.shape
        shifted = (torch.arange(rows)[:, None] * new + positions) % model.config.n_positions
        return super().embed(model, input_ids, shifted)


@plant("batch", "logits.rows_independent", mend="Scale each row by its own values.")
class NormOverTheBatch(Twin):
    """The largest activation of the whole batch scales each row, as a shared quantisation does."""

    def head(self, model, x):
        largest = x.abs().max()
        return super().head(model, (x / largest * 127).round() / 127 * largest)


@plant("mask", "logits.long_sequence", mend="Let each position see all positions before it.")
class WindowOf64(Twin):
    """A position sees 64 tokens back and no more, which short sequences hide."""

    def visible(self, past, new):
        distance = torch.arange(past, past + new)[:, None] - torch.arange(past + new)
        return (distance >= 0) & (distance < 64)
