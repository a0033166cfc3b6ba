"""Adapters to start from, one per style of cache; ``python -m conformance new-adapter`` copies one."""

from __future__ import annotations

from pathlib import Path

# Each style with the form of the call it is for.
STYLES = {
    "no-cache": "model(input_ids) -> logits",
    "past-key-values": "model(input_ids, past_key_values) -> (logits, past_key_values)",
    "functional": "gpt2(params, config, input_ids, cache) -> (logits, cache)",
    "cache-in-model": "model(input_ids, use_cache=True) -> logits, and model.reset_kv_cache()",
}


def starter(style: str) -> str:
    """The text of the adapter for a style.

    Raises:
        ValueError: a style that is not known.
    """
    if style not in STYLES:
        raise ValueError(f"style is {style!r}: choose one of {', '.join(STYLES)}")
    return (Path(__file__).parent / f"{style.replace('-', '_')}.py").read_text(encoding="utf-8")
