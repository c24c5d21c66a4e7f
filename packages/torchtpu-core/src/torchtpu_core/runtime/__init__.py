# SPDX-License-Identifier: Apache-2.0
"""Clients, transfers, programs: the one place that drives JAX.

Importing the package imports nothing heavy; `startup.start` does, at first device use.
"""
