"""The subject protocol: what an implementation offers so that it can be checked.

An adapter is any module or object with the names below. It imports nothing from here. Tensors are PyTorch's.

Required:

``build(config, state_dict, *, device, dtype) -> model``
    ``config`` has GPT-2's field names (``conformance.shapes.Config``). ``state_dict`` is what a Hugging Face GPT-2
    checkpoint holds: every parameter under its name (``transformer.h.0.attn.c_attn.weight``, …), matrices ``[in, out]``
    as ``Conv1D`` stores them. Checkpoints differ in two ways, and so may this dict: ``lm_head.weight`` is there or not
    (it is ``wte`` again), and transformers 4 added each layer's causal mask as ``attn.bias`` and ``attn.masked_bias``.
    The tensors are on the CPU in ``dtype``, and yours to keep but not to change. Returns a model in eval mode.
``forward(model, input_ids) -> logits``
    ``[B, T] -> [B, T, V]``, the logits of every position, without a cache.

What cannot be answered has to raise, an exception of any type: more than ``n_positions`` tokens, with a cache and
without, prompt and new tokens together; ids outside the vocabulary; ids that are no integers; no ids at all. More
tokens than a cache's ``max_length`` may be served, if they are served right.

Optional; a name that is there claims the capability, and its checks run:

``init_cache(model, batch_size, max_length) -> cache`` and ``extend(model, input_ids, cache) -> (logits, cache)``
    Together ``cache``. ``extend`` takes any T >= 1: prefill, decode and chunks alike; logits are ``[B, T, V]``.
``reset_cache(model, cache) -> cache``
    Forgets every token. Without it, the kit makes a new cache where a run starts over.
``truncate_cache(model, cache, length) -> cache``
    Keeps the first ``length`` tokens.
``cache_tensors(cache) -> [(keys, values), …]``
    One pair per layer, ``[B, H, S, D]`` with S at least the past length. The tensors themselves, not copies, if unused
    slots are to be checked too.
``generate(model, input_ids, max_new_tokens, *, use_cache) -> ids``
    Greedy, ``[B, T] -> [B, T + max_new_tokens]``, prompt first. A parameter ``stop_token`` claims that a row ends with
    that token, is filled up with it, and that the result ends where every row has stopped.
``compile(model) -> model``
    What it returns is handed to the functions above in the model's place.
``state_dict(model) -> {name: tensor}``
    The weights under Hugging Face's names. The model's own storage, not copies, if changing weights after ``compile``
    is to be checked.
``forward(..., position_ids=)``
    Found by signature: ``[B, T]`` positions in place of 0, 1, 2, ….
``NAME``, ``VERSION``
    Shown in the header.
``DTYPES``
    The torch dtypes it can be built in; ``(torch.float32,)`` without it.
``LIMITS``
    ``{"batch_size": n}`` when it cannot take more than n rows.
``SINGLE_CACHE = True``
    The cache lives inside the model, so that two cannot be in use at once.
``USES_HUGGINGFACE = True``
    It runs Hugging Face's GPT-2 on purpose; otherwise that is a failure.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable
from typing import Any

import torch

from conformance.outcome import CheckFailure, describe

REQUIRED = ("build", "forward")
FUNCTIONS = (
    *REQUIRED,
    "init_cache",
    "extend",
    "reset_cache",
    "truncate_cache",
    "cache_tensors",
    "generate",
    "compile",
    "state_dict",
)


class SubjectNotLoadedError(CheckFailure):
    """The adapter cannot be used at all: not found, not importable, or not an adapter."""

    status = "error"


class Subject:
    """An adapter, and what it claims.

    Args:
        adapter: the module or object that has the protocol's names.
        spec: how it was named on the command line, for messages.

    Raises:
        SubjectNotLoadedError: a required name is missing, or one that is there is not what the protocol says.
    """

    def __init__(self, adapter: Any, spec: str) -> None:
        self.adapter = adapter
        self.spec = spec
        expected = (
            f"{spec} has build(config, state_dict, *, device, dtype) and forward(model, input_ids), and its other "
            f"names are those of the protocol in conformance/subject.py"
        )
        try:
            self.name = str(getattr(adapter, "NAME", spec))
            self.version = str(getattr(adapter, "VERSION", ""))
            self.dtypes: Any = getattr(adapter, "DTYPES", (torch.float32,))
            self.limits: Any = getattr(adapter, "LIMITS", {})
            self.single_cache = bool(getattr(adapter, "SINGLE_CACHE", False))
            self.uses_huggingface = bool(getattr(adapter, "USES_HUGGINGFACE", False))
            wrong = self._faults()
        except Exception as error:  # a property, or a __getattr__, may raise anything
            raise SubjectNotLoadedError(expected, f"reading its names raised {describe(error)}") from error
        if wrong:
            raise SubjectNotLoadedError(expected, "; ".join(wrong))

    def _faults(self) -> list[str]:
        missing = [f"it has no {name}: add it" for name in REQUIRED if not hasattr(self.adapter, name)]
        uncallable = [
            f"{name} is {type(getattr(self.adapter, name)).__name__}, not a function: make it one"
            for name in FUNCTIONS
            if hasattr(self.adapter, name) and not callable(getattr(self.adapter, name))
        ]
        halves = [name for name in ("init_cache", "extend") if hasattr(self.adapter, name)]
        half = [
            f"it has {name} alone: a cache needs both init_cache and extend" for name in halves * (len(halves) == 1)
        ]
        dtypes = [] if isinstance(self.dtypes, (tuple, list)) else [f"DTYPES is {self.dtypes!r}, not a tuple"]
        dtypes += [
            f"DTYPES holds {dtype!r}, which is no floating-point torch dtype: write torch.float32"
            for dtype in (() if dtypes else self.dtypes)
            if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point
        ]
        limits = []
        if not isinstance(self.limits, dict) or self.limits.keys() - {"batch_size"}:
            limits = [f"LIMITS is {self.limits!r}; it may only have 'batch_size'"]
        elif not isinstance(rows := self.limits.get("batch_size", 1), int) or rows < 1:
            limits = [f"LIMITS has batch_size {rows!r}, not a whole number of at least 1"]
        return missing + uncallable + half + dtypes + limits

    def claims(self, capability: str) -> bool:
        """Whether the adapter offers a function, ``cache``, ``two_caches``, ``stop_token`` or ``position_ids``."""
        if capability == "cache":
            return self.claims("extend")
        if capability == "two_caches":
            return self.claims("cache") and not self.single_cache
        if capability == "stop_token":
            return self.claims("generate") and _takes(self.adapter.generate, "stop_token")
        if capability == "position_ids":
            return _takes(self.adapter.forward, "position_ids")
        return hasattr(self.adapter, capability)


def load_subject(spec: str) -> Subject:
    """The subject named ``MODULE`` or ``MODULE:ATTR``, looked for in the current folder too.

    Raises:
        SubjectNotLoadedError: it cannot be found or imported, or is no adapter; the message says which and what to do.
    """
    module_name, _, attribute = spec.partition(":")
    expected = f"the adapter {spec} is importable"
    if module_name.endswith(".py") or "/" in module_name:
        dotted = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise SubjectNotLoadedError(expected, f"{module_name} is a path: name the module, --subject {dotted}")
    if not re.fullmatch(r"\w+(\.\w+)*(:\w+(\.\w+)*)?", spec):
        raise SubjectNotLoadedError(expected, f"{spec!r} is not of the form MODULE[:ATTR]: write --subject my_adapter")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        adapter = importlib.import_module(module_name)
    except KeyboardInterrupt:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            hint = f"run pytest from the folder that holds {module_name.replace('.', '/')}.py, or install its package"
        else:
            hint = f"the adapter needs {error.name}: install it"
        raise SubjectNotLoadedError(expected, f"no module named {error.name}: {hint}") from error
    except BaseException as error:  # an adapter that exits while it is imported is a finding, not the end of the run
        raise SubjectNotLoadedError(expected, f"importing it raised {describe(error)}: mend the adapter") from error
    for name in filter(None, attribute.split(".")):
        if not hasattr(adapter, name):
            raise SubjectNotLoadedError(expected, f"{module_name} has no {attribute}: name one that it has")
        adapter = getattr(adapter, name)
    return Subject(adapter, spec)


def _takes(function: Callable[..., Any], parameter: str) -> bool:
    try:
        return parameter in inspect.signature(function).parameters
    except (TypeError, ValueError):  # a function without a signature claims nothing beyond the protocol
        return False
