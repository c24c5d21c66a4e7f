# SPDX-License-Identifier: Apache-2.0
"""The `tpu` device of PyTorch: device, runtime, lowering tables, chip models, plugins."""
