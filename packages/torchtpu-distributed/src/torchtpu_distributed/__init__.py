# SPDX-License-Identifier: Apache-2.0
"""`torch.distributed` for the `tpu` device: process group, collectives, lost ranks.

Importing it imports neither torch nor JAX: the helper process of `coordinator` needs
neither. `_autoload` tells torch the backend's names, `backend` makes it.
"""
