"""What goes wrong only once the model is compiled."""

from __future__ import annotations

import copy

import torch

from conformance.faults import plant
from conformance.twin import Twin, TwinModel


@plant(
    "compile",
    "compile.new_weights",
    mend="Compile a function that reads the weights from the model, not copies of them.",
)
class FrozenWeights(Twin):
    """The compiled model keeps the weights it had when it was compiled."""

    def compile(self, model):
        return TwinModel(model.config, {name.replace("/", "."): t.clone() for name, t in model.named_parameters()})


class OtherScale(Twin):
    def scale(self, n_embd, n_head):
        return 0.5


class OtherWhenCompiled(Twin):
    """The compiled model computes with another scale where ``affects`` says so."""

    def affects(self, pairs, input_ids):
        raise NotImplementedError

    def compile(self, model):
        twin = copy.copy(model)
        wrong = OtherScale()

        def compute(model, input_ids, positions, visible, pairs, slots):
            chosen = wrong if self.affects(pairs, input_ids) else self
            return chosen.compute(model, input_ids, positions, visible, pairs, slots)

        twin.compiled = compute
        return twin


@plant("compile", "compile.uncached", mend="Keep the scale of attention in what replaces it in the compiled graph.")
class CompiledScaleWrong(OtherWhenCompiled):
    """A fused pattern with the wrong scale replaces attention in the compiled graph without a cache."""

    def affects(self, pairs, input_ids):
        return pairs is None


@plant("compile", "compile.cached", mend="Use the same scale in the graph for one token as elsewhere.")
class CompiledStepWrong(OtherWhenCompiled):
    """The compiled graph for one token has the wrong scale."""

    def affects(self, pairs, input_ids):
        return pairs is not None and input_ids.shape[1] == 1


@plant("compile", "compile.greedy[cached]", mend="Use the same scale in the graph that generates as elsewhere.")
class CompiledGenerationWrong(OtherWhenCompiled):
    """The compiled graph that generates with a cache has the wrong scale."""

    def affects(self, pairs, input_ids):
        return pairs is not None


@plant("compile", "compile.greedy[uncached]", mend="Use the same scale in the graph that generates as elsewhere.")
class CompiledGenerationWrongUncached(OtherWhenCompiled):
    """The compiled graph that generates without a cache has the wrong scale."""

    def affects(self, pairs, input_ids):
        return pairs is None


@plant("compile", "compile.graphs", mend="Hand the past length to the graph as a tensor.")
class GraphPerStep(Twin):
    """The past length is a number of the graph, which is compiled anew for each step."""

    def compile(self, model):
        twin = copy.copy(model)

        def step(input_ids, past, model, positions, visible, pairs, slots):
            if past == -1:  # a guard on the value
                return input_ids
            return self.compute(model, input_ids, positions, visible, pairs, slots)

        compiled = torch.compile(step, backend="eager", dynamic=False)
        twin.compiled = lambda model, input_ids, positions, *rest: compiled(
            input_ids, int(positions[0]), model, positions, *rest
        )
        return twin
