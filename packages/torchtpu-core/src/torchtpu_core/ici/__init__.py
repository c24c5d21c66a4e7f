# SPDX-License-Identifier: Apache-2.0
"""The inter-chip interconnect: torus geometry, slices, and closed-form collectives."""

from torchtpu_core.ici.collectives import IciLink as IciLink
from torchtpu_core.ici.slices import Slice as Slice
from torchtpu_core.ici.slices import make_slice as make_slice
from torchtpu_core.ici.slices import parse_slice as parse_slice
from torchtpu_core.ici.torus import Link as Link
from torchtpu_core.ici.torus import Torus as Torus
