# SPDX-License-Identifier: Apache-2.0
"""Random numbers: seeds, states, forks, and recomputation in checkpoints."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint


def _draw():
    return torch.rand(8, device="tpu").tolist()


def test_manual_seed_repeats_the_numbers():
    torch.manual_seed(5)
    first = _draw()
    torch.manual_seed(5)
    assert _draw() == first
    assert _draw() != first


def test_torch_tpu_manual_seed_seeds_the_device():
    torch.tpu.manual_seed(7)
    first = _draw()
    torch.tpu.manual_seed_all(7)
    assert _draw() == first
    assert torch.tpu.initial_seed() == 7


def test_different_seeds_differ():
    torch.manual_seed(1)
    first = _draw()
    torch.manual_seed(2)
    assert _draw() != first


def test_state_can_be_saved_and_restored():
    _draw()
    state = torch.tpu.get_rng_state()
    assert state.device.type == "cpu"
    assert (state.dtype, tuple(state.shape)) == (torch.uint8, (16,))
    first = _draw()
    torch.tpu.set_rng_state(state)
    assert _draw() == first


def test_state_of_the_wrong_size_is_refused():
    with pytest.raises((RuntimeError, TypeError), match=r"(?i)state|byte"):
        torch.tpu.set_rng_state(torch.zeros(3, dtype=torch.uint8))


def test_state_offset_is_a_multiple_of_four():
    _draw()
    _draw()
    offset = torch.tpu.get_rng_state()[8:].view(torch.int64).item()
    assert offset > 0
    assert offset % 4 == 0


def test_all_states_cover_all_devices():
    states = torch.tpu.get_rng_state_all()
    assert len(states) == torch.tpu.device_count()
    torch.tpu.set_rng_state_all(states)


def test_fork_rng_restores_the_device():
    torch.manual_seed(3)
    expected = _draw()
    torch.manual_seed(3)
    with torch.random.fork_rng(devices=[0], device_type="tpu"):
        _draw()
        torch.manual_seed(9)
    assert _draw() == expected


def test_device_generator_is_independent_of_the_cpu():
    torch.manual_seed(3)
    first = _draw()
    torch.manual_seed(3)
    torch.rand(100)
    assert _draw() == first


def test_explicit_generator_is_used_and_left_alone_by_others():
    generator = torch.Generator("tpu").manual_seed(4)
    first = torch.rand(8, device="tpu", generator=generator).tolist()
    _draw()
    generator.manual_seed(4)
    assert torch.rand(8, device="tpu", generator=generator).tolist() == first


def test_generator_of_another_device_is_refused():
    with pytest.raises(RuntimeError, match=r"(?i)generator"):
        torch.rand(8, device="tpu", generator=torch.Generator("cpu"))


def test_generator_clone_continues_the_sequence():
    generator = torch.Generator("tpu").manual_seed(4)
    torch.rand(8, device="tpu", generator=generator)
    twin = generator.clone_state()
    a = torch.rand(8, device="tpu", generator=generator)
    b = torch.rand(8, device="tpu", generator=twin)
    assert a.tolist() == b.tolist()


def test_dropout_keeps_its_share_and_scales():
    out = torch.nn.functional.dropout(torch.ones(4096, device="tpu"), 0.25)
    kept = (out != 0).float().mean().item()
    # 4096 draws: the standard deviation of the share is 0.0068
    assert abs(kept - 0.75) < 6 * 0.0068
    assert out[out != 0].cpu().sub(1 / 0.75).abs().max() < 1e-6


def test_trunc_normal_under_fork_rng_ends():
    with torch.random.fork_rng(devices=[0], device_type="tpu"):
        x = torch.nn.init.trunc_normal_(torch.empty(64, device="tpu"))
    assert x.abs().max().item() <= 2.0


def test_checkpoint_recomputes_the_same_dropout():
    x = torch.ones(64, device="tpu", requires_grad=True)
    seen = []

    def block(y):
        y = torch.nn.functional.dropout(y, 0.5)
        seen.append(y.detach().clone())
        return y.square()

    checkpoint(block, x, use_reentrant=False).sum().backward()
    assert len(seen) == 2
    assert torch.equal(seen[0].cpu(), seen[1].cpu())
    assert torch.equal(x.grad.cpu(), 2 * seen[0].cpu() * (seen[0].cpu() != 0) * 2)


def test_checkpoint_without_preserved_state_draws_anew():
    x = torch.ones(64, device="tpu", requires_grad=True)
    seen = []

    def block(y):
        y = torch.nn.functional.dropout(y, 0.5)
        seen.append(y.detach().clone())
        return y.square()

    checkpoint(block, x, use_reentrant=False, preserve_rng_state=False).sum().backward()
    assert not torch.equal(seen[0].cpu(), seen[1].cpu())


#: Bounds that CPU refuses, or warns of.
BOUNDS = {
    "reversed": lambda d: torch.zeros(3, dtype=torch.int64, device=d).random_(5, 3),
    "below zero": lambda d: torch.zeros(3, device=d).random_(-42),
    "of a bool": lambda d: torch.zeros(3, dtype=torch.bool, device=d).random_(0, 3),
    "of a byte": lambda d: torch.zeros(3, dtype=torch.int8, device=d).random_(5, 300),
    "of a complex number": lambda d: torch.randint(6, (3,), dtype=torch.complex64, device=d),
    "of a probability": lambda d: torch.zeros(3, device=d).bernoulli_(1.5),
    "uniform, reversed": lambda d: torch.zeros(3, device=d).uniform_(5, 2),
    "uniform, too wide": lambda d: torch.zeros(3, device=d).uniform_(-3e38, 3e38),
    "uniform, too large": lambda d: torch.zeros(3, device=d).uniform_(0, 1e40),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds_of_random_numbers_are_refused_at_the_call_in_cpus_words(name):
    with pytest.raises(RuntimeError) as expected:
        BOUNDS[name]("cpu")
    with pytest.raises(RuntimeError) as raised:
        BOUNDS[name]("tpu")
    assert str(raised.value).splitlines()[0] == str(expected.value).splitlines()[0]


def test_random_beyond_the_exact_numbers_of_a_float_warns():
    with pytest.warns(UserWarning, match="precision limitations"):
        torch.zeros(3, device="tpu").random_(0, 2**24 + 2)


def test_random_from_the_least_number_draws_from_all_of_int64():
    drawn = torch.zeros(1000, dtype=torch.int64, device="tpu").random_(-(2**63), None).cpu()
    assert drawn.min() < -(2**62)
    assert drawn.max() > 2**62
