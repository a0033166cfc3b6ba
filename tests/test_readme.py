"""The README's commands are the ones that are run, and its adapter works as it is printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conformance.bench import Bench
from conformance.check import all_checks, run_check
from conformance.outcome import NotRun
from conformance.subject import load_subject

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")

# A model as the README's adapter expects it: torch's own layers, GPT-2's names, no cache.
MY_GPT = """
from dataclasses import dataclass
import torch
from torch import nn
import torch.nn.functional as F


@dataclass
class GPTConfig:
    block_size: int
    vocab_size: int
    n_layer: int
    n_head: int
    n_embd: int


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.n_head = config.n_head
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)

    def forward(self, x):
        q, k, v = (t.unflatten(2, (self.n_head, -1)).transpose(1, 2) for t in self.c_attn(x).chunk(3, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(config.n_embd), nn.LayerNorm(config.n_embd)
        self.attn, self.mlp = Attention(config), MLP(config)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.transformer = nn.ModuleDict(dict(
            wte=nn.Embedding(config.vocab_size, config.n_embd),
            wpe=nn.Embedding(config.block_size, config.n_embd),
            h=nn.ModuleList(Block(config) for _ in range(config.n_layer)),
            ln_f=nn.LayerNorm(config.n_embd),
        ))
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.lm_head.weight = self.transformer.wte.weight

    def forward(self, ids):
        if ids.dim() != 2 or ids.shape[1] == 0:
            raise ValueError("ids are [B, T]")
        x = self.transformer.wte(ids) + self.transformer.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.transformer.h:
            x = block(x)
        return self.lm_head(self.transformer.ln_f(x))
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_ci_runs_the_readmes_two_commands() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    first, second = (block.strip() for block in blocks("sh")[:2])
    assert script.index(first) < script.index(second)


def test_adapter_of_the_readme_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_gpt.py").write_text(MY_GPT)
    (tmp_path / "my_adapter.py").write_text(next(block for block in blocks("python") if "my_adapter" in block))
    monkeypatch.chdir(tmp_path)
    bench = Bench(load_subject("my_adapter").adapter)
    unsupported = set()
    for check in all_checks():
        for case in check.ids().values():
            try:
                run_check(check, bench, case)
            except NotRun as not_run:
                unsupported.add(not_run.reason)
    assert "the subject does not claim cache" in unsupported


def test_readme_names_every_status() -> None:
    for status in ("passed", "failed", "error", "unsupported", "blocked", "skipped"):
        assert re.search(rf"^\| .*\b{status}\b.* \|", README, flags=re.MULTILINE)
