# SPDX-License-Identifier: Apache-2.0
"""Custom JAX and Pallas kernels on tensors of the `tpu` device."""
