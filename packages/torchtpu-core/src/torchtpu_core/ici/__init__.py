# SPDX-License-Identifier: Apache-2.0
"""The inter-chip interconnect: torus geometry, slices, collectives and network models.

Names are imported when they are first used: `import torch` reads the target's slice and
needs neither NumPy nor the models.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchtpu_core.ici.collectives import IciLink as IciLink
    from torchtpu_core.ici.faults import Faults as Faults
    from torchtpu_core.ici.groups import span_of as span_of
    from torchtpu_core.ici.groups import whole as whole
    from torchtpu_core.ici.kinds import CollectiveKind as CollectiveKind
    from torchtpu_core.ici.kinds import Engine as Engine
    from torchtpu_core.ici.mesh import Mesh as Mesh
    from torchtpu_core.ici.mesh import topology_aware_mesh as topology_aware_mesh
    from torchtpu_core.ici.model import CollectiveTime as CollectiveTime
    from torchtpu_core.ici.model import Message as Message
    from torchtpu_core.ici.model import NetworkModel as NetworkModel
    from torchtpu_core.ici.model import network_model as network_model
    from torchtpu_core.ici.model import ragged_messages as ragged_messages
    from torchtpu_core.ici.network import Network as Network
    from torchtpu_core.ici.slices import Slice as Slice
    from torchtpu_core.ici.slices import make_slice as make_slice
    from torchtpu_core.ici.slices import parse_slice as parse_slice
    from torchtpu_core.ici.span import Span as Span
    from torchtpu_core.ici.span import SpanAxis as SpanAxis
    from torchtpu_core.ici.torus import Link as Link
    from torchtpu_core.ici.torus import Torus as Torus

_MODULES = {
    "CollectiveKind": "kinds",
    "CollectiveTime": "model",
    "Engine": "kinds",
    "Faults": "faults",
    "IciLink": "collectives",
    "Link": "torus",
    "Mesh": "mesh",
    "Message": "model",
    "Network": "network",
    "NetworkModel": "model",
    "Slice": "slices",
    "Span": "span",
    "SpanAxis": "span",
    "Torus": "torus",
    "make_slice": "slices",
    "network_model": "model",
    "parse_slice": "slices",
    "ragged_messages": "model",
    "span_of": "groups",
    "topology_aware_mesh": "mesh",
    "whole": "groups",
}

__all__ = [
    "CollectiveKind",
    "CollectiveTime",
    "Engine",
    "Faults",
    "IciLink",
    "Link",
    "Mesh",
    "Message",
    "Network",
    "NetworkModel",
    "Slice",
    "Span",
    "SpanAxis",
    "Torus",
    "make_slice",
    "network_model",
    "parse_slice",
    "ragged_messages",
    "span_of",
    "topology_aware_mesh",
    "whole",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
