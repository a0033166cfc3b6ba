"""One model of a subject beside its reference: the protocol's calls, and what their answers are held against."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from conformance import tolerance
from conformance.limit import TimeLimitReached
from conformance.outcome import CheckFailure, NotRun, SubjectError
from conformance.reference import Reference, Truth
from conformance.shapes import Config
from conformance.tape import Answer, answer
from conformance.weights import token_ids

if TYPE_CHECKING:
    from conformance.bench import Bench

# The calls whose answers a tape holds. What a cache is differs from one implementation to the next; its filled part is
# recorded where it is compared.
RECORDED = ("forward", "extend", "generate", "state_dict")


class Candidate:
    """One model of the subject. Its methods are the protocol's functions, with errors and shapes looked after."""

    def __init__(
        self, bench: Bench, model: Any, config: Config, dtype: torch.dtype, truth: Callable[[], Reference]
    ) -> None:
        self.bench = bench
        self.model = model
        self.config = config
        self.dtype = dtype
        self._truth = truth

    @functools.cached_property
    def reference(self) -> Reference:
        """The oracle for this model's weights."""
        return self._truth()

    def most_rows(self, wanted: int) -> int:
        """As many rows as ``wanted``, or as the subject's ``LIMITS`` allow."""
        return min(wanted, self.bench.subject.limits.get("batch_size", wanted))

    def ids(self, batch_size: int, length: int, seed: int = 0) -> Tensor:
        """Random ids ``[B, T]`` of this model's vocabulary.

        Raises:
            NotRun: the subject's ``LIMITS`` do not allow so many rows.
        """
        most = self.most_rows(batch_size)
        if batch_size > most:
            raise NotRun("unsupported", f"the subject takes at most {most} rows (LIMITS)")
        return token_ids(self.config, batch_size, length, seed)

    def forward(self, input_ids: Tensor, **arguments: Tensor) -> Tensor:
        """``[B, T] -> [B, T, V]``."""
        on_device = {name: value.to(self.bench.device) for name, value in arguments.items()}
        logits = self.call("forward", self.model, self._handed_over(input_ids), **on_device)
        return self._logits("forward", logits, input_ids)

    def init_cache(self, batch_size: int, max_length: int) -> Any:
        """An empty cache."""
        return self.call("init_cache", self.model, batch_size, max_length)

    def extend(self, input_ids: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """``[B, T] -> [B, T, V]``, and the cache that now holds T tokens more."""
        answer = self.call("extend", self.model, self._handed_over(input_ids), cache)
        if not isinstance(answer, (tuple, list)) or len(answer) != 2:
            raise CheckFailure("extend returns (logits, cache)", f"it returned {_kind(answer)}")
        return self._logits("extend", answer[0], input_ids), answer[1]

    def extend_in_chunks(self, input_ids: Tensor, sizes: Sequence[int], cache: Any) -> tuple[Tensor, Any]:
        """Feed ``input_ids`` ``[B, T]`` in pieces of ``sizes``, which add up to T; the logits of all, ``[B, T, V]``."""
        pieces = []
        for piece in torch.split(input_ids, list(sizes), dim=1):
            logits, cache = self.extend(piece, cache)
            pieces.append(logits.clone())
        return torch.cat(pieces, dim=1), cache

    def restart(self, cache: Any, batch_size: int, max_length: int) -> Any:
        """An empty cache once more: the used one reset where the subject can, else a new one."""
        if self.bench.subject.claims("reset_cache"):
            return self.call("reset_cache", self.model, cache)
        return self.init_cache(batch_size, max_length)

    def cache_tensors(self, cache: Any) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of each layer, ``[B, H, S, D]``."""
        layers = self.call("cache_tensors", cache)
        pairs = layers if isinstance(layers, (list, tuple)) else [layers]
        if not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pairs) or not all(
            isinstance(tensor, Tensor) and tensor.dim() == 4 and self._is_dense(tensor)
            for pair in pairs
            for tensor in pair
        ):
            raise CheckFailure(
                "cache_tensors returns a list of pairs (keys, values), each [B, H, S, D]",
                f"it returned {_kind(layers)} of {', '.join(sorted({_kind(pair) for pair in pairs}))}",
            )
        return [(keys.detach(), values.detach()) for keys, values in pairs]

    def generate(self, input_ids: Tensor, max_new_tokens: int, **arguments: Any) -> Tensor:
        """``[B, T] -> [B, T + new]``, on the CPU."""
        ids = self.call("generate", self.model, self._handed_over(input_ids), max_new_tokens, **arguments)
        right = isinstance(ids, Tensor) and ids.dim() == 2 and len(ids) == len(input_ids) and self._is_dense(ids)
        if not right or ids.is_floating_point():
            raise CheckFailure(f"generate returns ids [{len(input_ids)}, prompt + new]", f"it returned {_kind(ids)}")
        return ids.cpu()

    def state_dict(self) -> dict[str, Tensor]:
        """The model's weights under Hugging Face's names."""
        state_dict = self.call("state_dict", self.model)
        if not isinstance(state_dict, Mapping) or not all(
            isinstance(name, str) and isinstance(value, Tensor) and self._is_dense(value)
            for name, value in state_dict.items()
        ):
            raise CheckFailure("state_dict returns {name: tensor}", f"it returned {_kind(state_dict)}")
        return {name: tensor.detach() for name, tensor in state_dict.items()}

    def compiled(self) -> Candidate:
        """This model compiled, beside the same reference."""
        return Candidate(self.bench, self.call("compile", self.model), self.config, self.dtype, self._truth)

    def expect_logits(self, logits: Tensor, input_ids: Tensor, start: int = 0, note: str = "") -> None:
        """Fail unless ``logits`` ``[B, T, V]`` are the reference's at the positions from ``start`` on.

        Args:
            input_ids: the whole sequences ``[B, start + T or more]``.
            note: where in the check this is, for the message.
        """
        truth = self.reference.logits(input_ids)
        expected = truth.values[:, start : start + logits.shape[1]]
        if wrong := self.first_wrong(logits, expected, truth):
            row, position, token = wrong
            place = f"row {row}, position {start + position}, vocabulary id {token}"
            self._fail(logits, expected, truth, "logits", f"{place}{note and f' ({note})'}", wrong)

    def expect_past(self, tensors: Sequence[tuple[Tensor, Tensor]], input_ids: Tensor) -> None:
        """Fail unless the filled part of a cache holds the reference's keys and values of ``input_ids`` ``[B, T]``."""
        length = input_ids.shape[1]
        expected_shape = [len(input_ids), self.config.n_head, length, self.config.n_embd // self.config.n_head]
        shapes = [list(tensor[:, :, :length].shape) for pair in tensors for tensor in pair]
        if shapes != [expected_shape] * (2 * self.config.n_layer):
            raise CheckFailure(
                f"a pair of keys and values per layer, {self.config.n_layer} pairs, each {expected_shape} or longer",
                f"{len(tensors)} pairs with filled shapes {sorted({str(shape) for shape in shapes})}",
            )
        for side, truth in zip(("keys", "values"), self.reference.past(input_ids), strict=True):
            held = torch.stack([pair[side == "values"][:, :, :length].cpu() for pair in tensors])
            if self.bench.tape is not None:
                self.bench.tape.append(answer(side, held))
            if wrong := self.first_wrong(held, truth.values, truth):
                layer, row, head, position, _ = wrong
                place = f"layer {layer}, row {row}, head {head}, position {position}"
                self._fail(held, truth.values, truth, side, place, wrong)

    def first_wrong(self, actual: Tensor, expected: Tensor, truth: Truth) -> tuple[int, ...] | None:
        """Index of the first value beyond the budget, None without one; remembers the largest error ratio.

        Dimension -2 is the position, and the earliest position counts as first.
        """
        if actual.shape != expected.shape:
            raise CheckFailure(f"shape {list(expected.shape)}", f"shape {list(actual.shape)}")
        errors = (actual.cpu().double() - expected).abs().nan_to_num(nan=torch.inf)
        if self.dtype == torch.float32:
            self.bench.note_ratio(float(errors.max()) / truth.own_error)
        wrong = errors > truth.budget
        if not wrong.any():
            return None
        position = int(wrong.movedim(-2, 0).flatten(1).any(dim=1).int().argmax())
        at = wrong.select(-2, position)
        first = [int(i) for i in at.nonzero()[0]]
        # The worst value at the first wrong place says more than the first value there.
        first[-1] = int(errors.select(-2, position)[tuple(first[:-1])].argmax())
        return (*first[:-1], position, first[-1])

    def _fail(
        self, actual: Tensor, expected: Tensor, truth: Truth, what: str, place: str, wrong: tuple[int, ...]
    ) -> None:
        errors = (actual.cpu().double() - expected).abs().nan_to_num(nan=torch.inf)
        largest, share = float(errors.max()), float((errors > truth.budget).double().mean())
        allowed = f"{truth.budget:.1e} is allowed"
        precision = dtype_names([self.dtype])
        if self.dtype == torch.float64:
            size = f"{largest:.1e}; {allowed}"
        else:
            size = (
                f"{largest:.1e}, {largest / truth.own_error:,.0f} times Hugging Face's own in {precision} "
                f"({truth.own_error:.1e}); {allowed}, {tolerance.FACTOR[self.dtype]:g} times"
            )
        raise CheckFailure(
            f"{what} of the float64 reference; there {float(expected[wrong]):.7g}",
            f"{share:.1%} of all values are wrong; there {float(actual[wrong]):.7g}",
            first_wrong=place,
            error=size,
        )

    def call(self, name: str, *arguments: Any, **named: Any) -> Any:
        """Call one of the adapter's functions; what it raises becomes a ``SubjectError``."""
        function = getattr(self.bench.subject.adapter, name)
        if self.bench.tape is None:
            return call_subject(name, function, *arguments, **named)
        try:
            value = call_subject(name, function, *arguments, **named)
        except (SubjectError, TimeLimitReached) as error:
            self.bench.tape.append(Answer(name, "hung" if isinstance(error, TimeLimitReached) else "raised"))
            raise
        if name in RECORDED:
            self.bench.tape.append(answer(name, value))
        return value

    def _logits(self, call: str, logits: Any, input_ids: Tensor) -> Tensor:
        expected = [*input_ids.shape, self.config.vocab_size]
        if not isinstance(logits, Tensor):
            raise CheckFailure(
                f"{call} returns a tensor of logits {expected}",
                f"it returned {_kind(logits)}: return the logits alone from the adapter",
            )
        if list(logits.shape) != expected:
            raise CheckFailure(
                f"{call} returns logits [batch, tokens, vocab_size] = {expected}",
                f"it returned shape {list(logits.shape)}: mend {call} in the adapter",
            )
        if not self._is_dense(logits) or not logits.is_floating_point():
            raise CheckFailure(
                f"{call} returns a dense floating-point tensor on {self.bench.device}",
                f"it returned one in {logits.dtype}, {logits.layout}, on {logits.device}",
            )
        return logits.detach()

    def _is_dense(self, tensor: Tensor) -> bool:
        return tensor.layout == torch.strided and tensor.device.type == self.bench.device.type

    def _handed_over(self, input_ids: Tensor) -> Tensor:
        """A copy on the subject's device: a subject that writes into its input reaches nothing of the kit's."""
        return input_ids.to(self.bench.device, copy=True)


def expect_same(actual: Tensor, expected: Tensor, what: str, because: str) -> None:
    """Fail unless two tensors ``[B, T, V]`` are equal bit for bit: the arithmetic is the same, so rounding is too."""
    differ = actual != expected
    if differ.any():
        row, position, token = (int(i) for i in differ.nonzero()[differ.nonzero()[:, 1].argmin()])
        raise CheckFailure(
            f"{what}, bit for bit",
            f"{because} changed {float(differ.double().mean()):.1%} of the values, by up to "
            f"{float((actual - expected).abs().max()):.1e}",
            first_wrong=f"row {row}, position {position}, vocabulary id {token}",
        )


def call_subject(name: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call a function of the adapter; what it raises becomes a ``SubjectError``."""
    try:
        with torch.no_grad():
            return function(*arguments, **named)
    except (KeyboardInterrupt, TimeLimitReached):
        raise
    except BaseException as error:  # an adapter that calls sys.exit is a finding too
        raise SubjectError(name, error) from error


def dtype_names(dtypes: Sequence[torch.dtype]) -> str:
    """``float32, float64``, as they are written on the command line."""
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)


def _kind(value: Any) -> str:
    return f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
