# SPDX-License-Identifier: Apache-2.0
"""malloc keeps what XLA's CPU client frees, unless the user has set it up."""

from __future__ import annotations

import pytest
from torchtpu_core.runtime import host_memory

_TOUCH = """
    import resource, torch
    def faults():
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    x = torch.ones(12 << 20, device="tpu")  # 48 MiB
    def step():
        return float((x * 2).cumsum(0)[-1])
    for _ in range(3):
        step()
    before = faults()
    step()
    print(faults() - before)
"""
_PAGES = (48 << 20) // 4096


@pytest.mark.parametrize(
    "environment",
    [
        {"GLIBC_TUNABLES": "glibc.malloc.check=0"},
        {"MALLOC_ARENA_MAX": "4"},
        {"LD_PRELOAD": "libjemalloc.so.2"},
    ],
)
def test_malloc_that_the_user_has_set_up_stays_as_it_is(environment):
    assert not host_memory.keep_freed_blocks(environment)


@pytest.mark.skipif(not host_memory._is_glibc(), reason="another malloc")
def test_large_results_take_their_pages_once(run_python):
    assert int(run_python(_TOUCH, TORCH_TPU_EAGER_MODE="strict").stdout) < _PAGES / 4


@pytest.mark.skipif(not host_memory._is_glibc(), reason="another malloc")
def test_empty_cache_gives_free_memory_back(run_python):
    done = run_python(
        """
        import torch
        def resident():
            return int(open("/proc/self/statm").read().split()[1]) * 4096
        blocks = [torch.ones(1 << 20, device="tpu") + i for i in range(40)]
        torch.tpu.synchronize()
        del blocks[::2], blocks
        held = resident()
        torch.tpu.empty_cache()
        print((held - resident()) >> 20)
        """,
        TORCH_TPU_EAGER_MODE="strict",
    )
    assert int(done.stdout) > 80
