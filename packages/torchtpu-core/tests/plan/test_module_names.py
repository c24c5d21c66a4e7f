# SPDX-License-Identifier: Apache-2.0
"""Where a line of the user's calls a whole model of a library, the report names its modules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from torchtpu_core.plan import user_lines
from torchtpu_core.plan.module_names import folded

Planned = Callable[..., dict]
LIBRARY = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

layer = nn.TransformerEncoderLayer(64, 2, 256, dropout=0.0)
table, encoder = nn.Embedding(4096, 64), nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.encoder, self.head = table, encoder, nn.Linear(64, 16)

    def forward(self, words):
        x = self.table(words)
        x = self.encoder(x)
        if WHOLE:
            x = checkpoint(self.encoder, x, use_reentrant=False)
        return self.head(x)


model = Own().to("tpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.randint(0, 4096, (8, 16), device="tpu")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("path", "name"),
    [("", ""), ("3", "*"), ("layers.0.mlp", "layers.*.mlp"), ("module.net.12.module.1", "net.*.*")],
)
def test_layers_share_a_name(path: str, name: str) -> None:
    assert folded(path) == name


def test_modules_below_the_users_line_are_named(planned: Planned) -> None:
    plan = planned(LIBRARY.replace("WHOLE", "False"), "--target", "v5e:1x1")
    lines = {line.rpartition("/")[2]: spent for line, spent in plan["slowest_lines"].items()}
    first = next(n for n, text in enumerate(LIBRARY.splitlines(), 1) if "encoder(x)" in text)
    # Both products of each layer have names, and what the user calls alone has its line alone.
    assert {f"script.py:{first} in encoder.layers.*.linear{n}" for n in (1, 2)} <= lines.keys()
    assert {f"script.py:{first - 1}"} <= lines.keys()
    held = {(row["category"], row["line"].rpartition("/")[2]) for row in plan["hbm"]["lines"]}
    # The gradient of the table is that of its own line, whatever ran after it without a gradient.
    assert ("gradients", f"script.py:{first - 1}") in held
    assert ("gradients", f"script.py:{first} in encoder.layers.*.linear1") in held


def test_what_is_computed_again_has_the_names_of_the_first_time(planned: Planned) -> None:
    plan = planned(LIBRARY.replace("WHOLE", "True"), "--target", "v5e:1x1")
    again = next(n for n, text in enumerate(LIBRARY.splitlines(), 1) if "checkpoint(self" in text)
    name = f"script.py:{again} in encoder.layers.*.linear1"
    lines = {line.rpartition("/")[2] for line in plan["slowest_lines"]}
    assert name in lines
    assert not any(line.count(" in ") > 1 for line in lines)


def test_values_that_a_library_reads_are_read_at_its_place_for_the_users_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_lines, "_INSTALLED", str(tmp_path))
    monkeypatch.setattr(user_lines, "LIBRARIES", (str(tmp_path), *user_lines.LIBRARIES))
    text = "def asks(call):\n    return call()\n"
    (tmp_path / "kind").mkdir()
    found: dict = {}
    exec(compile(text, str(tmp_path / "kind" / "loop.py"), "exec"), found)
    lines = user_lines.UserLines()
    lines.modules.label = " in layers.*"

    def note() -> str:
        return lines.reading()

    here = f"{__file__}:{note.__code__.co_firstlineno + 4}"
    assert (note(), found["asks"](note)) == (f"{here} in layers.*", f"{here} in kind/loop.py:2")
