"""The compile toggle: the same model and the same weights, with its arithmetic run by ``torch.compile``."""

from __future__ import annotations

import copy
import types
import weakref

import torch

from scratch_gpt.model import GPT2

_compiled: weakref.WeakKeyDictionary[GPT2, GPT2] = weakref.WeakKeyDictionary()


def compiled(model: GPT2) -> GPT2:
    """A twin of ``model`` whose ``compute`` is compiled into one graph per kind of call.

    The twin shares every parameter with ``model``: weights loaded or changed later are honoured, and nothing is
    copied. The first call of each kind (uncached, prefill, decode) compiles for some seconds; after that one graph
    serves every decode step, whatever the past length. Asking twice gives the same twin.

    Raises:
        torch._dynamo.exc.BackendCompilerFailed: on the first call, when no C++ compiler is installed.
    """
    if model not in _compiled:
        twin = copy.copy(model)
        # Bound to the twin: a value that held its key would keep the entry alive for ever.
        twin.compute = torch.compile(  # type: ignore[method-assign]
            types.MethodType(GPT2.compute, twin), fullgraph=True
        )
        _compiled[model] = twin
    return _compiled[model]
