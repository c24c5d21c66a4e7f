# SPDX-License-Identifier: Apache-2.0
"""Eager modes of the `tpu` device: Debug, Strict, and Fused."""
