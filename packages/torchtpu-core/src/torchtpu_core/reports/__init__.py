# SPDX-License-Identifier: Apache-2.0
"""Pages that show figures: one file each, which needs no network."""
