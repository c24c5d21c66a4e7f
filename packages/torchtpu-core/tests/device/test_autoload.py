# SPDX-License-Identifier: Apache-2.0
"""`import torch` registers the device, imports nothing heavy, and cannot fail."""

from __future__ import annotations


def test_import_torch_imports_neither_jax_nor_plugins(fresh_python):
    done = fresh_python(
        """
        import sys, torch
        assert torch.tpu is sys.modules["torch.tpu"]
        heavy = {"jax", "jaxlib", "pluggy", "typer", "rich",
                 "torchtpu_core.runtime.startup", "torchtpu_core.lowering"}
        plugins = {name for name in sys.modules
                   if name.startswith("torchtpu_") and name.endswith(".plugin")}
        print(sorted(plugins | heavy & set(sys.modules)))
        """
    )
    assert done.stdout == "[]\n"


def test_import_times_show_the_extension_and_no_jax(fresh_python):
    done = fresh_python("import torch", "-X", "importtime")
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "torchtpu_core._C" in imported
    assert not any(name.partition(".")[0] in {"jax", "jaxlib"} for name in imported)


def test_asking_for_the_device_count_does_not_import_jax(fresh_python):
    done = fresh_python(
        """
        import sys, torch
        print(torch.tpu.device_count(), torch.tpu.is_available(), "jax" in sys.modules)
        """
    )
    assert done.stdout == "4 True False\n"


def test_backend_imported_before_torch_works(fresh_python):
    done = fresh_python("import torchtpu_core, torch; print(torch.ones(2, device='tpu').tolist())")
    assert done.stdout == "[1.0, 1.0]\n"


def test_autoload_can_be_turned_off(fresh_python):
    code = "import torch; print(hasattr(torch, 'tpu'))"
    assert fresh_python(code, TORCH_TPU_DISABLE_AUTOLOAD="1").stdout == "False\n"
    assert fresh_python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0").stdout == "False\n"


def test_autoload_that_fails_is_a_warning(fresh_python):
    done = fresh_python(
        """
        import sys
        sys.modules["torchtpu_core._C"] = None  # as if the extension were broken
        import torch
        print(torch.ones(2).sum().item())
        """
    )
    assert done.stdout == "2.0\n"
    assert "could not register device 'tpu'" in done.stderr
    assert "torchtpu doctor" in done.stderr


def test_bad_autoload_value_is_a_warning(fresh_python):
    done = fresh_python("import torch; print(1)", TORCH_TPU_DISABLE_AUTOLOAD="maybe")
    assert done.stdout == "1\n"
    assert "TORCH_TPU_DISABLE_AUTOLOAD='maybe' is not allowed" in done.stderr


def test_users_jax_keeps_its_defaults(fresh_python):
    done = fresh_python(
        """
        import torch
        torch.ones(2, dtype=torch.float64, device="tpu").add_(1)
        import jax, jax.numpy as jnp
        print(jnp.ones(2).dtype, jax.config.jax_enable_x64, len(jax.devices("cpu")))
        """
    )
    assert done.stdout == "float32 False 1\n"


def test_cpu_users_see_nothing(fresh_python):
    done = fresh_python(
        """
        import sys, torch
        model = torch.nn.Linear(2, 2)
        torch.optim.AdamW(model.parameters()).step()
        model(torch.ones(2)).sum().backward()
        print("jax" in sys.modules)
        """
    )
    assert (done.stdout, done.stderr) == ("False\n", "")
