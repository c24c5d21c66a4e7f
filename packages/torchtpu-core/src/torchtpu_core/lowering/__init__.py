# SPDX-License-Identifier: Apache-2.0
"""Lowering tables: what every aten overload means in terms of JAX values.

One file per operator family; each ends with one table. Both eager modes and
``torch.compile`` read the same tables. Nothing registers at import.
"""
