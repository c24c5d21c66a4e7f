# SPDX-License-Identifier: Apache-2.0
"""The cache of compiled programs: entries, the places that keep them, packs.

Knows neither torch nor JAX: an entry is facts and bytes under a key that somebody else made.
"""

from torchtpu_core.cache.entry import Entry, Kind, decode, encode
from torchtpu_core.cache.program_cache import CacheWarning, ProgramCache
from torchtpu_core.cache.store import Store, Stored

__all__ = [
    "CacheWarning",
    "Entry",
    "Kind",
    "ProgramCache",
    "Store",
    "Stored",
    "decode",
    "encode",
]
