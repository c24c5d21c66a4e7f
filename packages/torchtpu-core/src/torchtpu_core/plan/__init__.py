# SPDX-License-Identifier: Apache-2.0
"""A user's script run without values on a simulated slice, and what it would cost there."""
