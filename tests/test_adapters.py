"""The starter adapters, as they are written, each on a model of its style."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch

import conformance
from conformance.__main__ import main
from conformance.result import Report
from conformance.shapes import TINY
from conformance.starters import STYLES, starter
from conformance.views import linear_layout, openai_params, separate_qkv
from conformance.weights import converted, make_weights

IMPLEMENTATIONS = Path(__file__).parent / "implementations"

# Groups of which a style passes something.
CACHED = {"smoke", "logits", "weights", "causality", "positions", "cache", "isolation", "greedy", "limits", "dtype"}
PASSES = {
    "no-cache": {"smoke", "logits", "weights", "causality", "positions", "limits"},
    "past-key-values": CACHED - {"dtype"},
    "functional": CACHED - {"dtype"},
    "cache-in-model": CACHED - {"dtype"},
}


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write a style's starter as my_adapter.py beside its model as my_gpt.py."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("my_adapter", "my_gpt"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    def write(style: str) -> None:
        assert main(["new-adapter", "my_adapter.py", "--style", style]) == 0
        model = (IMPLEMENTATIONS / f"{style.replace('-', '_')}.py").read_text(encoding="utf-8")
        (tmp_path / "my_gpt.py").write_text(model, encoding="utf-8")
        importlib.invalidate_caches()

    yield write
    for name in ("my_adapter", "my_gpt"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("style", STYLES)
def test_starter_is_green_on_a_model_of_its_style(written, style: str) -> None:
    written(style)
    report = conformance.check_subject("my_adapter", profile="quick")
    assert report.clean, str(report)
    assert {result.check_id.partition(".")[0] for result in report.results if result.status == "passed"} == PASSES[
        style
    ]


@pytest.mark.parametrize("style", STYLES)
def test_starter_is_short(style: str) -> None:
    code = [line for line in starter(style).splitlines()[1:] if line.strip() and not line.lstrip().startswith("#")]
    assert len(code) <= 30


def test_starter_is_not_written_over_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "my_adapter.py"
    kept.write_text("mine")
    with pytest.raises(SystemExit) as exit_:
        main(["new-adapter", str(kept)])
    assert exit_.value.code == 2
    assert "my_adapter.py is there already: name a new file" in capsys.readouterr().err
    assert kept.read_text() == "mine"


def test_starter_says_what_to_do_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new-adapter", str(tmp_path / "my_adapter.py")]) == 0
    assert "pytest --pyargs conformance --subject my_adapter" in capsys.readouterr().out


def test_unusable_path_is_a_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path, reason in (
        (tmp_path / "no" / "my_adapter.py", "cannot be written"),
        (tmp_path / "a-b.py", "module name"),
    ):
        with pytest.raises(SystemExit) as exit_:
            main(["new-adapter", str(path)])
        assert exit_.value.code == 2
        assert reason in capsys.readouterr().err
        assert not path.exists()


def test_views_leave_what_they_are_given() -> None:
    given = make_weights(TINY, seed=0)
    kept = converted(given, torch.float32)
    for view in (linear_layout, separate_qkv, openai_params):
        view(given)
        assert given.keys() == kept.keys()
        assert all(torch.equal(given[name], kept[name]) for name in kept)


def test_separate_queries_keys_and_values_are_the_thirds_of_c_attn() -> None:
    given = make_weights(TINY, seed=0)
    n = TINY.n_embd
    x = torch.randn(n)
    whole = x @ given["transformer.h.1.attn.c_attn.weight"] + given["transformer.h.1.attn.c_attn.bias"]
    split = separate_qkv(given)
    assert not any("c_attn" in name for name in split)
    for i, part in enumerate("qkv"):
        weight, bias = split[f"transformer.h.1.attn.{part}.weight"], split[f"transformer.h.1.attn.{part}.bias"]
        torch.testing.assert_close(weight @ x + bias, whole[i * n : (i + 1) * n])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_openai_params_hold_every_parameter_once(dtype: torch.dtype) -> None:
    given = converted(make_weights(TINY, seed=0), dtype)
    given["transformer.h.0.attn.bias"] = torch.ones(1, 1, 4, 4)  # the mask buffer of transformers 4
    params = openai_params(given)
    assert set(params) == {"wte", "wpe", "blocks", "ln_f", "g", "b"}
    assert params["g"] is params["ln_f"]["g"]
    assert len(params["blocks"]) == TINY.n_layer
    assert set(params["blocks"][0]) == {"ln_1", "attn", "ln_2", "mlp"}
    c_fc = params["blocks"][2]["mlp"]["c_fc"]
    assert torch.equal(torch.tensor(c_fc["w"]).to(dtype), given["transformer.h.2.mlp.c_fc.weight"])
    assert torch.equal(torch.tensor(c_fc["b"]).to(dtype), given["transformer.h.2.mlp.c_fc.bias"])
    assert torch.equal(torch.tensor(params["blocks"][0]["ln_2"]["g"]).to(dtype), given["transformer.h.0.ln_2.weight"])


def test_guide_shows_the_starters_as_they_are_written() -> None:
    guide = (Path(conformance.__file__).parent.parent / "docs" / "adapters.md").read_text(encoding="utf-8")
    blocks = [part.split("\n```")[0] for part in guide.split("```python\n")[1:]]
    assert blocks == [starter(style).strip() for style in STYLES]


def test_guides_walk_goes_as_it_says(written, tmp_path: Path) -> None:
    written("no-cache")
    guide = (Path(conformance.__file__).parent.parent / "docs" / "adapters.md").read_text(encoding="utf-8")
    model, adapter = tmp_path / "my_gpt.py", tmp_path / "my_adapter.py"
    right = model.read_text(), adapter.read_text()

    def check() -> Report:
        for name in ("my_adapter", "my_gpt"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return conformance.check_subject("my_adapter", profile="quick")

    adapter.write_text(right[1].replace("linear_layout(state_dict), strict", "state_dict, strict"))
    failure = check().failures[0]
    assert failure.actual.replace(f"{tmp_path}/", "") in guide
    adapter.write_text(right[1])
    model.write_text(right[0].replace(', approximate="tanh"', ""))
    assert f"says {check().counts['failed']} failed" in guide
    model.write_text(right[0])
    counts = check().counts
    assert f"{counts['passed']} passed, {counts['unsupported']} unsupported" in guide
