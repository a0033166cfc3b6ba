"""A subject on the bench: models built from the kit's weights, each beside the reference for the same weights."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from conformance.candidate import Candidate, call_subject, dtype_names
from conformance.limit import TIME_LIMIT
from conformance.outcome import CheckFailure, NotRun
from conformance.reference import Reference, reference
from conformance.shapes import TINY, Config
from conformance.subject import Subject, load_subject
from conformance.tape import Answer
from conformance.weights import Regime, converted, make_weights

ALL_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class Bench:
    """What a check is handed: it builds models of the subject.

    Args:
        spec: the subject, as ``MODULE[:ATTR]``, as an object with the protocol's names, or as a ``Subject``.
        device: where the subject's models live. The reference stays on the CPU.
        dtypes: the precisions that may be checked.
        seed: of all weights.
        time_limit: seconds that a check may take, a slow one more; 0 is no limit.
    """

    def __init__(
        self,
        spec: Any,
        *,
        device: torch.device | str = "cpu",
        dtypes: Sequence[torch.dtype] = ALL_DTYPES,
        seed: int = 0,
        time_limit: float = TIME_LIMIT,
    ) -> None:
        self._spec = spec
        self.device = torch.device(device)
        self.dtypes = tuple(dtypes)
        self.seed = seed
        self.time_limit = time_limit
        self.tape: list[Answer] | None = None  # a list while answers are recorded
        self._largest_ratio = 0.0
        self._prerequisites: dict[str, CheckFailure | None] = {}

    @functools.cached_property
    def subject(self) -> Subject:
        """The subject; loaded when it is first asked for, so that a failure to load it belongs to a check."""
        if isinstance(self._spec, Subject):
            return self._spec
        return load_subject(self._spec) if isinstance(self._spec, str) else Subject(self._spec, repr(self._spec))

    @property
    def dtype(self) -> torch.dtype:
        """The precision of all checks but those about precision: float32, or float64 where that is all there is.

        Half precision does not do: there most faults cannot be told from rounding.
        """
        for dtype in (torch.float32, torch.float64):
            if dtype in self.dtypes and dtype in self.subject.dtypes:
                return dtype
        raise CheckFailure(
            "float32 or float64 is both claimed in DTYPES and among --dtypes",
            f"DTYPES has {dtype_names(self.subject.dtypes)}, --dtypes {dtype_names(self.dtypes)}: add float32",
        )

    def need_dtype(self, dtype: torch.dtype) -> None:
        """Raise ``NotRun`` unless the subject claims ``dtype`` and the run includes it."""
        if dtype not in self.subject.dtypes:
            raise NotRun("unsupported", f"the subject does not claim {dtype} in DTYPES")
        if dtype not in self.dtypes:
            raise NotRun("skipped", f"{dtype} is not among --dtypes")

    def prerequisite_failure(self, check_id: str, run: Callable[[], None]) -> CheckFailure | None:
        """How a prerequisite failed, or None; it is run once."""
        if check_id not in self._prerequisites:
            try:
                run()
                self._prerequisites[check_id] = None
            except CheckFailure as failure:
                self._prerequisites[check_id] = failure
        return self._prerequisites[check_id]

    def note_ratio(self, ratio: float) -> None:
        """Remember how many times the reference's own error a subject made."""
        self._largest_ratio = max(self._largest_ratio, ratio)

    def take_largest_ratio(self) -> float:
        """The largest error ratio since the last call, 0 without any."""
        ratio, self._largest_ratio = self._largest_ratio, 0.0
        return ratio

    def build(
        self,
        config: Config = TINY,
        *,
        regime: Regime = "perturbed",
        dtype: torch.dtype | None = None,
        weights: Mapping[str, Tensor] | None = None,
        given: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None,
    ) -> Candidate:
        """A new model of the subject beside its reference.

        Args:
            weights: float32, in place of those that ``regime`` and the seed make.
            given: turns the state dict into the form in which the subject gets it.
        """
        dtype = dtype or self.dtype
        source = make_weights(config, self.seed, regime) if weights is None else weights
        state_dict = converted(source, dtype)
        if given is not None:
            state_dict = given(state_dict)
        model = call_subject(
            "build", self.subject.adapter.build, replace(config), state_dict, device=self.device, dtype=dtype
        )
        if weights is None:
            truth = functools.partial(reference, config, self.seed, regime, dtype)
        else:
            truth = functools.partial(Reference, config, weights, dtype)
        return Candidate(self, model, config, dtype, truth)
