"""Weight layout, parameters, and how the adapter treats what it is given."""

from __future__ import annotations

import torch
import transformers
from torch import nn

from conformance.faults import plant
from conformance.reference import huggingface_model
from conformance.twin import Twin, TwinModel


@plant(
    "weight layout",
    "logits.full_sequence[1]",
    mend="Load attn.c_proj.weight as the other matrices: [in, out] in the checkpoint.",
)
class SquareProjectionTransposed(Twin):
    """Attention's output projection is square, so loading it [out, in] goes unnoticed."""

    def load(self, weights):
        return {name: tensor.T if "attn.c_proj.weight" in name else tensor for name, tensor in weights.items()}


@plant("weight layout", "logits.full_sequence[2]", mend="Split the fused projection into q, k, v, in this order.")
class QueriesAndKeysSwapped(Twin):
    """The fused projection is taken for k, q, v."""

    def split_qkv(self, x):
        k, q, v = x.chunk(3, dim=-1)
        return q, k, v


@plant("weight layout", "logits.full_sequence[2]", mend="View as [B, T, H, D], then transpose to [B, H, T, D].")
class HeadsSplitByView(Twin):
    """The head axis is viewed in front of the tokens without a transpose."""

    def split_heads(self, x, n_head):
        return x.reshape(x.shape[0], n_head, x.shape[1], -1)


@plant("weight layout", "logits.full_sequence[2]", mend="Transpose back to [B, T, H, D] before joining the heads.")
class HeadsMergedByView(Twin):
    """Heads are joined by a reshape without moving the head axis back."""

    def merge_heads(self, x):
        return x.reshape(x.shape[0], x.shape[2], -1)


@plant("weight layout", "logits.every_id", mend="Make the embedding without padding_idx.")
class PaddingRow(Twin):
    """Row 0 of the embedding is zeroed, as padding_idx=0 does."""

    def load(self, weights):
        weights["wte.weight"][0] = 0
        return weights


@plant(
    "parameters",
    "weights.every_tensor_used",
    mend="Load every ln_1, ln_2 and ln_f, weight and bias; load strictly to see what is missing.",
)
class LayerNormsNotLoaded(Twin):
    """LayerNorms keep the values they were initialised with."""

    def layer_norm(self, x, model, name):
        return nn.functional.layer_norm(x, x.shape[-1:], eps=model.config.layer_norm_epsilon)


@plant("parameters", "weights.every_tensor_used", mend="Give the fused projection its bias: qkv_bias=True.")
class NoBiasInAttention(Twin):
    """qkv_bias=False: the bias of the fused projection is left out."""

    def linear(self, x, model, name):
        product = x @ model[f"{name}.weight"]
        return product if name.endswith("c_attn") else product + model[f"{name}.bias"]


@plant("parameters", "weights.every_tensor_used", mend="Let the feed-forward half read through ln_2.")
class FirstNormUsedTwice(Twin):
    """The feed-forward half reads through ln_1."""

    def layer_norm(self, x, model, name):
        return super().layer_norm(x, model, name.replace("ln_2", "ln_1"))


@plant("parameters", "weights.head_has_no_bias", mend="Make the output layer without a bias.")
class StrayHeadBias(Twin):
    """The output layer has a bias that no checkpoint fills."""

    def head(self, model, x):
        return super().head(model, x) + 0.1 * torch.linspace(-1, 1, model.config.vocab_size, dtype=x.dtype)


@plant("parameters", "weights.head_is_tied", mend="Use wte as the output layer's weight, after loading.")
class HeadOfItsOwn(Twin):
    """The head is initialised, not tied to the embedding."""

    def load(self, weights):
        generator = torch.Generator().manual_seed(1)
        weights["head"] = 0.5 * torch.randn(weights["wte.weight"].shape, generator=generator)
        return weights

    def head(self, model, x):
        return x @ model["head"].T


@plant(
    "parameters",
    "weights.checkpoint_forms[no_head]",
    mend="Tie the head to wte whether or not the checkpoint has lm_head.weight.",
)
class HeadNotTiedWithoutATensor(Twin):
    """The head is read from the checkpoint, and left at zero where the checkpoint does not repeat it."""

    def is_parameter(self, name):
        return super().is_parameter(name) or name == "lm_head.weight"

    def head(self, model, x):
        names = dict(model.named_parameters())
        return x @ (model["lm_head.weight"] if "lm_head/weight" in names else 0 * model["wte.weight"]).T


@plant("parameters", "weights.checkpoint_forms[mask_buffers]", mend="Pass over attn.bias and attn.masked_bias.")
class MaskTakenForABias(Twin):
    """attn.bias of an old checkpoint, the causal mask, is added to the attention's output as if it were a bias."""

    def is_parameter(self, name):
        return super().is_parameter(name) or name.endswith(".attn.bias")

    def attention(self, model, i, x, *rest):
        y = super().attention(model, i, x, *rest)
        names = dict(model.named_parameters())
        return y + model[f"h.{i}.attn.bias"][0, 0, 5, : y.shape[-1]] if f"h/{i}/attn/bias" in names else y


@plant("parameters", "weights.two_models", mend="Keep weights in the model, not in its class or module.")
class WeightsOfTheClass(Twin):
    """Weights live in one place for all models: the second model overwrites the first."""

    def __init__(self):
        self.shared = {}

    def load(self, weights):
        for name, tensor in weights.items():
            if name in self.shared:
                self.shared[name].copy_(tensor)
            else:
                self.shared[name] = tensor
        return self.shared


@plant("parameters", "weights.state_dict_round_trip", mend="Give matrices back [in, out], as they came.")
class StateDictTransposed(Twin):
    """The state dict is given back [out, in]."""

    def state_dict(self, model):
        return {name: tensor.t().contiguous() for name, tensor in super().state_dict(model).items()}


@plant("parameters", "smoke.weights_unchanged", mend="Copy a tensor before scaling it.")
class ScalesTheGivenWeights(Twin):
    """Loading folds the scale into the query weights in place, in the caller's tensors."""

    def build(self, config, state_dict, *, device, dtype):
        model = super().build(config, state_dict, device=device, dtype=dtype)
        state_dict["transformer.h.0.attn.c_attn.weight"].mul_(0.5)
        return model


@plant("parameters", "causality.deep_copy", mend="Look the embedding up through self.")
class CopySharesTheEmbedding(Twin):
    """The head is a closure over the first model, which a deep copy goes on using."""

    def build(self, config, state_dict, *, device, dtype):
        model = super().build(config, state_dict, device=device, dtype=dtype)
        object.__setattr__(model, "project", lambda x: x @ model["wte.weight"].T)
        return model

    def head(self, model, x):
        return model.project(x)


@plant("parameters", "causality.dtype_round_trip", mend="Keep epsilon as a Python number.")
class EpsilonInABuffer(Twin):
    """LayerNorm's epsilon is a tensor of the model, and is rounded when the model is moved to bfloat16."""

    def load(self, weights):
        weights["eps"] = torch.tensor(1e-2 / 1000)
        return weights

    def layer_norm(self, x, model, name):
        normed = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + model["eps"]).sqrt()
        return normed * model[f"{name}.weight"] + model[f"{name}.bias"]


@plant("parameters", "smoke.not_the_reference", mend="Compute the logits yourself, or say USES_HUGGINGFACE = True.")
class HuggingFaceInDisguise(Twin):
    """forward calls transformers' own model."""

    def build(self, config, state_dict, *, device, dtype):
        model = super().build(config, state_dict, device=device, dtype=dtype)
        object.__setattr__(model, "other", huggingface_model(config, state_dict, dtype=dtype))
        return model

    def forward(self, model, input_ids):
        assert isinstance(model.other, transformers.GPT2LMHeadModel)
        return model.other(input_ids).logits


@plant("parameters", "smoke.builds", raises=True, mend="Load by Hugging Face's names.")
class RefusesTheNames(Twin):
    """The loader looks for names that no checkpoint has."""

    def load(self, weights):
        return {"wte.weight": weights["tok_emb.weight"]}


@plant("parameters", "smoke.loads", mend="Give the adapter build and forward.")
class NotAnAdapter(Twin):
    """The adapter has no forward."""

    forward = None


@plant("weight layout", "smoke.logits_shape", mend="Return the logits of every position.")
class LastPositionOnly(Twin):
    """forward gives the logits of the last position alone."""

    def forward(self, model: TwinModel, input_ids):
        return super().forward(model, input_ids)[:, -1]
