# SPDX-License-Identifier: Apache-2.0
"""The inter-chip interconnect: torus geometry, slices, collectives and network models."""

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
from torchtpu_core.ici.network import Network as Network
from torchtpu_core.ici.slices import Slice as Slice
from torchtpu_core.ici.slices import make_slice as make_slice
from torchtpu_core.ici.slices import parse_slice as parse_slice
from torchtpu_core.ici.span import Span as Span
from torchtpu_core.ici.span import SpanAxis as SpanAxis
from torchtpu_core.ici.torus import Link as Link
from torchtpu_core.ici.torus import Torus as Torus
