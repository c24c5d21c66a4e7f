# SPDX-License-Identifier: Apache-2.0
"""Helpers to test lowerings and plugins against CPU PyTorch."""
