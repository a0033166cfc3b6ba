from __future__ import annotations

import pytest
import torch

from conformance import tolerance


def test_float32_allows_eight_times_the_references_own_error() -> None:
    own = tolerance.own_error(torch.float32, 1e-4, largest=10.0)
    assert own == 1e-4
    assert tolerance.budget(torch.float32, own, largest=10.0) == pytest.approx(8e-4)


def test_own_error_is_half_a_unit_of_the_largest_value_at_least() -> None:
    own = tolerance.own_error(torch.float32, 0.0, largest=8.0)
    assert own == 8.0 * 2**-24


def test_float64_allows_nine_digits() -> None:
    assert tolerance.budget(torch.float64, 0.0, largest=0.5) == 1e-9
    assert tolerance.budget(torch.float64, 0.0, largest=50.0) == pytest.approx(5e-8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_allows_four_times_the_references_own_error(dtype: torch.dtype) -> None:
    assert tolerance.budget(dtype, 0.1, largest=1.0) == pytest.approx(0.4)
