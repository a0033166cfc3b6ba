"""The arithmetic of a block, its precision, and dropout."""

from __future__ import annotations

import math

import torch
from torch import nn

from conformance.faults import plant
from conformance.twin import Twin


class OtherEpsilon(Twin):
    epsilon: float

    def layer_norm(self, x, model, name):
        return nn.functional.layer_norm(x, x.shape[-1:], model[f"{name}.weight"], model[f"{name}.bias"], self.epsilon)


@plant("block arithmetic", "logits.small_weights", mend="Use the configuration's layer_norm_epsilon, 1e-5 in GPT-2.")
class EpsilonTooSmall(OtherEpsilon):
    """LayerNorm's epsilon is 1e-6."""

    epsilon = 1e-6


@plant("block arithmetic", "logits.small_weights", mend="Use the configuration's layer_norm_epsilon, 1e-5 in GPT-2.")
class NoEpsilon(OtherEpsilon):
    """LayerNorm's epsilon is 1e-12, as BERT's."""

    epsilon = 1e-12


@plant("block arithmetic", "logits.small_weights", mend="Divide by sqrt(variance + eps).")
class EpsilonOutsideTheRoot(Twin):
    """The norm divides by sqrt(variance) + eps."""

    def layer_norm(self, x, model, name):
        normed = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True, correction=0) + 1e-5)
        return normed * model[f"{name}.weight"] + model[f"{name}.bias"]


@plant("block arithmetic", "logits.full_sequence[1]", mend="Divide the variance by C: unbiased=False, or correction=0.")
class UnbiasedVariance(Twin):
    """The variance is divided by C - 1."""

    def layer_norm(self, x, model, name):
        normed = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt()
        return normed * model[f"{name}.weight"] + model[f"{name}.bias"]


@plant("block arithmetic", "logits.full_sequence[1]", mend="Use the tanh form: gelu(x, approximate='tanh').")
class ExactGelu(Twin):
    """The erf form of GELU in place of the tanh form."""

    def gelu(self, x):
        return nn.functional.gelu(x)


@plant(
    "block arithmetic",
    "logits.full_sequence[2]",
    mend="Divide scores by the square root of the head size, n_embd / n_head.",
)
class ScaledByWidth(Twin):
    """Scores are divided by sqrt(n_embd)."""

    def scale(self, n_embd, n_head):
        return 1 / math.sqrt(n_embd)


@plant("block arithmetic", "logits.full_sequence[2]", mend="Divide scores by the square root of the head size.")
class NotScaled(Twin):
    """Scores are not divided at all."""

    def scale(self, n_embd, n_head):
        return 1.0


@plant("block arithmetic", "logits.full_sequence[1]", mend="Apply ln_f to the last block's output, before the head.")
class NoFinalNorm(Twin):
    """ln_f is left out."""

    def layer_norm(self, x, model, name):
        return x if name == "ln_f" else super().layer_norm(x, model, name)


@plant("block arithmetic", "logits.full_sequence[1]", mend="Add to the stream itself: x = x + attn(ln_1(x)).")
class ResidualOfTheNormed(Twin):
    """The attention half adds to the normalised copy in place of the stream."""

    def block(self, model, i, x, *rest):
        x = self.layer_norm(x, model, f"h.{i}.ln_1")
        x = x + self.attention(model, i, x, *rest)
        return x + self.mlp(model, i, self.layer_norm(x, model, f"h.{i}.ln_2"))


@plant(
    "block arithmetic",
    "logits.full_sequence[1]",
    mend="Normalise what each half reads, not the sum: x = x + attn(ln_1(x)).",
)
class PostNorm(Twin):
    """Each half normalises its sum, as the first transformers did."""

    def block(self, model, i, x, *rest):
        x = self.layer_norm(x + self.attention(model, i, x, *rest), model, f"h.{i}.ln_1")
        return self.layer_norm(x + self.mlp(model, i, x), model, f"h.{i}.ln_2")


@plant("dtype", "logits.float64", mend="Keep float64 input in float64 in LayerNorm.")
class NormInFloat32(Twin):
    """LayerNorm rounds to float32 on the way, in a float64 model too."""

    def layer_norm(self, x, model, name):
        return super().layer_norm(x.float().to(x.dtype), model, name)


@plant(
    "dtype", "dtype.uncached[bfloat16]", mend="Divide scores by the square root of the head size in every precision."
)
class WrongScaleInHalf(Twin):
    """The half-precision path leaves the scale out."""

    def attention(self, model, i, x, *rest):
        self.half = x.dtype.itemsize == 2
        return super().attention(model, i, x, *rest)

    def scale(self, n_embd, n_head):
        return 1.0 if self.half else super().scale(n_embd, n_head)


@plant("mode", "smoke.repeatable", mend="Give dropout training=self.training, and call eval() in build.")
class DropoutInEval(Twin):
    """Attention's output is dropped at random, in eval mode too."""

    def merge_heads(self, x):
        return super().merge_heads(nn.functional.dropout(x, 0.1, training=True))


@plant("mode", "smoke.depends_on_input", mend="Compute the logits anew in each call.")
class ConstantAnswer(Twin):
    """The logits of the first call are kept and given again."""

    def forward(self, model, input_ids):
        if not hasattr(model, "kept"):
            model.kept = super().forward(model, input_ids)
        return model.kept


@plant("mode", "smoke.ids_unchanged", mend="Copy the ids before changing them.")
class ShiftsTheIds(Twin):
    """The caller's ids are rolled in place, as for a loss."""

    def forward(self, model, input_ids):
        logits = super().forward(model, input_ids)
        input_ids.copy_(torch.roll(input_ids, -1, dims=1))
        return logits


@plant(
    "block arithmetic",
    "logits.real_shape",
    "cache.real_shape",
    "greedy.real_shape",
    mend="Compute the head size from the configuration: n_embd // n_head.",
)
class HardCodedScale(Twin):
    """The scale is that of a head size of 8, which the small shapes have and GPT-2 has not."""

    def scale(self, n_embd, n_head):
        return 1 / math.sqrt(8)
