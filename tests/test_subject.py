"""Loading adapters, and the one clear error for each that is no adapter."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from conformance.subject import Subject, SubjectNotLoadedError, load_subject


def adapter(**names: object) -> SimpleNamespace:
    return SimpleNamespace(**{"build": lambda: None, "forward": lambda model, input_ids: None} | names)


def test_subject_of_this_project_loads() -> None:
    subject = load_subject("scratch_gpt.adapter")
    assert subject.name == "scratch_gpt"
    assert subject.claims("cache")
    assert subject.claims("stop_token")
    assert not subject.claims("position_ids")


def test_attribute_of_a_module_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "with_attribute.py").write_text(
        "class Inner:\n    build = forward = print\n\nclass Outer:\n    inner = Inner()\n"
    )
    monkeypatch.chdir(tmp_path)
    assert load_subject("with_attribute:Outer.inner").claims("forward")
    with pytest.raises(SubjectNotLoadedError, match=r"with_attribute has no Outer\.other"):
        load_subject("with_attribute:Outer.other")


@pytest.mark.parametrize(
    ("spec", "source", "message"),
    [
        ("nowhere_to_be_found", None, "run pytest from the folder that holds nowhere_to_be_found.py"),
        ("needs_more", "import not_installed_at_all", "the adapter needs not_installed_at_all: install it"),
        ("breaks", "1 / 0", "importing it raised ZeroDivisionError: division by zero"),
        ("leaves", "raise SystemExit(2)", "importing it raised SystemExit"),
        ("", None, "'' is not of the form MODULE[:ATTR]"),
        (":attribute", None, "':attribute' is not of the form MODULE[:ATTR]"),
        ("a..b", None, "'a..b' is not of the form MODULE[:ATTR]"),
        ("some/where.py", None, "is a path: name the module, --subject some.where"),
        ("adapter.py", None, "is a path: name the module, --subject adapter"),
        ("no_forward", "def build(): ...", "it has no forward: add it"),
        ("nothing", "", "it has no build: add it; it has no forward: add it"),
    ],
)
def test_adapter_that_cannot_be_used_says_what_to_do(
    spec: str, source: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if source is not None:
        (tmp_path / f"{spec}.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SubjectNotLoadedError) as caught:
        load_subject(spec)
    assert message in caught.value.actual
    assert spec in caught.value.expected


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"extend": print}, "it has extend alone: a cache needs both"),
        ({"init_cache": print}, "it has init_cache alone: a cache needs both"),
        ({"generate": 3}, "generate is int, not a function"),
        ({"forward": None}, "forward is NoneType, not a function"),
        ({"DTYPES": ("float32",)}, "DTYPES holds 'float32'"),
        ({"DTYPES": torch.float32}, r"DTYPES is torch\.float32, not a tuple"),
        ({"DTYPES": (torch.int64,)}, r"DTYPES holds torch\.int64"),
        ({"LIMITS": {"rows": 1}}, "LIMITS is .*; it may only have 'batch_size'"),
        ({"LIMITS": 5}, "LIMITS is 5"),
        ({"LIMITS": {"batch_size": "2"}}, "batch_size '2', not a whole number"),
    ],
)
def test_name_that_is_not_the_protocols_is_refused(names: dict[str, object], message: str) -> None:
    with pytest.raises(SubjectNotLoadedError, match=message):
        Subject(adapter(**names), "an adapter")


def test_what_is_absent_is_not_claimed() -> None:
    bare = Subject(adapter(), "bare")
    assert not any(bare.claims(name) for name in ("cache", "two_caches", "generate", "stop_token", "compile"))
    assert bare.dtypes == (torch.float32,)


def test_single_cache_is_a_cache_but_not_two() -> None:
    single = Subject(adapter(init_cache=print, extend=print, SINGLE_CACHE=True), "single")
    assert single.claims("cache")
    assert not single.claims("two_caches")


def test_parameters_are_found_by_signature() -> None:
    subject = Subject(
        adapter(
            forward=lambda model, input_ids, position_ids=None: None,
            generate=lambda model, input_ids, max_new_tokens, *, use_cache, stop_token=None: None,
        ),
        "with parameters",
    )
    assert subject.claims("position_ids")
    assert subject.claims("stop_token")


def test_adapter_whose_names_raise_is_refused() -> None:
    class Odd:
        build = forward = print

        @property
        def NAME(self) -> str:  # noqa: N802 - the protocol's name
            raise RuntimeError("not yet")

    with pytest.raises(SubjectNotLoadedError, match="reading its names raised RuntimeError: not yet"):
        Subject(Odd(), "odd")
